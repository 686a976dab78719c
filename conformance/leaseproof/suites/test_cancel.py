"""CANCEL: the facts that a cancel writes, where and when they can be read, and the answer that tells of them."""

from dataclasses import replace

from leaseproof.capabilities import Cap
from leaseproof.checks import claim, expect, expect_equal
from leaseproof.system import CancelAnswer, Ended
from leaseproof.world.facts import ACTIVE, TERMINAL, Run
from leaseproof.world.observe import Snapshot
from leaseproof.world.waits import PATIENCE
from leaseproof.world.world import World


async def _plant_every_kind(world: World) -> dict[str, Run]:
    """A running root with a subagent in each state that a cancel can meet, by the name of the state."""
    root = await world.run("running")
    kinds = {
        "root": root,
        "pending": await world.run("pending", creator=root),
        "given back": await world.run("pending", creator=root, worker_id="last-worker", retry_count=2),
        "legacy running": await world.run("running", creator=root, owner_token=None),
        "running": await world.run("running", creator=root),
        "running, lease expired": await world.run("running", creator=root),
        "cancel_requested": await world.run("cancel_requested", creator=root),
        "cancel_requested, lease expired": await world.run("cancel_requested", creator=root),
        **{
            f"{status}, no lease": await world.run(status, creator=root, lease_expires_at=None, attempt=False)
            for status in ("running", "cancel_requested")
        },
        **{status: await world.run(status, creator=root) for status in sorted(TERMINAL)},
    }
    for name in ("running, lease expired", "cancel_requested, lease expired"):
        await world.age(kinds[name])
    return kinds


CANCELLED = ("pending", "given back", "legacy running")
"""The kinds that nobody holds."""


@claim("CANCEL-1")
async def test_cancel_facts_are_read_back_once_the_transaction_has_committed(world: World) -> None:
    """A rolled back cancel leaves nothing; an open one shows nothing to others; a committed one shows all of it."""
    tree = await world.tree("running", [("pending", ["running"]), "completed"])
    before = await world.digest()
    canceller = world.actor("canceller")
    if world.promises(Cap.caller_transaction):
        async with canceller.transaction() as transaction:
            await transaction.request_cancel_execution_tree(tree.root.id)
            transaction.rollback()
        expect_equal(await world.digest(), before, "survived_rollback", "rows after the rollback")
        async with canceller.transaction() as transaction:
            await transaction.request_cancel_execution_tree(tree.root.id)
            expect_equal(await world.digest(), before, "seen_before_commit", "rows while the cancel is open")
    else:
        await canceller.request_cancel_execution_tree(tree.root.id)
    statuses = (await world.snapshot()).statuses()
    wanted = ["cancel_requested", "cancelled", "completed", "cancel_requested"]
    expect_equal([statuses[run.id] for run in tree.runs], wanted, "not_cancelled", "statuses after the commit")


@claim("CANCEL-1")
async def test_cancel_writes_the_facts_of_the_table(world: World) -> None:
    """A run that nobody holds is cancelled and owned by nobody; a held one is asked, and stays as its owner has it."""
    kinds = await _plant_every_kind(world)
    before = await world.snapshot()
    await world.actor("canceller").request_cancel_execution_tree(kinds["root"].id)
    after = await world.snapshot()
    for name, run in kinds.items():
        was, now = before.runs[run.id], after.runs[run.id]
        if name in CANCELLED:
            expect_equal(now.status, "cancelled", "not_cancelled", f"{name}: status")
            expect_equal((now.owner_token, now.lease_expires_at), (None, None), "owner_kept", f"{name}: owner, lease")
            expect_equal(now.worker_id, was.worker_id, "label_lost", f"{name}: worker")
        elif was.status in ACTIVE:
            expect_equal(now.status, "cancel_requested", "not_requested", f"{name}: status")
            expect_equal(now, replace(was, status="cancel_requested"), "ownership_changed", name)
        else:
            expect_equal(now, was, "terminal_changed", name)
    expect_equal(after.attempts, before.attempts, "attempt_changed", "attempts: open ones stay with their owners")


@claim("CANCEL-1")
async def test_cancel_stays_within_its_tree(world: World) -> None:
    """The run above the target, one beside it, one that resumes a run of the tree, and other trees go on."""
    tree = await world.tree("running", [("running", ["pending", "interrupted"]), ("running", ["pending"])])
    target, pending, interrupted = tree.levels[1][0], tree.levels[2][0], tree.levels[2][1]
    resume = await world.run("running", creator=interrupted, run_type="resume")
    await world.run("pending", creator=resume)
    await world.tree("running", ["pending"])
    before = await world.snapshot()
    await world.actor("canceller").request_cancel_execution_tree(target.id)
    after = await world.snapshot()
    expect_equal(
        (after.runs[target.id].status, after.runs[pending.id].status),
        ("cancel_requested", "cancelled"),
        "not_cancelled",
        "the target and its subagent",
    )
    rest = set(before.runs) - {target.id, pending.id}
    expect_equal(_part(after, rest), _part(before, rest), "outsider_changed", "runs outside of the tree")


def _part(snapshot: Snapshot, ids: set[str]) -> dict[str, Run]:
    return {identity: run for identity, run in snapshot.runs.items() if identity in ids}


@claim("CANCEL-3")
async def test_cancel_answers_what_it_did_to_each_run(world: World) -> None:
    """With a run of every kind in the tree, the answer equals the difference of the rows; when asked again too."""
    kinds = await _plant_every_kind(world)
    illegal: set[str] = set()
    if Cap.run_shape in world.system.capabilities:
        shapeless = await world.plant.illegal_run("running", creator=kinds["root"], scope_conversation_id=None)
        illegal.add(shapeless.id)
    canceller = world.actor("canceller")
    before = await world.snapshot()
    answer = await canceller.request_cancel_execution_tree(kinds["root"].id)
    after = await world.snapshot()
    _answers_the_difference(answer, before, after)
    expect_equal(set(answer.ended_illegal), illegal, "illegal_not_reported", "runs ended for their shape")
    changed = {name for name, run in kinds.items() if before.runs[run.id].status != after.runs[run.id].status}
    wanted = {*CANCELLED, "root", "running", "running, lease expired", "running, no lease"}
    expect_equal(changed, wanted, "not_cancelled", "kinds of runs that the cancel changed")

    again = await canceller.request_cancel_execution_tree(kinds["root"].id)
    _answers_the_difference(again, after, await world.snapshot())
    expect_equal(set(again.ended_illegal), set(), "claimed_again", "runs ended for their shape when asked again")


@claim("CANCEL-3")
async def test_cancel_answers_for_a_run_that_changed_while_it_was_awaited(world: World) -> None:
    """While the cancel waits, one owner gives its run back and another completes its own: the answer is of the rows
    that the cancel met, not of those that it had seen before."""
    tree = await world.tree("running", ["running", "running"])
    given_back, completed = tree.descendants
    holder = await world.session("holder")
    canceller, first, second = [
        world.actor(name, statement_timeout=PATIENCE) for name in ("canceller", "first", "second")
    ]
    await holder.lock(given_back.id)
    release = first.release_lease_for_retry(given_back.id, owner_token=given_back.owner_token or "")
    async with first.running(release) as releasing:
        await releasing.until_blocked_by(holder.pid)
        async with canceller.running(canceller.request_cancel_execution_tree(tree.root.id)) as cancel:
            await cancel.until_waiting()
            finished = await second.set_terminal_status(completed.id, owner_token=completed.owner_token or "")
            expect_equal(finished, Ended("completed"), "not_finished", "the second owner's answer")
            await holder.release()
            expect_equal(await releasing.result(), Ended("pending"), "not_released", "the first owner's answer")
            answer: CancelAnswer = await cancel.result()
    after = await world.snapshot()
    met = {tree.root.id: "running", given_back.id: "pending", completed.id: "completed"}
    before = Snapshot({identity: replace(after.runs[identity], status=met[identity]) for identity in met}, {})
    _answers_the_difference(answer, before, after)
    wanted = dict(zip(met, ("cancel_requested", "cancelled", "completed"), strict=True))
    expect_equal(after.statuses(), wanted, "not_cancelled", "statuses after the cancel")


@claim("CANCEL-3")
async def test_cancel_answers_for_a_root_that_ended_while_it_was_awaited(world: World) -> None:
    """The root's owner completes it while the cancel waits for it: the answer is of the row that the cancel met."""
    tree = await world.tree("running", ["running"])
    holder = await world.session("holder")
    canceller, owner = [world.actor(name, statement_timeout=PATIENCE) for name in ("canceller", "owner")]
    await holder.lock(tree.root.id)
    finish = owner.set_terminal_status(tree.root.id, owner_token=tree.root.owner_token or "")
    async with owner.running(finish) as finishing:
        await finishing.until_blocked_by(holder.pid)
        async with canceller.running(canceller.request_cancel_execution_tree(tree.root.id)) as cancel:
            await cancel.until_waiting()
            await holder.release()
            expect_equal(await finishing.result(), Ended("completed"), "not_finished", "the owner's answer")
            answer: CancelAnswer = await cancel.result()
    after = await world.snapshot()
    met = dict(zip([run.id for run in tree.runs], ("completed", "running"), strict=True))
    before = Snapshot({identity: replace(after.runs[identity], status=met[identity]) for identity in met}, {})
    _answers_the_difference(answer, before, after)
    wanted = dict(zip(met, ("completed", "cancel_requested"), strict=True))
    expect_equal(after.statuses(), wanted, "not_cancelled", "statuses after the cancel")


def _answers_the_difference(answer: CancelAnswer, before: Snapshot, after: Snapshot) -> None:
    """Each change of a status stands in the answer, and all that stands there is what the rows were and are.

    A run that the cancel left as it was may stand there or not.
    """
    for identity, change in answer.runs.items():
        expect(identity in after.runs, "invented_run", f"the answer tells of {identity}, which is no run")
        rows = (before.runs[identity].status, after.runs[identity].status)
        expect_equal(tuple(change), rows, "wrong_answer", f"the answer about {identity}")
    changed = {identity for identity, run in after.runs.items() if run.status != before.runs[identity].status}
    expect(changed <= set(answer.runs), "untold_change", f"no word of {sorted(changed - set(answer.runs))}")
