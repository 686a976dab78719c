"""The oracle of shapes: it counts what constraints that only look right let through, as PostgreSQL judges them."""

from collections.abc import Iterator

import psycopg
import pytest

from leaseproof.servers.cluster import Cluster
from leaseproof.suites.shapes import LEGAL, SHAPES, Shape

ENDED = "status IN ('completed', 'failed', 'cancelled', 'interrupted')"
ACTIVE = "status IN ('pending', 'running', 'cancel_requested')"
PLACED = "conversation IS NOT NULL AND scope IS NOT NULL"
CHAT = "scope = conversation AND creator IS NULL AND relation IS NULL"
RESUME = "scope = conversation AND creator IS NOT NULL AND relation IS NULL"
SUBAGENT = "creator IS NOT NULL AND relation IS NOT NULL"
SHAPE = f"type = 'chat' AND {CHAT} OR type = 'resume' AND {RESUME} OR type = 'subagent' AND {SUBAGENT}"
RIGHT = f"({ENDED} OR {ACTIVE} AND {PLACED} AND ({SHAPE})) IS TRUE"


@pytest.fixture
def connection(cluster: Cluster) -> Iterator[psycopg.Connection]:
    """A session whose temporary table holds every shape."""
    with psycopg.connect(cluster.address.admin_dsn, autocommit=True) as connection:
        connection.execute(
            "CREATE TEMPORARY TABLE shapes "
            "(number int, type text, status text, scope text, creator text, relation text, conversation text)"
        )
        with connection.cursor() as cursor:
            rows = [(number, *columns(shape)) for number, shape in enumerate(SHAPES)]
            cursor.executemany("INSERT INTO shapes VALUES (%s, %s, %s, %s, %s, %s, %s)", rows)
        yield connection


def columns(shape: Shape) -> tuple[str | None, ...]:
    conversation = "own" if shape.conversation else None
    scope = conversation if shape.scope == "own" else shape.scope
    return (
        shape.run_type,
        shape.status,
        scope,
        "creator" if shape.creator else None,
        "relation" if shape.relation else None,
        conversation,
    )


def accepted(connection: psycopg.Connection, check: str) -> set[Shape]:
    """What a CHECK of this text accepts: everything for which it is not false."""
    rows = connection.execute(f"SELECT number FROM shapes WHERE ({check}) IS NOT FALSE").fetchall()
    return {SHAPES[number] for (number,) in rows}


def test_the_table_is_whole() -> None:
    assert len(set(SHAPES)) == 1080
    assert len(LEGAL) == 4 * 120 + 3 * 4


def test_the_right_constraint_accepts_exactly_the_legal_shapes(connection: psycopg.Connection) -> None:
    assert accepted(connection, RIGHT) == set(LEGAL)


@pytest.mark.parametrize(
    ("check", "too_many"),
    [
        # a null status, whatever the rest; a null type of an active run whose other columns fit one of the types
        pytest.param(RIGHT.removesuffix(" IS TRUE"), 120 + 3 * 4, id="without IS TRUE"),
        # chat and resume with neither conversation nor scope, each of which is in the table twice
        pytest.param(
            f"({ENDED} OR {ACTIVE} AND ({SHAPE.replace(SUBAGENT, f'{SUBAGENT} AND {PLACED}')})) IS TRUE".replace(
                "scope = conversation", "scope IS NOT DISTINCT FROM conversation"
            ),
            2 * 3 * 2,
            id="IS NOT DISTINCT FROM",
        ),
        # a null and an unknown status, whatever the rest
        pytest.param(f"(coalesce(NOT {ACTIVE}, true) OR {PLACED} AND ({SHAPE})) IS TRUE", 240, id="NOT IN (active)"),
    ],
)
def test_wrong_constraints_accept_illegal_shapes_and_refuse_none(
    connection: psycopg.Connection, check: str, too_many: int
) -> None:
    seen = accepted(connection, check)
    assert seen >= set(LEGAL)
    assert len(seen - set(LEGAL)) == too_many
