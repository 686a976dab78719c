"""The statements of a cancel have the time of one together, and the caller keeps the time-out that it had."""

from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from agentrun_reference import conformance
from agentrun_reference.deadline import Deadline
from agentrun_reference.outcomes import OperationTimedOut
from agentrun_reference.repository import AgentRunRepository
from leaseproof.world.trees import uniform
from leaseproof.world.world import World

pytestmark = pytest.mark.anyio

SETTING = text("SELECT current_setting('statement_timeout')")


@pytest.fixture
async def connection(reference_world: World) -> AsyncIterator[AsyncConnection]:
    engine = conformance.connect(reference_world.scratch.app_dsn, 5)
    async with engine.connect() as made:
        yield made
    await engine.dispose()


@pytest.mark.parametrize("setting", ["5s", "1234ms", "2min", "0"])
async def test_cancel_leaves_the_callers_timeout(
    reference_world: World, connection: AsyncConnection, setting: str
) -> None:
    tree = await reference_world.tree("running", [uniform(2, 2)])
    await connection.execute(text(f"SET LOCAL statement_timeout = '{setting}'"))
    result = await AgentRunRepository(connection).request_cancel_execution_tree(tree.root.id)
    assert (set(result.to_signal), await connection.scalar(SETTING)) == (tree.ids, setting)


async def test_next_statement_gets_what_is_left(connection: AsyncConnection) -> None:
    deadline = await Deadline.of_one_statement(connection)
    await connection.execute(text("SELECT pg_sleep(0.02)"))
    await deadline.go_on()
    left = await connection.scalar(text("SELECT setting::integer FROM pg_settings WHERE name = 'statement_timeout'"))
    assert 0 < left <= 4980


async def test_operation_ends_when_nothing_is_left(connection: AsyncConnection) -> None:
    deadline = await Deadline.of_one_statement(connection)
    assert deadline.ends_at is not None
    await Deadline(connection, "3s", deadline.ends_at - timedelta(seconds=5)).restore()
    with pytest.raises(OperationTimedOut, match="3s"):
        await Deadline(connection, "3s", deadline.ends_at - timedelta(seconds=5)).go_on()
    assert await connection.scalar(SETTING) == "3s"


async def test_without_a_timeout_nothing_is_limited(connection: AsyncConnection) -> None:
    await connection.execute(text("SET LOCAL statement_timeout = 0"))
    deadline = await Deadline.of_one_statement(connection)
    await deadline.go_on()
    assert (deadline.ends_at, await connection.scalar(SETTING)) == (None, "0")
