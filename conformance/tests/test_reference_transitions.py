"""The table of transitions, row by row: operation and state before, answer and state after."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest

from leaseproof.system import CancelAnswer, Claimed, Ended, IllegalShape, Operations, Refused, Renewed, Swept
from leaseproof.world.actors import Participant
from leaseproof.world.facts import Run
from leaseproof.world.world import World

pytestmark = pytest.mark.anyio

LEASE = timedelta(seconds=30)
Caller = Operations | Participant
Operation = Callable[[Caller, Run, str], Awaitable[Any]]


async def claim(actor: Caller, run: Run, token: str) -> Any:
    return await actor.mark_running(run.id, owner_token=token, worker_id="w", lease=LEASE)


async def renew(actor: Caller, run: Run, token: str) -> Any:
    return await actor.renew_lease(run.id, owner_token=token, lease=LEASE)


async def release(actor: Caller, run: Run, token: str) -> Any:
    return await actor.release_lease_for_retry(run.id, owner_token=token, error_type="oops")


async def finish(actor: Caller, run: Run, token: str) -> Any:
    return await actor.set_terminal_status(run.id, owner_token=token, status="failed", error_type="oops", result=[1])


async def reconcile(actor: Caller, run: Run, token: str) -> Any:
    return await actor.reconcile_expired_leases()


async def cancel(actor: Caller, run: Run, token: str) -> Any:
    return await actor.request_cancel_execution_tree(run.id)


@dataclass(frozen=True)
class Case:
    """`before`: status, with "expired", "illegal" or "ownerless" behind it. `attempt`: how attempt 1 ends up."""

    operation: Operation
    before: str
    token: str  # "mine" is the owner's
    answer: type | tuple[type, str]
    after: str
    attempt: str | None
    error: str | None = None
    fields: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.operation.__name__}-{self.before}-{self.token}".replace(" ", "_")


REFUSED = [
    *[(claim, before, token) for before in ("cancel_requested", "completed") for token in ("mine", "new")],
    (claim, "running", "new"),
    (claim, "running expired", "mine"),
    *[
        (operation, before, token)
        for operation in (renew, release, finish)
        for before, token in [
            ("pending", "new"),
            ("running", "new"),
            ("running expired", "mine"),
            ("running expired", "new"),
            ("running ownerless", "new"),
            ("cancel_requested", "new"),
            ("cancel_requested expired", "mine"),
            ("failed", "mine"),
        ]
    ],
]
CASES = [
    Case(claim, "pending", "new", Claimed, "running", "open"),
    Case(claim, "running", "mine", Claimed, "running", "open"),
    Case(claim, "running expired", "new", Claimed, "running", "lease_expired"),
    Case(claim, "running ownerless", "new", Claimed, "running", "open"),
    Case(claim, "pending illegal", "new", Ended, "failed", None, "invalid_runtime_scope"),
    Case(claim, "running expired illegal", "new", Ended, "failed", "lease_expired", "invalid_runtime_scope"),
    Case(claim, "running illegal", "new", Refused, "running", "open"),
    Case(claim, "running illegal", "mine", IllegalShape, "running", "open"),
    Case(renew, "running", "mine", Renewed, "running", "open"),
    Case(renew, "cancel_requested", "mine", Renewed, "cancel_requested", "open"),
    Case(renew, "running illegal", "mine", IllegalShape, "running", "open"),
    Case(renew, "cancel_requested illegal", "mine", IllegalShape, "cancel_requested", "open"),
    Case(renew, "pending illegal", "new", IllegalShape, "pending", None),
    Case(release, "running", "mine", Ended, "pending", "retry_released"),
    Case(release, "cancel_requested", "mine", Ended, "cancelled", "cancelled", "oops"),
    Case(release, "running illegal", "mine", Ended, "failed", "failed", "invalid_runtime_scope"),
    Case(finish, "running", "mine", Ended, "failed", "failed", "oops"),
    Case(finish, "cancel_requested", "mine", Ended, "cancelled", "cancelled", "oops"),
    Case(finish, "running illegal", "mine", Ended, "failed", "failed", "oops"),
    Case(reconcile, "running expired", "none", Swept, "failed", "lease_expired", "worker_lease_expired"),
    Case(reconcile, "running ownerless", "none", Swept, "failed", None, "worker_lease_expired"),
    Case(reconcile, "cancel_requested expired", "none", Swept, "cancelled", "lease_expired"),
    Case(reconcile, "running expired illegal", "none", Swept, "failed", "lease_expired", "invalid_runtime_scope"),
    Case(reconcile, "cancel_requested expired illegal", "none", Swept, "cancelled", "lease_expired"),
    *[Case(reconcile, before, "none", Swept, before, "open") for before in ("running", "cancel_requested")],
    *[Case(reconcile, before, "none", Swept, before.split()[0], None) for before in ("pending", "pending illegal")],
    Case(cancel, "pending", "none", CancelAnswer, "cancelled", None),
    Case(cancel, "pending illegal", "none", CancelAnswer, "cancelled", None),
    Case(cancel, "running ownerless", "none", CancelAnswer, "cancelled", None),
    Case(cancel, "running", "none", CancelAnswer, "cancel_requested", "open"),
    Case(cancel, "running expired", "none", CancelAnswer, "cancel_requested", "open"),
    Case(cancel, "cancel_requested", "none", CancelAnswer, "cancel_requested", "open"),
    Case(cancel, "running illegal", "none", CancelAnswer, "cancelled", "cancelled"),
    Case(cancel, "cancel_requested illegal", "none", CancelAnswer, "cancelled", "cancelled"),
    Case(cancel, "interrupted", "none", CancelAnswer, "interrupted", "interrupted"),
    *[Case(operation, before, token, Refused, before.split()[0], "unchanged") for operation, before, token in REFUSED],
]


async def planted(world: World, before: str) -> Run:
    status, *how = before.split()
    fields: dict[str, Any] = {}
    if "ownerless" in how:
        fields = {"owner_token": None, "lease_expires_at": None, "attempt": False}
    elif "expired" in how:
        fields = {"lease_expires_at": await world.plant.now() - LEASE}
    if "illegal" in how:
        return await world.plant.illegal_run(status, scope_conversation_id=None, **fields)
    return await world.run(status, **fields)


@pytest.mark.parametrize("case", CASES, ids=str)
async def test_transition(reference_world: World, case: Case) -> None:
    run = await planted(reference_world, case.before)
    rows = await reference_world.digest()
    actor = reference_world.actor("actor")
    token = str(run.owner_token) if case.token == "mine" else "new"
    answer = await actor.outcome(lambda tx: case.operation(tx, run, token))

    after = await reference_world.snapshot()
    stored, attempts = after.runs[run.id], after.attempts_of(run.id)
    first = attempts[0] if attempts else None
    assert isinstance(answer, case.answer), answer
    assert stored.status == case.after
    if isinstance(answer, (Refused, IllegalShape)):
        assert await reference_world.digest() == rows
        return
    assert stored.error_type == case.error
    assert (first and (first.outcome or "open")) == case.attempt
    if isinstance(answer, Ended):
        assert (answer.status, answer.illegal) == (case.after, case.error == "invalid_runtime_scope")
    if isinstance(answer, (Swept, CancelAnswer)):
        changed = (run.status, case.after)
        assert answer.runs.get(run.id, changed) == changed
        ended = stored.status != run.status and "illegal" in case.before
        assert answer.ended_illegal == ({run.id} if ended else set())
    if isinstance(answer, CancelAnswer):
        assert answer.to_signal == ((run.id,) if run.owner_token else ())
    owned = stored.status in ("running", "cancel_requested")
    assert (stored.owner_token is not None) == owned
    assert [(a.owner_token, a.lease_expires_at) for a in attempts if a.finished_at is None] == (
        [(stored.owner_token, stored.lease_expires_at)] if owned else []
    )


async def test_a_decision_is_made_by_the_clock_after_the_wait(reference_world: World) -> None:
    """A lease that ends while its renewal waits for the row is over when the renewal gets it."""
    soon = await reference_world.plant.now() + timedelta(milliseconds=300)
    run = await reference_world.run("running", lease_expires_at=soon)
    holder, clock = await reference_world.session("holder"), await reference_world.session("clock")
    await holder.lock(run.id)
    actor = reference_world.actor("late")

    async with actor.running(renew(actor, run, str(run.owner_token))) as renewal:
        await renewal.until_waiting()
        await clock.execute("SELECT pg_sleep_until(%(soon)s)", {"soon": soon})
        await holder.release()
        assert await renewal.result() == Refused("not_the_owner")


async def test_a_spent_token_is_refused_whatever_happened_since(reference_world: World) -> None:
    run = await reference_world.run("pending")
    actor = reference_world.actor("actor")
    await claim(actor, run, "spent")
    await release(actor, run, "spent")
    assert await claim(actor, run, "spent") == Refused("token_spent")
    assert await claim(actor, run, "fresh") == Claimed("fresh", 2)


async def test_a_renewal_never_shortens_a_lease(reference_world: World) -> None:
    run = await reference_world.run("running")
    actor = reference_world.actor("actor")
    assert isinstance(
        await actor.renew_lease(run.id, owner_token=str(run.owner_token), lease=timedelta(seconds=1)), Renewed
    )
    after = await reference_world.snapshot()
    assert after.runs[run.id].lease_expires_at == run.lease_expires_at
    assert after.attempts[run.id, 1].lease_expires_at == run.lease_expires_at


async def test_many_claims_at_once_leave_one_owner_and_one_attempt(reference_world: World) -> None:
    run = await reference_world.run("pending")
    actors = [reference_world.actor(f"claimer-{n}") for n in range(8)]
    answers = await asyncio.gather(*(claim(actor, run, actor.name) for actor in actors))
    (winner,) = [answer for answer in answers if isinstance(answer, Claimed)]
    after = await reference_world.snapshot()
    assert [(a.attempt_no, a.owner_token) for a in after.attempts_of(run.id)] == [(1, winner.owner_token)]


async def test_a_tree_of_many_runs_is_cancelled_in_one_go(reference_world: World) -> None:
    tree = await reference_world.tree("running", [("completed", ["running", "pending"]), ("running", ["failed"])])
    answer = await reference_world.actor("actor").request_cancel_execution_tree(tree.root.id)
    after = (await reference_world.snapshot()).statuses()
    assert {run.id: (run.status, after[run.id]) for run in tree.runs} == answer.runs
    assert answer.to_signal == tuple(run.id for run in tree.runs if run.status == "running")
