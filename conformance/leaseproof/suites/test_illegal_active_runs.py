"""SHAPE 5 and 6: active runs of an illegal shape, left from before the constraint: what can be done with them."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from psycopg import sql

from leaseproof.checks import claim, expect, expect_equal, refute
from leaseproof.suites.illegal_runs import (
    BELOW,
    FEW,
    INVALID_SCOPE,
    LEASE_EXPIRED,
    Surroundings,
    long_ago,
    plant_every_kind,
    plant_kinds,
)
from leaseproof.suites.shapes import CHECK_VIOLATION
from leaseproof.system import Ended, IllegalShape, Operations
from leaseproof.world.facts import ACTIVE, TERMINAL, Run
from leaseproof.world.observe import Snapshot
from leaseproof.world.sessions import Session
from leaseproof.world.world import World

Call = Callable[[Operations], Awaitable[Any]]

BATCH = 5
ROUNDS = 4
"""Batches that a queue or sweep headed by BATCH illegal runs may take until the legal run behind them is served."""

LEASE = timedelta(seconds=30)

NO_OWNER: dict[str, Any] = {"owner_token": None, "lease_expires_at": None}
NO_SCOPE: dict[str, Any] = {"scope_conversation_id": None}
UNRELATED = {"error_message": "noted", "retry_count": 1, "worker_id": "another-worker"}


async def expect_ended(world: World, planted: dict[str, Run], status: str, error_type: str | None = None) -> Snapshot:
    """Each run has ended so (for a reason that is checked where it is given), without an owner or an open attempt."""
    seen = await world.snapshot()
    for kind, run in planted.items():
        stored = seen.runs[run.id]
        expect_equal(stored.status, status, "not_ended", kind)
        expect(error_type in (None, stored.error_type), "wrong_error", f"{kind}: {stored.error_type}, not {error_type}")
        expect_equal((stored.owner_token, stored.lease_expires_at), (None, None), "still_owned", kind)
        expect(seen.open_attempt(run.id) is None, "open_attempt", f"the attempt of a {kind} is open")
    return seen


def expect_outcome(seen: Snapshot, planted: dict[str, Run], outcome: str) -> None:
    """The attempt that each run had when it was planted is closed so, and none was added."""
    for kind, run in planted.items():
        expect_equal([a.outcome for a in seen.attempts_of(run.id)], [outcome], "wrong_outcome", f"attempts of a {kind}")


class Table:
    """Updates of the run table by plain SQL of the owner's."""

    def __init__(self, world: World, session: Session) -> None:
        self._table = world.run_table
        self._session = session

    def _update(self, fields: dict[str, Any]) -> sql.Composed:
        sets = [
            sql.SQL("{} = {}").format(sql.Identifier(self._table.columns[field]), sql.Placeholder(field))
            for field in fields
        ]
        return sql.SQL("UPDATE {} SET {} WHERE {} = %(the_run)s").format(
            sql.Identifier(*self._table.name.split(".")),
            sql.SQL(", ").join(sets),
            sql.Identifier(self._table.columns["id"]),
        )

    async def refusal(self, run: Run, **fields: Any) -> str | None:
        """The SQLSTATE that refuses this update; rolled back either way."""
        return await self._session.sqlstate_of(self._update(fields), fields | {"the_run": run.id})

    async def update(self, run: Run, **fields: Any) -> None:
        """Commit this update."""
        await self._session.execute(self._update(fields), fields | {"the_run": run.id})
        await self._session.commit()


@claim("SHAPE-5")
async def test_illegal_active_run_can_be_ended_by_maintenance_and_written_in_no_other_way(world: World) -> None:
    """Plain SQL of the owner's on an illegal run of each type and active status."""
    around = await Surroundings.plant(world)
    table = Table(world, await world.session("maintenance"))
    for status in sorted(ACTIVE):
        runs = await plant_kinds(FEW, world, around, status, attempt=False)
        expect(bool(runs), "legal_lost", "no illegal run could be planted")
        for kind, run in runs.items():
            others = [{"status": other} for other in sorted(ACTIVE - {status})]
            columns = [{field: value} for field, value in UNRELATED.items()]
            for change in others + columns:
                refusal = await table.refusal(run, **change)
                expect(refusal is not None, "illegal_written", f"a {status} {kind} took {change}")
                expect_equal(refusal, CHECK_VIOLATION, "refused_otherwise", f"a {status} {kind}, {change}")
            ending = {"owner_token": None, "lease_expires_at": None, "finished_at": await world.plant.now()}
            for end in sorted(TERMINAL):
                refusal = await table.refusal(run, status=end, **ending)
                expect_equal(refusal, None, "maintenance_refused", f"a {status} {kind} to {end}")
            await table.update(run, status="failed", **ending)
            await table.update(run, **UNRELATED)
        await expect_ended(world, runs, "failed")


@dataclass(frozen=True)
class Tried:
    """What one operation answered on an illegal run, and what it made of the row."""

    what: str
    answer: object
    written: bool
    status: str | None

    def expect_typed_error(self) -> None:
        """IllegalShape, and no trace."""
        expect(isinstance(self.answer, IllegalShape), "no_typed_error", f"{self.what} answered {self.answer!r}")
        expect(not self.written, "illegal_written", self.what)

    def expect_typed_error_or_end(self) -> None:
        """IllegalShape and no trace, or the run has ended and the answer says so."""
        match self.answer:
            case Ended(status=said, illegal=True):
                expect_equal(said, self.status, "not_ended", self.what)
                expect(self.status in TERMINAL, "not_ended", f"{self.what}: the run is {self.status}")
            case _:
                self.expect_typed_error()


async def try_each(world: World, what: str, planted: dict[str, Run], call: Callable[[Run], Call]) -> list[Tried]:
    """The operation on each of the runs, each time in a transaction of its own."""
    worker = world.actor("worker")
    before = await world.raw_runs()
    answers = {kind: await worker.outcome(call(run)) for kind, run in planted.items()}
    after, stored = await world.raw_runs(), (await world.snapshot()).runs
    return [
        Tried(f"{what} of a {run.status} {kind}", answers[kind], after[run.id] != before[run.id], stored[run.id].status)
        for kind, run in planted.items()
    ]


def renewal(run: Run) -> Call:
    """By the run's owner."""
    return lambda tx: tx.renew_lease(run.id, owner_token=str(run.owner_token), lease=LEASE)


def release(run: Run) -> Call:
    """By the run's owner."""
    return lambda tx: tx.release_lease_for_retry(run.id, owner_token=str(run.owner_token))


def refresh(run: Run) -> Call:
    """A claim by the run's live owner."""
    return lambda tx: tx.mark_running(run.id, owner_token=str(run.owner_token), worker_id="worker", lease=LEASE)


def new_claim(run: Run) -> Call:
    """A claim with a token of its own."""
    return lambda tx: tx.mark_running(run.id, owner_token=f"{run.id}-next", worker_id="worker", lease=LEASE)


@claim("SHAPE-5", slow=True)
async def test_operations_on_an_illegal_run_answer_with_a_typed_error_or_end_it(world: World) -> None:
    """Renewal, claim and release of every kind of illegal run: never a bare 23514."""
    around = await Surroundings.plant(world)
    expired = await plant_every_kind(world, around, "running", **await long_ago(world))
    running = await plant_every_kind(world, around, "running")
    pending = await plant_every_kind(world, around, "pending")
    asked = await plant_kinds(FEW, world, around, "cancel_requested")
    for tried in [
        *await try_each(world, "renewal", running, renewal),
        *await try_each(world, "renewal", asked, renewal),
    ]:
        tried.expect_typed_error()
    refreshed = await try_each(world, "refresh", running, refresh)
    live = {kind: run for (kind, run), tried in zip(running.items(), refreshed, strict=True) if not tried.written}
    for tried in [
        *refreshed,
        *await try_each(world, "release", live, release),
        *await try_each(world, "claim", pending, new_claim),
        *await try_each(world, "claim", expired, new_claim),
    ]:
        tried.expect_typed_error_or_end()


@claim("SHAPE-5")
async def test_illegal_run_can_be_locked_and_referred_to(world: World) -> None:
    """Its row takes the lock of the operations; a subagent and an attempt of it are inserted."""
    around = await Surroundings.plant(world)
    holder, prober = await world.session("holder"), await world.session("prober")
    for kind, run in (await plant_every_kind(world, around, "running", attempt=False)).items():
        await holder.lock(run.id)
        await prober.expect_locked(run.id, f"running {kind}")
        await holder.release()
        child = await world.run("pending", creator=as_creator(run, around.creator))
        if world.plant.keeps_attempts:
            await world.plant.attempt(run)
        seen = await world.snapshot()
        expect_equal(seen.runs[child.id].created_by_run_id, run.id, "not_referred_to", kind)
        if world.plant.keeps_attempts:
            expect_equal(len(seen.attempts_of(run.id)), 1, "not_referred_to", f"attempts of a {kind}")


@claim("SHAPE-6")
async def test_claim_ends_illegal_runs_and_reports_them(world: World) -> None:
    """Pending ones, expired ones with an attempt and without, pending ones whose last attempt was left open."""
    around = await Surroundings.plant(world)
    past = await long_ago(world)
    pending = await plant_every_kind(world, around, "pending")
    expired = await plant_every_kind(world, around, "running", **past)
    ownerless = await plant_kinds(FEW, world, around, "running", **past | NO_OWNER)
    left_open = await plant_kinds(FEW, world, around, "pending")
    if world.plant.keeps_attempts:
        for run in left_open.values():
            await world.plant.attempt(run, owner_token=f"{run.id}-gone", started_at=past["started_at"])
    for planted in (pending, expired, ownerless, left_open):
        for tried in await try_each(world, "claim", planted, new_claim):
            expect_equal(tried.answer, Ended("failed", illegal=True), "not_reported", tried.what)
        seen = await expect_ended(world, planted, "failed", INVALID_SCOPE)
    if world.plant.keeps_attempts:
        expect_outcome(seen, expired, "lease_expired")
        expect_outcome(seen, left_open, "lease_expired")
        added = [kind for kind, run in [*pending.items(), *ownerless.items()] if seen.attempts_of(run.id)]
        expect(not added, "attempt_invented", f"runs that were never claimed got attempts: {added}")


@claim("SHAPE-6")
async def test_release_ends_an_illegal_run_and_reports_it(world: World) -> None:
    """By its live owner: a running one fails, one whose cancel was requested is cancelled."""
    around = await Surroundings.plant(world)
    running = await plant_every_kind(world, around, "running")
    asked = await plant_kinds(FEW, world, around, "cancel_requested")
    for tried in await try_each(world, "release", running, release):
        expect_equal(tried.answer, Ended("failed", illegal=True), "not_reported", tried.what)
    for tried in await try_each(world, "release", asked, release):
        expect(isinstance(tried.answer, Ended), "not_reported", f"{tried.what} answered {tried.answer!r}")
        expect_equal(tried.status, "cancelled", "not_ended", tried.what)
    seen = await expect_ended(world, running, "failed", INVALID_SCOPE)
    if world.plant.keeps_attempts:
        expect_outcome(seen, running, "failed")
        expect_outcome(seen, asked, "cancelled")


@claim("SHAPE-6")
async def test_reconcile_ends_illegal_runs_and_the_rest_of_the_sweep(world: World) -> None:
    """One sweep over expired runs, legal and not: each ends as the table says, and the illegal ones are reported."""
    around = await Surroundings.plant(world)
    past = await long_ago(world)
    running = await plant_every_kind(world, around, "running", **past)
    asked = await plant_kinds(FEW, world, around, "cancel_requested", **past)
    ownerless = await plant_kinds(FEW, world, around, "running", **past | NO_OWNER)
    live = await plant_kinds(FEW, world, around, "running")
    legal = {status: await world.run(status, **past) for status in ("running", "cancel_requested")}
    before = await world.raw_runs()

    answer = await world.actor("reconciler").reconcile_expired_leases()

    failed, cancelled = [*running.values(), *ownerless.values()], list(asked.values())
    wanted = {run.id: (str(run.status), "failed") for run in [*failed, legal["running"]]}
    wanted |= {run.id: (str(run.status), "cancelled") for run in [*cancelled, legal["cancel_requested"]]}
    expect_equal(dict(answer.runs), wanted, "not_reported", "what the sweep says that it did")
    expect_equal(answer.ended_illegal, {run.id for run in failed + cancelled}, "not_reported", "illegal runs ended")
    await expect_ended(world, running, "failed", INVALID_SCOPE)
    await expect_ended(world, ownerless, "failed", INVALID_SCOPE)
    await expect_ended(world, {"legal run": legal["running"]}, "failed", LEASE_EXPIRED)
    seen = await expect_ended(world, asked | {"legal run": legal["cancel_requested"]}, "cancelled")
    if world.plant.keeps_attempts:
        expect_outcome(seen, running, "lease_expired")
        expect_outcome(seen, asked, "lease_expired")
    after = await world.raw_runs()
    for kind, run in live.items():
        expect_equal(after[run.id], before[run.id], "live_lease_ended", f"{kind} whose lease is live")


@claim("SHAPE-6")
async def test_reconcile_in_batches_goes_on_behind_illegal_runs(world: World) -> None:
    """A batch's worth of illegal runs with the oldest leases does not keep the legal one behind from its end."""
    past = await long_ago(world)
    older = past | {"lease_expires_at": past["heartbeat_at"]}
    illegal = {f"illegal run {n}": await world.plant.illegal_run("running", **NO_SCOPE, **older) for n in range(BATCH)}
    legal = await world.run("running", **past)
    reconciler = world.actor("reconciler")
    for _ in range(ROUNDS):
        await reconciler.reconcile_expired_leases(limit=BATCH)
        if (await world.snapshot()).runs[legal.id].status == "failed":
            break
    else:
        refute("starved", f"after {ROUNDS} sweeps of {BATCH} the legal run behind {BATCH} illegal ones is not ended")
    await expect_ended(world, illegal, "failed", INVALID_SCOPE)


@claim("SHAPE-6")
async def test_fetch_next_goes_on_behind_illegal_runs(world: World) -> None:
    """A batch's worth of illegal runs at the head of the queue does not keep the legal one behind from a worker."""
    for _ in range(BATCH):
        await world.plant.illegal_run("pending")
    legal = await world.run("pending")
    worker = world.actor("worker")
    for _ in range(ROUNDS):
        for run_id in await worker.fetch_next(limit=BATCH):
            await worker.mark_running(run_id, owner_token=f"{run_id}-owner")
        stored = (await world.snapshot()).runs[legal.id]
        if stored.status == "running":
            break
    else:
        refute("starved", f"after {ROUNDS} batches of {BATCH} the legal run behind {BATCH} illegal ones is not claimed")
    expect_equal(stored.owner_token, f"{legal.id}-owner", "not_claimed", "owner of the legal run")


@claim("SHAPE-6")
async def test_cancel_ends_illegal_runs_of_a_tree_and_the_rest(world: World) -> None:
    """Illegal subagents with a holder and without, between legal ones: all end or are asked, none blocks the cancel."""
    around = await Surroundings.plant(world)
    root = around.creator
    held = await plant_kinds(BELOW, world, around, "running")
    asked = await plant_kinds(BELOW, world, around, "cancel_requested")
    expired = await plant_kinds(BELOW, world, around, "running", **await long_ago(world))
    unheld = await plant_kinds(BELOW, world, around, "pending")
    ownerless = await plant_kinds(BELOW, world, around, "running", **NO_OWNER)
    working = [await world.run("running", creator=as_creator(run, root)) for run in held.values()]
    waiting = [await world.run("pending", creator=as_creator(run, root)) for run in unheld.values()]
    holders = [*held.values(), *asked.values(), *expired.values()]

    answer = await world.actor("canceller").request_cancel_execution_tree(root.id)

    told = {run.id for run in [root, *holders, *working]}
    expect_equal(set(answer.to_signal), told, "wrong_signals", "runs to signal")
    illegal = {run.id for run in [*holders, *unheld.values(), *ownerless.values()]}
    reported = {run.id for run in holders} <= answer.ended_illegal <= illegal
    expect(reported, "not_reported", f"ended for their shape: {sorted(answer.ended_illegal)}")
    for planted in (held, asked, expired, unheld, ownerless):
        seen = await expect_ended(world, planted, "cancelled")
    statuses = {run.id: seen.runs[run.id].status for run in [root, *working, *waiting]}
    wanted = {run.id: "cancel_requested" for run in [root, *working]} | {run.id: "cancelled" for run in waiting}
    expect_equal(statuses, wanted, "rest_not_cancelled", "legal runs of the tree")
    if world.plant.keeps_attempts:
        for planted in (held, asked, expired):
            expect_outcome(seen, planted, "cancelled")


@claim("SHAPE-6")
async def test_cancel_ends_an_illegal_root(world: World) -> None:
    """Every kind of illegal run as the root of its tree, with a holder: cancelled at once, reported and signalled."""
    around = await Surroundings.plant(world)
    roots = await plant_every_kind(world, around, "running")
    canceller = world.actor("canceller")
    for kind, run in roots.items():
        answer = await canceller.request_cancel_execution_tree(run.id)
        expect_equal(answer.to_signal, (run.id,), "wrong_signals", f"{kind}: runs to signal")
        expect_equal(answer.ended_illegal, {run.id}, "not_reported", f"{kind}: ended for their shape")
    seen = await expect_ended(world, roots, "cancelled")
    if world.plant.keeps_attempts:
        expect_outcome(seen, roots, "cancelled")


def as_creator(run: Run, root: Run) -> Run:
    """The illegal run as a creator whose subagents are legal: they take conversation and scope from the root."""
    return replace(
        run, conversation_id=root.conversation_id, scope_conversation_id=root.scope_conversation_id, uid=root.uid
    )
