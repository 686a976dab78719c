"""The dump of the earlier release: made again it is the same, it loads, and its rows survive the upgrade."""

import importlib.util
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import ModuleType

import psycopg
import pytest
from fix_reference import manager_of

from agentrun_reference.conformance import connect
from agentrun_reference.service import unit_of_work
from agentrun_reference.shape import ACTIVE
from leaseproof.servers.cluster import Cluster, Scratch
from leaseproof.servers.start import Choice, start
from leaseproof.system import Database

pytestmark = pytest.mark.anyio

FOLDER = Path(__file__).parents[2] / "fixtures" / "legacy"
DUMP = FOLDER / "agentrun-0.9.sql"


async def not_published(run_id: str) -> None:
    """Publish nothing."""


@pytest.fixture
def make_dump() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_dump", FOLDER / "make_dump.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def load(scratch: Scratch) -> None:
    """As its owner, like any restore."""
    with psycopg.connect(scratch.owner_dsn) as connection:
        connection.execute(DUMP.read_bytes())


def rows(scratch: Scratch) -> list[str]:
    with psycopg.connect(scratch.owner_dsn) as connection:
        return [row for (row,) in connection.execute("SELECT r::text FROM agent_runs AS r ORDER BY id")]


async def test_the_script_gives_the_same_dump_again(cluster: Cluster, make_dump: ModuleType) -> None:
    made_from = DUMP.read_text().partition("PostgreSQL ")[2].partition(";")[0]
    if cluster.admin.info.server_version // 10000 != int(made_from):
        pytest.skip(f"the dump is PostgreSQL {made_from}'s, and another major version words it otherwise")
    assert await make_dump.dump(cluster) == DUMP.read_text()


async def test_the_dump_holds_every_historic_shape(new_database: Callable[[], Awaitable[Scratch]]) -> None:
    scratch = await new_database()
    load(scratch)
    with psycopg.connect(scratch.owner_dsn) as connection:
        count = connection.execute("""
            SELECT count(DISTINCT (run_type, status, scope_conversation_id, created_by_run_id, subagent_relation_id,
                                   conversation_id)),
                   count(*) FILTER (WHERE status = 'running' AND owner_token IS NULL)
            FROM agent_runs WHERE id <> 'creator'
        """).fetchone()
    assert count == (1080, 120)
    assert manager_of(scratch).release() == "0.9"


async def test_the_upgrade_changes_no_row_and_what_is_illegal_can_be_ended(
    new_database: Callable[[], Awaitable[Scratch]],
) -> None:
    scratch = await new_database()
    load(scratch)
    before = rows(scratch)
    manager_of(scratch).upgrade("0.9")
    assert rows(scratch) == before

    engine = connect(scratch.app_dsn, 5)
    async with unit_of_work(engine, not_published) as work:
        swept = await work.repository.reconcile_expired_leases()
        for run_id in await work.repository.fetch_next(limit=200):
            await work.cancel(run_id)
    await engine.dispose()
    assert len(swept.runs) == 3 * 120
    assert len(swept.ended_illegal) == 3 * (120 - 4)
    with psycopg.connect(scratch.owner_dsn) as connection:
        left = connection.execute("SELECT count(*) FROM agent_runs WHERE status = ANY (%s)", [list(ACTIVE)]).fetchone()
        assert left == (0,)
        connection.execute("DELETE FROM agent_runs WHERE status = 'queued' OR status IS NULL")
        connection.execute("ALTER TABLE agent_runs VALIDATE CONSTRAINT agent_runs_active_shape")


async def nothing(database: Database) -> None:
    """Install nothing."""


DEBIAN_15 = Path("/usr/lib/postgresql/15/bin")


@pytest.mark.skipif(not DEBIAN_15.is_dir(), reason=f"no {DEBIAN_15} here")
async def test_the_dump_loads_on_postgresql_15() -> None:
    servers = start(Choice(pg_bin=str(DEBIAN_15)))
    try:
        cluster = Cluster(servers.address, "main")
        scratch = cluster.clone(await cluster.template("empty", nothing))
        load(scratch)
        manager_of(scratch).upgrade("0.9")
        assert manager_of(scratch).release() == "1.0"
        cluster.close()
    finally:
        servers.close()
