"""Migrations: what they make is what the mapper believes, and they can be repeated, resumed and waited for."""

from collections.abc import Awaitable, Callable
from typing import Any

import psycopg
import pytest
from fix_reference import Connect, manager_of
from psycopg import errors
from sqlalchemy import create_engine
from sqlalchemy.exc import OperationalError

from agentrun_reference import manager
from agentrun_reference.manager import RELEASES, SchemaError
from agentrun_reference.schema import Base
from leaseproof.servers.cluster import Cluster, Scratch

pytestmark = pytest.mark.anyio
NewDatabase = Callable[[], Awaitable[Scratch]]

COLUMNS = """
    SELECT attrelid::regclass::text, attname, format_type(atttypid, atttypmod), attnotnull, attgenerated,
           collname, pg_get_expr(adbin, adrelid) AS filled
    FROM pg_attribute JOIN pg_class ON pg_class.oid = attrelid
    LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
    LEFT JOIN pg_collation ON pg_collation.oid = attcollation
    WHERE relnamespace = 'public'::regnamespace AND relkind = 'r' AND attnum > 0 AND relname <> 'alembic_version'
"""
CONSTRAINTS = """
    SELECT conrelid::regclass::text, conname, replace(pg_get_constraintdef(oid), ' NOT VALID', '')
    FROM pg_constraint WHERE connamespace = 'public'::regnamespace AND conrelid::regclass::text <> 'alembic_version'
"""
INDEXES = "SELECT indexdef FROM pg_indexes WHERE schemaname = 'public' AND tablename <> 'alembic_version'"
TRIGGERS = "SELECT pg_get_triggerdef(oid) FROM pg_trigger WHERE NOT tgisinternal"
FUNCTIONS = """
    SELECT pg_get_functiondef(oid), proacl::text FROM pg_proc
    WHERE pronamespace = 'public'::regnamespace AND prokind = 'f'
"""
VALIDATED = "SELECT conname, convalidated FROM pg_constraint WHERE connamespace = 'public'::regnamespace"
RIGHTS = """
    SELECT relname, relacl::text, (SELECT array_agg((attname, attacl::text) ORDER BY attnum) FROM pg_attribute
        WHERE attrelid = pg_class.oid AND attacl IS NOT NULL)::text
    FROM pg_class WHERE relnamespace = 'public'::regnamespace
"""
MAPPED = (COLUMNS, CONSTRAINTS, INDEXES)
WHOLE = (*MAPPED, TRIGGERS, FUNCTIONS, VALIDATED, RIGHTS)


def catalogue(scratch: Scratch, queries: tuple[str, ...] = WHOLE) -> list[list[Any]]:
    with psycopg.connect(scratch.owner_dsn) as connection:
        return [sorted(connection.execute(query.encode()).fetchall(), key=repr) for query in queries]


async def test_migrations_make_what_the_mapper_describes(cluster: Cluster, new_database: NewDatabase) -> None:
    migrated, mapped = await new_database(), await new_database()
    manager_of(migrated).install()
    engine = create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(mapped.owner_dsn))
    Base.metadata.create_all(engine)
    engine.dispose()

    assert catalogue(migrated, MAPPED) == catalogue(mapped, MAPPED)


async def test_an_upgrade_gives_what_an_installation_gives(new_database: NewDatabase) -> None:
    fresh, old = await new_database(), await new_database()
    manager_of(fresh).install()
    manager_of(old).install("0.9")
    assert catalogue(old) != catalogue(fresh)

    manager_of(old).upgrade("0.9", through="pre")
    assert (manager_of(old).release(), manager_of(old).revision()) == ("0.9", "0002")
    manager_of(old).upgrade("0.9")
    manager_of(old).upgrade("0.9")

    assert manager_of(old).release() == "1.0"
    assert catalogue(old) == catalogue(fresh)


async def test_the_constraint_is_installed_not_valid_and_nothing_else_is(new_database: NewDatabase) -> None:
    scratch = await new_database()
    manager_of(scratch).install()
    (validated,) = catalogue(scratch, (VALIDATED,))
    assert [name for name, valid in validated if not valid] == ["agent_runs_active_shape"]


async def test_every_release_ends_in_a_known_revision(new_database: NewDatabase) -> None:
    scratch = await new_database()
    steps = manager_of(scratch).pending()
    assert [step.module.phase for step in steps] == ["pre", "pre", "post"]
    assert set(RELEASES.values()) <= {step.revision for step in steps}


async def test_wrong_use_is_named(new_database: NewDatabase) -> None:
    schema = manager_of(await new_database())
    with pytest.raises(SchemaError, match="no schema of agent runs; install"):
        schema.upgrade()
    with pytest.raises(SchemaError, match=r"no release '7'; there are 0\.9, 1\.0"):
        schema.install("7")
    schema.install("0.9")
    with pytest.raises(SchemaError, match="revision 0001 already; upgrade"):
        schema.install()
    with pytest.raises(SchemaError, match=r"revision 0001, before release 1\.0"):
        schema.upgrade("1.0")


async def test_an_upgrade_waits_for_a_table_only_so_long_and_can_be_repeated(
    new_database: NewDatabase, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = await new_database()
    manager_of(scratch).install("0.9")
    monkeypatch.setattr(manager, "LOCK_TIMEOUT", "50ms")
    reader = connect(scratch.owner_dsn)
    reader.execute("BEGIN; SELECT FROM agent_runs")

    with pytest.raises(OperationalError) as refused:
        manager_of(scratch).upgrade()
    assert isinstance(refused.value.orig, errors.LockNotAvailable)
    assert manager_of(scratch).revision() == "0002"  # the step before the one that had to wait stays done

    reader.execute("COMMIT")
    manager_of(scratch).upgrade()
    assert manager_of(scratch).release() == "1.0"


async def test_upgraders_take_turns(
    new_database: NewDatabase, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = await new_database()
    manager_of(scratch).install("0.9")
    monkeypatch.setattr(manager, "LOCK_TIMEOUT", "50ms")
    another = connect(scratch.owner_dsn)
    another.execute("SELECT pg_advisory_lock(%s)", [manager.ADVISORY_KEY])

    with pytest.raises(OperationalError) as refused:
        manager_of(scratch).upgrade()
    assert isinstance(refused.value.orig, errors.LockNotAvailable)
    assert manager_of(scratch).revision() == "0001"

    another.close()
    manager_of(scratch).upgrade()
    assert manager_of(scratch).release() == "1.0"
