"""LOCK: the order of row locks in an execution tree, which rows a cancel touches, and whom it tells to signal."""

from collections.abc import Collection, Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import Final

from leaseproof.capabilities import Cap
from leaseproof.checks import claim, expect, expect_equal
from leaseproof.system import CancelAnswer, Ended
from leaseproof.world.actors import Participant
from leaseproof.world.facts import TERMINAL, Run
from leaseproof.world.plant import EPOCH
from leaseproof.world.trees import Branch, Tree
from leaseproof.world.waits import PATIENCE
from leaseproof.world.world import World


@claim("LOCK-1")
async def test_cancel_execution_tree_locks_root_before_descendants(world: World) -> None:
    """While another session holds the root, the cancel waits for it and every descendant is free."""
    tree = await world.tree("running", ["running", ("running", ["pending"])])
    await _root_comes_first(world, tree)
    signalled = {run.id for run in tree.runs if run.status == "running"}
    wanted = {run.id: "cancel_requested" if run.id in signalled else "cancelled" for run in tree.runs}
    expect_equal((await world.snapshot()).statuses(), wanted, "not_cancelled", "statuses after the cancel")


@claim("LOCK-1")
async def test_terminal_root_is_locked_before_its_descendants(world: World) -> None:
    """A root that has ended is locked first all the same; the runs below it are cancelled."""
    tree = await world.tree("completed", ["running", ("pending", ["pending"])])
    await _root_comes_first(world, tree)
    statuses = (await world.snapshot()).statuses()
    wanted = ["completed", "cancel_requested", "cancelled", "cancelled"]
    expect_equal([statuses[run.id] for run in tree.runs], wanted, "not_cancelled", "statuses after the cancel")


@claim("LOCK-1")
async def test_each_of_several_cancels_waits_at_its_own_root(world: World) -> None:
    """Two cancels queue at a held root with its descendants free, while a cancel of another tree goes through."""
    tree = await world.tree("running", ["running", ("running", ["pending"])])
    other = await world.tree("running", ["pending"])
    holder, prober = await world.session("holder"), await world.session("prober")
    first, second = _patient(world, "first"), _patient(world, "second")
    await holder.lock(tree.root.id)

    async with first.running(first.request_cancel_execution_tree(tree.root.id)) as ahead:
        expect_equal((await ahead.until_waiting()).blocked_by, [holder.pid], "waits_for_another", "first waiter")
        async with second.running(second.request_cancel_execution_tree(tree.root.id)) as behind:
            await behind.until_waiting()
            for run in tree.descendants:
                await prober.expect_free(run.id, "descendant")
            third = _patient(world, "third")
            async with third.running(third.request_cancel_execution_tree(other.root.id)) as elsewhere:
                await elsewhere.until_ended_past(holder.pid)
                await elsewhere.result()
            await holder.release()
            await ahead.result()
            await behind.result()

    wanted = {run.id: "cancel_requested" if run.status == "running" else "cancelled" for run in tree.runs + other.runs}
    expect_equal((await world.snapshot()).statuses(), wanted, "not_cancelled", "statuses after the cancels")


def _patient(world: World, name: str) -> Participant:
    """An actor whose operations outlast the time for which the suite holds them up."""
    return world.actor(name, statement_timeout=PATIENCE)


async def _root_comes_first(world: World, tree: Tree) -> None:
    """Hold the root, and see the cancel wait for it alone with every descendant free; then let it end."""
    holder, prober = await world.session("holder"), await world.session("prober")
    canceller = _patient(world, "canceller")
    await holder.lock(tree.root.id)
    async with canceller.running(canceller.request_cancel_execution_tree(tree.root.id)) as cancel:
        waiting = await cancel.until_waiting()
        expect_equal(waiting.blocked_by, [holder.pid], "waits_for_another", "the cancel is blocked by")
        for run in tree.descendants:
            await prober.expect_free(run.id, "descendant")
        await holder.release()
        await cancel.result()


COUSINS: Final[Sequence[Branch]] = (
    ("running", [("running", [("pending", ["running"]), "running"]), "pending"]),
    ("running", [("running", [("running", ["pending", "running"])]), "completed", ("running", ["running"])]),
)
"""Fourteen runs on four levels below a root."""

COUSINS_MINUTES: Final = (0, 1, 5, 9, 13, 6, 2, 3, 4, 8, 12, 14, 10, 7, 11)
"""When the root and each run of COUSINS were created: cousins take turns, and one is older than its uncle."""

NEPHEWS: Final[Sequence[Branch]] = (
    ("running", ["pending", "cancel_requested"]),
    "pending",
    ("cancel_requested", ["running"]),
)


@claim("LOCK-2")
async def test_descendants_are_locked_level_by_level_among_cousins(world: World) -> None:
    """On four levels below the root, each active run is awaited in its turn, cousins by age."""
    tree = await world.tree(
        "running",
        COUSINS,
        insertion="reverse",
        created_at=lambda n: EPOCH + timedelta(minutes=COUSINS_MINUTES[n]),
    )
    await _each_in_its_turn(world, tree)


@claim("LOCK-2")
async def test_runs_of_equal_age_are_locked_by_id(world: World) -> None:
    """Where all runs were created at once, ids decide, though the rows were inserted in reverse."""
    tree = await world.tree("running", NEPHEWS, insertion="reverse", created_at=lambda _: EPOCH)
    await _each_in_its_turn(world, tree)


@claim("LOCK-2")
async def test_runs_are_locked_by_age_before_id(world: World) -> None:
    """Where ids, and the rows' places in the table, run against the runs' age, a microsecond of it decides."""
    tree = await world.tree("running", NEPHEWS, created_at=lambda n: EPOCH - timedelta(microseconds=n))
    await _each_in_its_turn(world, tree)


async def _each_in_its_turn(world: World, tree: Tree) -> None:
    """One cancel meets a holder at every active descendant in turn: see which rows are locked each time.

    The next run is held, which shows that it is free, before the one that the cancel waits for is given back.
    """
    order = [run for run in tree.descendants if run.status not in TERMINAL]
    ended = [run for run in tree.descendants if run.status in TERMINAL]
    prober = await world.session("prober")
    holder, relief = await world.session("holder"), await world.session("relief")
    canceller = _patient(world, "canceller")
    await holder.lock(order[0].id)
    async with canceller.running(canceller.request_cancel_execution_tree(tree.root.id)) as cancel:
        for place, following in enumerate([*order[1:], None]):
            await cancel.until_blocked_by(holder.pid)
            for run in order[:place]:
                await prober.expect_locked(run.id, f"while {order[place].id} is awaited, run before it")
            for run in [*order[place + 1 :], *ended]:
                await prober.expect_free(run.id, f"while {order[place].id} is awaited, run behind it, or ended,")
            if following is not None:
                await relief.hold_free(following.id, "next run")
            await holder.release()
            holder, relief = relief, holder
        await cancel.result()
    statuses = (await world.snapshot()).statuses()
    wanted = {run.id: "cancelled" if run.status == "pending" else "cancel_requested" for run in order}
    expect_equal({run.id: statuses[run.id] for run in order}, wanted, "not_cancelled", "statuses after the cancel")


@claim("LOCK-4")
async def test_terminal_descendants_are_neither_awaited_nor_changed(world: World) -> None:
    """With every terminal descendant held elsewhere the cancel does not wait, and reaches the active runs below."""
    tree = await world.tree(
        "running",
        [
            ("completed", ["running", ("failed", ["pending", "interrupted"])]),
            ("cancelled", [("interrupted", [("completed", ["running"])])]),
            ("pending", ["failed"]),
        ],
    )
    ended = [run for run in tree.runs if run.status in TERMINAL]
    before = await world.raw_runs()
    holder, canceller = await world.session("holder"), _patient(world, "canceller")
    for run in ended:
        await holder.lock(run.id)
    async with canceller.running(canceller.request_cancel_execution_tree(tree.root.id)) as cancel:
        await cancel.until_ended_past(holder.pid)
        await cancel.result()
    await holder.release()

    await _active_ones_are_reached(world, tree.active)
    after = await world.raw_runs()
    for run in ended:
        expect_equal(after[run.id], before[run.id], "terminal_changed", f"the row of {run.id}")


@claim("LOCK-4")
async def test_terminal_rows_stay_free_and_whole_while_the_cancel_is_open(world: World) -> None:
    """Inside the open transaction of a cancel nobody is kept from a terminal descendant; its root's row stays too."""
    tree = await world.tree("failed", [("interrupted", ["running"]), ("pending", ["completed", "cancelled"])])
    ended = [run for run in tree.runs if run.status in TERMINAL]
    before = await world.raw_runs()
    prober, canceller = await world.session("prober"), _patient(world, "canceller")
    async with canceller.transaction() as transaction:
        await transaction.request_cancel_execution_tree(tree.root.id)
        for run in ended[1:]:
            await prober.expect_free(run.id, "terminal run")
    await _active_ones_are_reached(world, tree.active)
    after = await world.raw_runs()
    for run in ended:
        expect_equal(after[run.id], before[run.id], "terminal_changed", f"the row of {run.id}")


@claim("LOCK-4")
async def test_run_that_ends_while_awaited_stays_and_those_below_are_reached(world: World) -> None:
    """The owner completes a child for which the cancel waits: its end stays, and its own subagents are cancelled."""
    tree = await world.tree("running", [("running", [("pending", ["running"]), "running"]), "pending"])
    child = tree.levels[1][0]
    await _finish_while_the_cancel_waits(world, tree, child)
    row = (await world.snapshot()).runs[child.id]
    result = {"answer": 42} if await world.keeps("result") else None
    expect_equal((row.status, row.result), ("completed", result), "terminal_changed", "the child's end")
    await _active_ones_are_reached(world, [run for run in tree.active if run.id != child.id])


@claim("LOCK-4")
async def test_root_that_ends_while_awaited_stays_and_those_below_are_reached(world: World) -> None:
    """The owner completes the root for which the cancel waits: its end stays, and its subagents are cancelled."""
    tree = await world.tree("running", [("running", ["pending"]), "pending"])
    await _finish_while_the_cancel_waits(world, tree, tree.root)
    row = (await world.snapshot()).runs[tree.root.id]
    result = {"answer": 42} if await world.keeps("result") else None
    expect_equal((row.status, row.result), ("completed", result), "terminal_changed", "the root's end")
    await _active_ones_are_reached(world, tree.active[1:])


async def _active_ones_are_reached(world: World, active: Sequence[Run]) -> None:
    """Each run that was active is cancelled, or its owner asked to."""
    statuses = (await world.snapshot()).statuses()
    wanted = {run.id: "cancelled" if run.status == "pending" else "cancel_requested" for run in active}
    expect_equal({run.id: statuses[run.id] for run in active}, wanted, "not_reached", "statuses after the cancel")


async def _finish_while_the_cancel_waits(world: World, tree: Tree, run: Run) -> CancelAnswer:
    """Queue the owner's completion of a running run, then the cancel of its tree, behind a holder; the answer.

    The lock queue is first in, first out: the completion commits while the cancel waits for the same row.
    """
    holder, owner, canceller = await world.session("holder"), _patient(world, "owner"), _patient(world, "canceller")
    await holder.lock(run.id)
    finish = owner.set_terminal_status(run.id, owner_token=run.owner_token or "", result={"answer": 42})
    async with owner.running(finish) as finishing:
        await finishing.until_blocked_by(holder.pid)
        async with canceller.running(canceller.request_cancel_execution_tree(tree.root.id)) as cancel:
            await cancel.until_waiting()
            await holder.release()
            expect_equal(await finishing.result(), Ended("completed"), "not_finished", "the owner's answer")
            answer: CancelAnswer = await cancel.result()
    return answer


@claim("LOCK-5")
async def test_cancel_returns_each_run_with_a_holder_once(world: World) -> None:
    """Of a tree with every kind of run, those with a token holder are returned, first and when asked again."""
    root = await world.run("running")
    held = [root]
    for status in ("running", "cancel_requested"):
        live, expired = await world.run(status, creator=root), await world.run(status, creator=root)
        await world.age(expired)
        without_lease = await world.run(status, creator=root, lease_expires_at=None, attempt=False)
        held += [live, expired, without_lease, await world.run(status, creator=live)]
    nobody = [
        await world.run("pending", creator=root),
        await world.run("running", creator=root, owner_token=None),
        await world.run("running", creator=root, owner_token=None, lease_expires_at=None),
    ]
    ended = [await world.run(status, creator=root) for status in sorted(TERMINAL)]

    canceller = _patient(world, "canceller")
    for time in ("first", "again"):
        answer = await canceller.request_cancel_execution_tree(root.id)
        _signals(answer, held, [*nobody, *ended], time)
    statuses = (await world.snapshot()).statuses()
    expect_equal({statuses[run.id] for run in held}, {"cancel_requested"}, "not_requested", "runs with a holder")
    expect_equal({statuses[run.id] for run in nobody}, {"cancelled"}, "not_cancelled", "runs that nobody holds")


def _signals(answer: CancelAnswer, held: Collection[Run], others: Collection[Run], time: str) -> None:
    """The answer names the held runs, each once, and nothing else."""
    told, owners = set(answer.to_signal), {run.id for run in held}
    expect(owners <= told, "owner_not_signalled", f"{time}: not to be signalled: {sorted(owners - told)}")
    needless = sorted((told - owners) & {run.id for run in others})
    expect(not needless, "needless_signal", f"{time}: held by nobody, or ended: {needless}")
    expect(told == owners, "foreign_signal", f"{time}: not of this tree: {sorted(told - owners)}")
    expect_equal(len(answer.to_signal), len(told), "signalled_twice", f"{time}: {answer.to_signal}; number of signals")


@claim("LOCK-5")
async def test_cancel_returns_nobody_outside_the_tree(world: World) -> None:
    """The runs above and beside the target, a run that resumes one of it, and other trees are no part of the answer."""
    tree = await world.tree("running", [("running", ["running"]), "running"])
    target, below = tree.levels[1][0], tree.levels[2][0]
    resumed = await world.run("interrupted", creator=target)
    await world.run("running", creator=resumed, run_type="resume")
    await world.tree("running", ["running"])
    answer = await _patient(world, "canceller").request_cancel_execution_tree(target.id)
    _signals(answer, [target, below], [resumed], "first")
    statuses = (await world.snapshot()).statuses()
    expect_equal(statuses[below.id], "cancel_requested", "not_requested", f"the status of {below.id}")


@claim("LOCK-5")
async def test_cancel_returns_no_run_that_ended_while_it_was_awaited(world: World) -> None:
    """An owner that completed its run while the cancel waited for it has nothing to be told; the others have."""
    tree = await world.tree("running", ["running", ("running", ["running"])])
    child = tree.levels[1][0]
    answer = await _finish_while_the_cancel_waits(world, tree, child)
    others = [run for run in tree.runs if run.id != child.id]
    _signals(answer, others, [child], "after the wait")
    statuses = (await world.snapshot()).statuses()
    expect_equal({statuses[run.id] for run in others}, {"cancel_requested"}, "not_requested", "the other runs")


@claim("LOCK-5")
async def test_cancel_of_a_cycle_returns_each_run_once(world: World) -> None:
    """Old data in which two runs are each other's creator: the cancel ends, and has met each of them once."""
    first = await world.run("running", creator=await world.run("running"))
    second = await world.run("running", creator=first)
    rows = await world.row_writer("UPDATE", ["created_by_run_id"])
    await rows.updates([{**asdict(first), "created_by_run_id": second.id}], ["created_by_run_id"])
    canceller = _patient(world, "canceller")
    async with canceller.running(canceller.request_cancel_execution_tree(first.id)) as cancel:
        answer = await cancel.result()
    _signals(answer, [first, second], [], "first")
    statuses = (await world.snapshot()).statuses()
    expect_equal({statuses[first.id], statuses[second.id]}, {"cancel_requested"}, "not_requested", "statuses")


@claim("LOCK-5")
async def test_cancel_returns_the_owner_of_a_run_of_illegal_shape(world: World) -> None:
    """A run that can't become cancel_requested is ended at once, and its owner still has to stop."""
    root = await world.run("running")
    held = [root]
    if Cap.run_shape in world.system.capabilities:
        held.append(await world.plant.illegal_run("running", creator=root, scope_conversation_id=None))
    answer = await _patient(world, "canceller").request_cancel_execution_tree(root.id)
    _signals(answer, held, [], "first")
    statuses = (await world.snapshot()).statuses()
    wanted = ["cancel_requested", "cancelled"][: len(held)]
    expect_equal([statuses[run.id] for run in held], wanted, "not_cancelled", "statuses after the cancel")
