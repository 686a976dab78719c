"""The rule for shapes: what operations think of a row is what PostgreSQL thinks of it, for every combination."""

from dataclasses import asdict, dataclass
from itertools import product

import pytest
from psycopg import sql
from psycopg.types.json import Jsonb

from agentrun_reference.shape import ACTIVE, ACTIVE_SHAPE, TERMINAL, may_be_active
from leaseproof.servers.cluster import Cluster
from leaseproof.world.facts import STATUSES

pytestmark = pytest.mark.anyio


@dataclass(frozen=True)
class Row:
    run_type: str | None
    status: str | None
    scope_conversation_id: str | None
    created_by_run_id: str | None
    subagent_relation_id: str | None
    conversation_id: str | None


ROWS = [
    Row(*values)
    for values in product(
        ("chat", "resume", "subagent", "batch", None),
        (*STATUSES, "queued", None),
        ("own", "other", None),
        ("creator", None),
        ("relation", None),
        ("own", None),
    )
]


def test_python_and_sql_agree_on_every_row(cluster: Cluster) -> None:
    query = sql.SQL(
        """
        SELECT {shape} FROM ROWS FROM (
            jsonb_to_recordset(%s) AS (
                run_type text, status text, conversation_id text, scope_conversation_id text,
                created_by_run_id text, subagent_relation_id text
            )
        ) WITH ORDINALITY ORDER BY ordinality
        """
    ).format(shape=sql.SQL(ACTIVE_SHAPE))
    answers = [accepted for (accepted,) in cluster.admin.execute(query, [Jsonb([asdict(row) for row in ROWS])])]

    assert len(ROWS) == 1080
    assert answers == [row.status in TERMINAL or (row.status in ACTIVE and may_be_active(row)) for row in ROWS]


def test_only_four_shapes_may_be_active() -> None:
    shapes = {row for row in ROWS if row.status == "pending" and may_be_active(row)}
    assert shapes == {
        Row("chat", "pending", "own", None, None, "own"),
        Row("resume", "pending", "own", "creator", None, "own"),
        Row("subagent", "pending", "own", "creator", "relation", "own"),
        Row("subagent", "pending", "other", "creator", "relation", "own"),
    }
