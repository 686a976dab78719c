"""LOCK-7 and LOCK-10: how a wait for a lock ends, and that nothing stays behind when a transaction has ended."""

from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any

from leaseproof.capabilities import Cap
from leaseproof.checks import claim, expect, expect_equal
from leaseproof.system import CancelAnswer, IllegalShape, NewRun, Operations, Refused, TimedOut
from leaseproof.world.actors import Participant
from leaseproof.world.facts import Run
from leaseproof.world.trees import Branch, uniform
from leaseproof.world.waits import Pending
from leaseproof.world.world import World

SHORT = 0.2
"""Seconds: a statement time-out that a check can sit out."""

DEADLINE = 5.0
"""Seconds within which an operation with the short time-out has to have ended, on a busy machine too."""

Call = Callable[[Operations], Awaitable[Any]]


@claim("LOCK-7", slow=True)
async def test_blocked_cancel_times_out_without_a_trace_and_can_be_repeated(world: World) -> None:
    """Blocked at the root, or at the last descendant, a cancel ends by itself; no lock and no change is left."""
    timeouts = world.system.timeouts
    expect(timeouts.statement < timeouts.renewal, "timeout_above_renewal", f"declared: {timeouts}")
    tree = await world.tree("running", [("pending", ["running"]), ("running", ["pending", "running"])])
    before = await world.raw_runs()
    holder, prober = await world.session("holder"), await world.session("prober")
    hasty = world.actor("hasty", statement_timeout=SHORT)
    for held in (tree.runs[0], tree.runs[-1]):
        await holder.lock(held.id)
        async with hasty.running(hasty.outcome(_cancel(tree.root))) as cancel:
            _timed_out(await cancel.result(within=DEADLINE))
        expect_equal(await world.raw_runs(), before, "partial_effect", "rows after the time-out")
        for run in tree.runs:
            if run.id != held.id:
                await prober.expect_free(run.id, "after the time-out, run")
        await holder.release()
    await world.actor("patient").request_cancel_execution_tree(tree.root.id)
    await _all_are_cancelled(world, tree.runs)


@claim("LOCK-7")
async def test_many_short_waits_together_stay_within_the_timeout(world: World) -> None:
    """Each sibling in turn is held for less than the time-out: the cancel ends in time all the same."""
    await _times_out_though_each_wait_is_short(world, ["running"] * 6, SHORT)


@claim("LOCK-7", slow=True)
async def test_short_waits_on_every_level_together_stay_within_the_timeout(world: World) -> None:
    """Each level in turn is held for less than the time-out: the cancel ends in time all the same."""
    await _times_out_though_each_wait_is_short(world, [uniform(4, 1)], 2 * SHORT)


async def _times_out_though_each_wait_is_short(world: World, below: Sequence[Branch], timeout: float) -> None:
    """Hold the runs below a root one after another, each for half of the time-out."""
    tree = await world.tree("running", below)
    before = await world.raw_runs()
    holder, relief = await world.session("holder"), await world.session("relief")
    hasty = world.actor("hasty", statement_timeout=timeout)
    await holder.lock(tree.descendants[0].id)
    async with hasty.running(hasty.outcome(_cancel(tree.root))) as cancel:
        for following in [*tree.descendants[1:], None]:
            if await _ended_or_waiting_for(world, cancel, hasty, seconds=timeout / 2):
                break
            if following is not None:
                await relief.lock(following.id)
            await holder.release()
            holder, relief = relief, holder
        _timed_out(await cancel.result(within=DEADLINE))
    await holder.release()
    await relief.release()
    expect_equal(await world.raw_runs(), before, "partial_effect", "rows after the time-out")
    await world.actor("patient").request_cancel_execution_tree(tree.root.id)
    await _all_are_cancelled(world, tree.runs)


@claim("LOCK-7", slow=True)
async def test_cancel_times_out_by_default_before_a_renewal_is_due(world: World) -> None:
    """Nobody sets a time-out: the system's own ends the blocked cancel before its owners have to renew."""
    tree = await world.tree("running", ["running"])
    before = await world.raw_runs()
    holder, canceller = await world.session("holder"), world.actor("canceller")
    await holder.lock(tree.descendants[0].id)
    async with canceller.running(canceller.outcome(_cancel(tree.root))) as cancel:
        await cancel.until_blocked_by(holder.pid)
        _timed_out(await cancel.result(within=world.system.timeouts.renewal))
    await holder.release()
    expect_equal(await world.raw_runs(), before, "partial_effect", "rows after the time-out")
    await canceller.request_cancel_execution_tree(tree.root.id)
    await _all_are_cancelled(world, tree.runs)


def _cancel(root: Run) -> Callable[[Operations], Awaitable[CancelAnswer]]:
    return lambda operations: operations.request_cancel_execution_tree(root.id)


def _timed_out(outcome: object) -> None:
    """The cancel told its caller so, by the typed error."""
    expect(isinstance(outcome, TimedOut), "no_timeout", f"the blocked cancel ended in {outcome!r}")


async def _all_are_cancelled(world: World, runs: list[Run]) -> None:
    statuses = (await world.snapshot()).statuses()
    wanted = {run.id: "cancelled" if run.status == "pending" else "cancel_requested" for run in runs}
    expect_equal(statuses, wanted, "not_cancelled", "statuses after the repeated cancel")


async def _ended_or_waiting_for(world: World, cancel: Pending, actor: Participant, *, seconds: float) -> bool:
    """Wait until the operation has ended (True), or one of its sessions has waited so long for its present lock."""

    async def look() -> bool | None:
        if cancel.done():
            return True
        waited = await world.watch.waited(actor.session_name)
        return False if waited is not None and waited >= timedelta(seconds=seconds) else None

    return await world.watch.until(look, f"{actor.name} waiting for {seconds} s")


@claim("LOCK-10")
async def test_no_lock_outlives_the_transaction_of_a_lease_operation(world: World) -> None:
    """Claim, renewal, release, end and sweep hold their run while their transaction is open, and nothing after."""
    lease = timedelta(seconds=world.system.timeouts.lease)
    for ends_in in _ends(world):
        actor = world.actor(f"actor-{ends_in}")
        run = await world.run("pending")
        token = f"{run.id}-owner"
        claim_it = _call(Operations.mark_running, run.id, owner_token=token, worker_id="worker", lease=lease)
        await _nothing_outlives(world, actor, [run], claim_it, ends_in)
        run = await world.run("running")
        renew = _call(Operations.renew_lease, run.id, owner_token=run.owner_token, lease=2 * lease)
        await _nothing_outlives(world, actor, [run], renew, ends_in)
        run = await world.run("running")
        end = _call(Operations.set_terminal_status, run.id, owner_token=run.owner_token, status="completed")
        await _nothing_outlives(world, actor, [run], end, ends_in)
        if Cap.retry_release in world.system.capabilities:
            run = await world.run("running")
            release = _call(Operations.release_lease_for_retry, run.id, owner_token=run.owner_token)
            await _nothing_outlives(world, actor, [run], release, ends_in)
        if Cap.reconcile in world.system.capabilities:
            run = await world.run("running")
            await world.age(run)
            await _nothing_outlives(world, actor, [run], _call(Operations.reconcile_expired_leases), ends_in)
        if Cap.creation_service in world.system.capabilities:
            chat = NewRun("chat", uid="user-1", conversation_id=await world.plant.conversation("user-1"))
            await _nothing_outlives(world, actor, [], _call(Operations.create_run, chat), ends_in)


@claim("LOCK-10")
async def test_no_lock_outlives_an_operation_that_is_refused(world: World) -> None:
    """Another's run is asked for, an active one is resumed, one of illegal shape is renewed: nothing stays held."""
    system, run, actor = world.system, await world.run("running"), world.actor("actor")
    lease = timedelta(seconds=system.timeouts.lease)
    another = f"{run.id}-another"
    refused: dict[str, Call] = {
        "claim": _call(Operations.mark_running, run.id, owner_token=another, worker_id="worker", lease=lease),
        "renewal": _call(Operations.renew_lease, run.id, owner_token=another, lease=lease),
        "end": _call(Operations.set_terminal_status, run.id, owner_token=another, status="completed"),
    }
    if Cap.retry_release in system.capabilities:
        refused["release"] = _call(Operations.release_lease_for_retry, run.id, owner_token=another)
    if Cap.creation_service in system.capabilities:
        refused["creation"] = _call(Operations.create_run, NewRun("resume", uid="user-1", created_by_run_id=run.id))
    if Cap.run_shape in system.capabilities:
        illegal = await world.plant.illegal_run("running")
        renew = _call(Operations.renew_lease, illegal.id, owner_token=illegal.owner_token, lease=lease)
        refused["renewal in illegal shape"] = renew
    before = await world.digest()
    for name, call in refused.items():
        answer = await actor.outcome(call)
        expect(isinstance(answer, Refused | IllegalShape), "not_refused", f"{name} was answered {answer!r}")
        await _holds_nothing(world, actor, f"refused {name}")
    expect_equal(await world.digest(), before, "refused_and_written", "rows after what was refused")


@claim("LOCK-10")
async def test_no_lock_outlives_the_transaction_of_a_creation_in_a_tree(world: World) -> None:
    """A subagent, and a run that resumes another, are created: nothing stays held of them or of their creators."""
    if Cap.creation_service not in world.system.capabilities:
        await _nothing_outlives(world, world.actor("actor"), [], _cancel(await world.run("running")), "commit")
        return
    creator, interrupted = await world.run("running"), await world.run("interrupted")
    child = await world.plant.conversation("user-1")
    subagent = NewRun(
        "subagent",
        uid="user-1",
        conversation_id=child,
        scope_conversation_id=creator.scope_conversation_id,
        created_by_run_id=creator.id,
        owner_token=creator.owner_token,
        subagent_relation_id=await world.plant.relation(creator.conversation_id or "", child, "user-1"),
    )
    resume = NewRun("resume", uid="user-1", created_by_run_id=interrupted.id)
    for ends_in in _ends(world):
        for new in (subagent, resume):
            create = _call(Operations.create_run, new)
            await _nothing_outlives(world, world.actor(f"{ends_in}-{new.run_type}"), [], create, ends_in)


@claim("LOCK-10", slow=True)
async def test_no_lock_outlives_the_transaction_of_a_cancel(world: World) -> None:
    """A cancel holds its tree while its transaction is open, and nothing after it, be it ended by a time-out."""
    actor = world.actor("actor")
    for ends_in in _ends(world):
        tree = await world.tree("running", ["pending", ("running", ["running"])])
        await _nothing_outlives(world, actor, tree.runs, _cancel(tree.root), ends_in)
    if Cap.statement_timeout in world.system.capabilities:
        tree = await world.tree("running", ["running"])
        hasty, holder = world.actor("hasty", statement_timeout=SHORT), await world.session("holder")
        await holder.lock(tree.descendants[0].id)
        async with hasty.running(hasty.outcome(_cancel(tree.root))) as cancel:
            await cancel.result(within=DEADLINE)
        await _holds_nothing(world, hasty, "time-out")
        await holder.release()


def _ends(world: World) -> tuple[str, ...]:
    """The ways in which a transaction of the suite's can end; operations with their own only commit."""
    return ("commit", "rollback") if world.promises(Cap.caller_transaction) else ("commit",)


def _call(operation: Callable[..., Awaitable[Any]], *args: Any, **kwargs: Any) -> Call:
    """The operation with these arguments, on whatever transaction it is given."""
    return lambda operations: getattr(operations, operation.__name__)(*args, **kwargs)


async def _nothing_outlives(world: World, actor: Participant, runs: list[Run], call: Call, ends_in: str) -> None:
    """Run the operation in a transaction that ends so: the runs are held inside of it, and nothing is after it."""
    prober = await world.session("prober")
    before = await world.raw_runs()
    async with actor.transaction() as transaction:
        await transaction.outcome(call)
        if world.promises(Cap.caller_transaction):
            for run in runs:
                await prober.expect_locked(run.id, "inside the transaction, run")
        if ends_in == "rollback":
            transaction.rollback()
    await _holds_nothing(world, actor, ends_in)
    for run in runs:
        await prober.expect_free(run.id, f"after the {ends_in}, run")
    changed = await world.raw_runs() != before
    expect(changed or ends_in == "rollback", "no_effect", "the committed transaction changed no row")
    expect(not changed or ends_in == "commit", "survived_rollback", "the rolled back transaction changed rows")


async def _holds_nothing(world: World, actor: Participant, after: str) -> None:
    """The actor's sessions hold no lock, advisory ones included, and have no transaction open."""
    left = await world.watch.holdings(actor.session_name)
    expect(not any(line.startswith("transaction") for line in left), "open_transaction", f"after the {after}: {left}")
    expect(not left, "lock_left", f"after the {after}: {left}")
