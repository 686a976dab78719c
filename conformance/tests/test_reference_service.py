"""The creation service checks each field by itself; signals follow the commit, or are not sent at all."""

import logging
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace

import pytest
from fix_reference import Connect
from sqlalchemy import func, select
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncEngine

from agentrun_reference import conformance
from agentrun_reference.service import unit_of_work
from leaseproof.system import Created, Fault, NewRun, Refused
from leaseproof.world.world import World

pytestmark = pytest.mark.anyio


@pytest.fixture
async def engine(reference_world: World) -> AsyncIterator[AsyncEngine]:
    made = conformance.connect(reference_world.scratch.app_dsn, 5)
    yield made
    await made.dispose()


class Abandoned(Exception):
    """Rolls back what the block has done."""


class Signals:
    """Collects what is published, and whether it was committed by then."""

    def __init__(self, world: World) -> None:
        self.sent: list[tuple[str, str | None]] = []
        self._world = world

    async def __call__(self, run_id: str) -> None:
        self.sent.append((run_id, (await self._world.snapshot()).runs[run_id].status))


async def test_signals_go_out_after_the_commit_once_a_run(reference_world: World, engine: AsyncEngine) -> None:
    tree = await reference_world.tree("running", ["running", "pending", "completed"])
    publish = Signals(reference_world)
    async with unit_of_work(engine, publish) as work:
        await work.cancel(tree.root.id)
        await work.cancel(tree.root.id)
        assert publish.sent == []
    assert publish.sent == [(run.id, "cancel_requested") for run in tree.runs if run.status == "running"]


async def test_nothing_is_signalled_after_a_rollback(reference_world: World, engine: AsyncEngine) -> None:
    tree = await reference_world.tree("running")
    publish = Signals(reference_world)
    with suppress(Abandoned):
        async with unit_of_work(engine, publish) as work:
            await work.cancel(tree.root.id)
            raise Abandoned
    assert publish.sent == []
    assert (await reference_world.snapshot()).statuses() == {tree.root.id: "running"}


async def test_nothing_is_signalled_from_a_savepoint_that_was_rolled_back(
    reference_world: World, engine: AsyncEngine
) -> None:
    kept, undone = await reference_world.run("running"), await reference_world.run("running")
    publish = Signals(reference_world)
    async with unit_of_work(engine, publish) as work:
        async with work.savepoint():
            await work.cancel(kept.id)
        with suppress(Abandoned):
            async with work.savepoint():
                await work.cancel(undone.id)
                raise Abandoned
    assert publish.sent == [(kept.id, "cancel_requested")]


async def test_nothing_is_signalled_when_the_commit_fails(
    reference_world: World, engine: AsyncEngine, connect: Connect
) -> None:
    run = await reference_world.run("running")
    publish = Signals(reference_world)

    async def cancel_and_lose_the_connection() -> None:
        async with unit_of_work(engine, publish) as work:
            await work.cancel(run.id)
            pid = await work.connection.scalar(select(func.pg_backend_pid()))
            connect(reference_world.scratch.admin_dsn).execute("SELECT pg_terminate_backend(%s, 5000)", [pid])

    with pytest.raises(OperationalError):
        await cancel_and_lose_the_connection()
    assert publish.sent == []
    assert (await reference_world.snapshot()).runs[run.id].status == "running"


async def test_a_signal_that_fails_is_logged_and_the_others_are_sent(
    reference_world: World, engine: AsyncEngine, caplog: pytest.LogCaptureFixture
) -> None:
    tree = await reference_world.tree("running", ["running"])
    sent: list[str] = []

    async def publish(run_id: str) -> None:
        sent.append(run_id)
        raise ConnectionError("no Redis")

    with caplog.at_level(logging.ERROR):
        async with unit_of_work(engine, publish) as work:
            await work.cancel(tree.root.id)
    assert sent == [run.id for run in tree.runs]
    assert [record.message.split()[4] for record in caplog.records] == sent


async def legal(world: World) -> NewRun:
    """A subagent that the service accepts."""
    creator = await world.run("running", workdir="/srv/one")
    child = await world.plant.conversation("user-1")
    relation = await world.plant.relation(str(creator.conversation_id), child, "user-1")
    return NewRun("subagent", "user-1", child, creator.scope_conversation_id, creator.id, creator.owner_token, relation)


async def test_a_legal_run_of_each_type_is_created_pending(reference_world: World) -> None:
    subagent = await legal(reference_world)
    interrupted = await reference_world.run("interrupted", workdir="/srv/two")
    conversation = await reference_world.plant.conversation("user-1")
    actor = reference_world.actor("service")
    created = [
        await actor.create_run(new)
        for new in (
            NewRun("chat", "user-1", conversation, workdir="/srv/three"),
            NewRun("resume", "user-1", created_by_run_id=interrupted.id),
            subagent,
        )
    ]
    runs = (await reference_world.snapshot()).runs
    made = [runs[answer.run_id] for answer in created if isinstance(answer, Created)]
    assert [(run.run_type, run.status, run.workdir) for run in made] == [
        ("chat", "pending", "/srv/three"),
        ("resume", "pending", "/srv/two"),
        ("subagent", "pending", "/srv/one"),
    ]


VIOLATIONS: dict[str, dict[str, str]] = {
    "uid": {"uid": "user-2"},
    "creator": {"created_by_run_id": "none"},
    "creator_owner": {"owner_token": "another"},
    "relation": {"subagent_relation_id": "none"},
    "child_conversation": {"conversation_id": "conversation-00001"},
    "scope": {"scope_conversation_id": "none"},
    "workdir": {"workdir": "/srv/other"},
    "run_type": {"run_type": "batch"},
}


async def test_each_violation_alone_is_refused_for_its_own_reason(reference_world: World) -> None:
    new = await legal(reference_world)
    actor = reference_world.actor("service")
    before = await reference_world.digest()
    answers = {reason: await actor.create_run(replace(new, **change)) for reason, change in VIOLATIONS.items()}
    assert answers == {reason: Refused(reason) for reason in VIOLATIONS}
    assert await reference_world.digest() == before


async def test_a_chat_needs_a_conversation_of_its_user(reference_world: World) -> None:
    theirs = await reference_world.plant.conversation("user-2")
    actor = reference_world.actor("service")
    assert await actor.create_run(NewRun("chat", "user-1", theirs)) == Refused("uid")
    assert await actor.create_run(NewRun("chat", "user-1", "none")) == Refused("conversation")
    assert await actor.create_run(NewRun("chat", "user-1")) == Refused("conversation")


async def test_a_relation_of_others_is_refused(reference_world: World) -> None:
    new = await legal(reference_world)
    plant = reference_world.plant
    mine, theirs = await plant.conversation("user-1"), await plant.conversation("user-2")
    creator = (await reference_world.snapshot()).runs[str(new.created_by_run_id)]
    cases = {
        "parent_conversation": (mine, str(new.conversation_id), "user-1"),
        "uid": (str(creator.conversation_id), str(new.conversation_id), "user-2"),
    }
    actor = reference_world.actor("service")
    for reason, (parent, child, uid) in cases.items():
        relation = await plant.relation(parent, child, uid)
        assert await actor.create_run(replace(new, subagent_relation_id=relation)) == Refused(reason)
    foreign = await plant.relation(str(creator.conversation_id), theirs, "user-1")
    answer = await actor.create_run(replace(new, subagent_relation_id=foreign, conversation_id=theirs))
    assert answer == Refused("uid")


@pytest.mark.parametrize("status", ["pending", "cancel_requested", "completed", "interrupted"])
async def test_a_subagent_needs_a_running_creator(reference_world: World, status: str) -> None:
    new = await legal(reference_world)
    creator = await reference_world.run(status)
    asked = replace(new, created_by_run_id=creator.id, owner_token=creator.owner_token or "none")
    assert await reference_world.actor("service").create_run(asked) == Refused("creator_status")


async def test_a_subagent_needs_a_live_lease(reference_world: World) -> None:
    new = await legal(reference_world)
    await reference_world.age(str(new.created_by_run_id))
    assert await reference_world.actor("service").create_run(new) == Refused("creator_owner")


async def test_a_resume_needs_an_interrupted_run_of_its_user_and_conversation(reference_world: World) -> None:
    running, interrupted = await reference_world.run("running"), await reference_world.run("interrupted")
    subagent = await reference_world.run("interrupted", creator=running)
    elsewhere = await reference_world.plant.conversation("user-1")
    actor = reference_world.actor("service")
    asked = {
        NewRun("resume", "user-1", created_by_run_id=running.id): "creator_status",
        NewRun("resume", "user-2", created_by_run_id=interrupted.id): "uid",
        NewRun("resume", "user-1", elsewhere, created_by_run_id=interrupted.id): "conversation",
        NewRun("resume", "user-1", created_by_run_id=subagent.id): "scope",
        NewRun("resume", "user-1"): "creator",
    }
    assert [await actor.create_run(new) for new in asked] == [Refused(reason) for reason in asked.values()]


async def test_a_server_that_is_gone_is_unavailable(reference_world: World) -> None:
    actor = conformance.system.actor("host=/nonexistent dbname=none")
    with pytest.raises(Fault, match="No such file"):
        async with actor.transaction():
            pass
    await actor.close()
