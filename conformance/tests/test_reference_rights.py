"""What PostgreSQL itself refuses: rights of the two roles, the guard of attempts, and the purge as the only way out."""

from datetime import timedelta
from typing import Any

import psycopg
import pytest
from fix_reference import Connect

from leaseproof.world.facts import Run
from leaseproof.world.world import World

pytestmark = pytest.mark.anyio

LONG_AGO = timedelta(days=30)

APPLICATION_MAY_NOT = {
    "delete runs": "DELETE FROM agent_runs",
    "empty runs": "TRUNCATE agent_runs CASCADE",
    "move a run to another creator": "UPDATE agent_runs SET created_by_run_id = NULL",
    "make a run older": "UPDATE agent_runs SET created_at = created_at",
    "change a run's type": "UPDATE agent_runs SET run_type = 'chat'",
    "delete attempts": "DELETE FROM agent_run_attempts",
    "empty attempts": "TRUNCATE agent_run_attempts",
    "renumber attempts": "UPDATE agent_run_attempts SET attempt_no = attempt_no",
    "give an attempt away": "UPDATE agent_run_attempts SET owner_token = 'another'",
    "insert a closed attempt": """
        INSERT INTO agent_run_attempts (run_id, attempt_no, owner_token, started_at, finished_at, outcome)
        SELECT run_id, attempt_no + 1, 'another', now(), now(), 'failed' FROM agent_run_attempts
    """,
    "purge": "SELECT purge_agent_runs('1 day', 1)",
    "delete conversations": "DELETE FROM conversations",
    "change the schema": "ALTER TABLE agent_runs DROP CONSTRAINT agent_runs_active_shape",
    "create tables": "CREATE TABLE mine ()",
    "lift the guard": "ALTER TABLE agent_run_attempts DISABLE TRIGGER USER",
}
MAINTENANCE_MAY_NOT = {
    "read runs": "SELECT FROM agent_runs",
    "delete runs": "DELETE FROM agent_runs",
    "delete attempts": "DELETE FROM agent_run_attempts",
    "purge without a limit": "SELECT purge_agent_runs('1 day', NULL)",
    "purge nothing": "SELECT purge_agent_runs('1 day', 0)",
    "purge without an age": "SELECT purge_agent_runs(NULL, 1)",
    "purge what is yet to come": "SELECT purge_agent_runs('-1 day', 1)",
}
NOBODY_MAY = {
    "change a closed attempt": "UPDATE agent_run_attempts SET error_message = 'other' WHERE finished_at IS NOT NULL",
    "reopen an attempt": "UPDATE agent_run_attempts SET finished_at = NULL, outcome = NULL WHERE attempt_no = 1",
    "delete an attempt": "DELETE FROM agent_run_attempts WHERE attempt_no = 2",
    "empty attempts": "TRUNCATE agent_run_attempts",
    "empty runs with their attempts": "TRUNCATE agent_runs CASCADE",
    "give an open attempt away": "UPDATE agent_run_attempts SET owner_token = 'another' WHERE attempt_no = 2",
    "renumber an open attempt": "UPDATE agent_run_attempts SET attempt_no = 3 WHERE attempt_no = 2",
    "start an open attempt anew": "UPDATE agent_run_attempts SET started_at = now() WHERE attempt_no = 2",
    "close an attempt without an outcome": "UPDATE agent_run_attempts SET finished_at = now() WHERE attempt_no = 2",
    "close an attempt by a word of its own": """
        UPDATE agent_run_attempts SET finished_at = now(), outcome = 'lost' WHERE attempt_no = 2
    """,
    "insert a closed attempt": """
        INSERT INTO agent_run_attempts (run_id, attempt_no, owner_token, started_at, finished_at, outcome)
        SELECT run_id, 3, 'another', now(), now(), 'failed' FROM agent_run_attempts WHERE attempt_no = 2
    """,
    "open a second attempt": """
        INSERT INTO agent_run_attempts (run_id, attempt_no, owner_token, started_at)
        SELECT run_id, 3, 'another', now() FROM agent_run_attempts WHERE attempt_no = 2
    """,
    "leave out a number": """
        INSERT INTO agent_run_attempts (run_id, attempt_no, owner_token, started_at)
        SELECT id, 2, 'another', now() FROM agent_runs WHERE status = 'pending'
    """,
    "begin with number 0": """
        INSERT INTO agent_run_attempts (run_id, attempt_no, owner_token, started_at)
        SELECT id, 0, 'another', now() FROM agent_runs WHERE status = 'pending'
    """,
    "keep attempts of no run": """
        INSERT INTO agent_run_attempts (run_id, attempt_no, owner_token, started_at) VALUES ('none', 1, 'a', now())
    """,
    "delete a run that has attempts": "DELETE FROM agent_runs WHERE status = 'running'",
}
REFUSALS = {
    "change a closed attempt": "23000",
    "reopen an attempt": "23000",
    "delete an attempt": "23000",
    "empty attempts": "23000",
    "empty runs with their attempts": "23000",
    "give an open attempt away": "23000",
    "renumber an open attempt": "23000",
    "start an open attempt anew": "23000",
    "close an attempt without an outcome": "23514",
    "close an attempt by a word of its own": "23514",
    "insert a closed attempt": "23000",
    "open a second attempt": "23505",
    "leave out a number": "23503",
    "begin with number 0": "23514",
    "keep attempts of no run": "23503",
    "delete a run that has attempts": "23503",
}


def refusal(connection: psycopg.Connection[Any], statement: str) -> str | None:
    """The SQLSTATE that the statement ends in."""
    try:
        connection.execute(statement.encode())
    except psycopg.Error as error:
        return error.sqlstate
    return None


async def run_on_its_second_attempt(world: World) -> Run:
    run = await world.run("pending")
    worker = world.actor("worker")
    await worker.mark_running(run.id, owner_token="first", worker_id="w", lease=timedelta(seconds=30))
    await worker.release_lease_for_retry(run.id, owner_token="first")
    await worker.mark_running(run.id, owner_token="second", worker_id="w", lease=timedelta(seconds=30))
    return run


async def test_the_application_has_no_right_that_its_operations_do_not_need(
    reference_world: World, connect: Connect
) -> None:
    await run_on_its_second_attempt(reference_world)
    session = connect(reference_world.scratch.app_dsn)
    assert {what: refusal(session, how) for what, how in APPLICATION_MAY_NOT.items()} == dict.fromkeys(
        APPLICATION_MAY_NOT, "42501"
    )


async def test_maintenance_may_purge_and_do_nothing_else(reference_world: World, connect: Connect) -> None:
    session = connect(reference_world.scratch.maintenance_dsn)
    refused = {what: refusal(session, how) for what, how in MAINTENANCE_MAY_NOT.items()}
    assert refused == {what: "22023" if "purge" in what else "42501" for what in MAINTENANCE_MAY_NOT}
    assert session.execute("SELECT * FROM purge_agent_runs('1 day', 1)").fetchall() == [{"runs": 0, "attempts": 0}]


@pytest.mark.parametrize("role", ["admin_dsn", "owner_dsn", "app_dsn"])
async def test_closed_attempts_are_closed_for_good_whoever_asks(
    reference_world: World, connect: Connect, role: str
) -> None:
    await run_on_its_second_attempt(reference_world)
    await reference_world.run("pending")
    before = await reference_world.digest()
    session = connect(getattr(reference_world.scratch, role))
    refused = {what: refusal(session, how) for what, how in NOBODY_MAY.items()}
    if role == "app_dsn":
        assert None not in refused.values()
        assert refused["change a closed attempt"] == "23000"  # it has the right, for open ones
    else:
        assert refused == REFUSALS
    assert await reference_world.digest() == before


async def test_the_application_cannot_pass_itself_off_as_the_purge(reference_world: World, connect: Connect) -> None:
    await run_on_its_second_attempt(reference_world)
    session = connect(reference_world.scratch.app_dsn)
    session.execute("SET agentrun.purging = 'on'")
    assert refusal(session, "DELETE FROM agent_run_attempts") == "42501"
    assert refusal(session, NOBODY_MAY["change a closed attempt"]) == "23000"


async def purged(world: World, limit: int) -> tuple[int, int]:
    answer = await world.actor(f"purge-{limit}", role="maintenance").purge(older_than=timedelta(days=7), limit=limit)
    return answer.runs, answer.attempts


async def test_a_purge_takes_old_terminal_runs_with_their_attempts_oldest_first(reference_world: World) -> None:
    now = await reference_world.plant.now()
    old = [await reference_world.run("completed", finished_at=now - LONG_AGO + timedelta(days=n)) for n in range(3)]
    await reference_world.plant.attempt(old[0], attempt_no=2, owner_token="a", outcome="failed", finished_at=now)
    kept = {(await reference_world.run(status)).id for status in ("pending", "running", "failed")}

    assert await purged(reference_world, 2) == (2, 3)
    assert (await reference_world.snapshot()).runs.keys() == kept | {old[2].id}
    assert await purged(reference_world, 10) == (1, 1)
    assert await purged(reference_world, 10) == (0, 0)
    assert (await reference_world.snapshot()).runs.keys() == kept


async def test_a_purge_takes_a_tree_from_its_leaves_up_and_lets_nothing_dangle(reference_world: World) -> None:
    finished_at = await reference_world.plant.now() - LONG_AGO
    root = await reference_world.run("completed", finished_at=finished_at)
    child = await reference_world.run("failed", creator=root, finished_at=finished_at)
    leaf = await reference_world.run("failed", creator=child, finished_at=finished_at)
    interrupted = await reference_world.run("interrupted", finished_at=finished_at)
    resume = await reference_world.run("running", creator=interrupted, run_type="resume")

    assert await purged(reference_world, 1) == (1, 1)
    assert (await reference_world.snapshot()).runs.keys() == {root.id, child.id, interrupted.id, resume.id}
    assert leaf.id not in (await reference_world.snapshot()).runs
    assert await purged(reference_world, 10) == (2, 2)
    assert (await reference_world.snapshot()).runs.keys() == {interrupted.id, resume.id}


async def test_a_purge_passes_by_what_others_hold(reference_world: World) -> None:
    finished_at = await reference_world.plant.now() - LONG_AGO
    held, free = [await reference_world.run("failed", finished_at=finished_at) for _ in range(2)]
    holder = await reference_world.session("holder")
    await holder.lock(held.id)

    assert await purged(reference_world, 10) == (1, 1)
    assert free.id not in (await reference_world.snapshot()).runs
    await holder.release()
    assert await purged(reference_world, 11) == (1, 1)


async def test_after_a_purge_the_guard_stands_in_the_same_transaction(reference_world: World, connect: Connect) -> None:
    finished_at = await reference_world.plant.now() - LONG_AGO
    await reference_world.run("failed", finished_at=finished_at)
    await run_on_its_second_attempt(reference_world)
    owner = connect(reference_world.scratch.owner_dsn)
    owner.execute("BEGIN")
    assert owner.execute("SELECT * FROM purge_agent_runs('7 days', 5)").fetchall() == [{"runs": 1, "attempts": 1}]
    assert refusal(owner, NOBODY_MAY["delete an attempt"]) == "23000"
