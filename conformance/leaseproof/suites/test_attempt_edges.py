"""ATTEMPT-2 to 7 and 10 at their edges: leases that ended a moment ago, each field that a call has to keep or write,
and owners from before attempts.
"""

from dataclasses import asdict
from datetime import timedelta

from leaseproof.checks import claim, expect, expect_equal
from leaseproof.suites.ownership import LONG, expect_owned, expect_refused, held_statuses, outcomes, past, token_of
from leaseproof.system import AttemptsRead, Claimed, Ended, Renewed
from leaseproof.world.facts import Attempt, Run
from leaseproof.world.world import World

LIVENESS = ("lease_expires_at", "heartbeat_at")


def fates(world: World, after: str) -> list[tuple[str, str]]:
    """Each status in which a run has a holder, with what it becomes: `after`, or cancelled where that was asked for."""
    return [(status, after if status == "running" else "cancelled") for status in held_statuses(world)]


async def just_expired(world: World, status: str = "running") -> Run:
    """A run whose lease ended a millisecond before it was planted."""
    run = await world.run(status)
    await world.age(run, timedelta(seconds=world.system.timeouts.lease, milliseconds=1))
    return run


@claim("ATTEMPT-2")
async def test_takeover_is_open_as_soon_as_the_lease_has_ended(world: World) -> None:
    """A run whose lease ended a moment ago is another's at once, and its attempt is closed."""
    run = await just_expired(world)
    answer = await world.actor("worker").mark_running(run.id, owner_token="next")
    expect_equal(answer, Claimed("next", 2), "not_taken", "a claim a moment after the lease ended")
    seen = await world.snapshot()
    expect_owned(seen, run, "next", 2)
    expect_equal(outcomes(seen, run), ["lease_expired", None], "not_closed", f"outcomes of {run.id}")


@claim("ATTEMPT-4")
async def test_renewal_comes_too_late_as_soon_as_the_lease_has_ended(world: World) -> None:
    """No grace: an owner whose lease ended a moment ago is refused; one whose lease is live renews it."""
    worker = world.actor("worker")
    for status in held_statuses(world):
        late, live = await just_expired(world, status), await world.run(status)
        renewal = worker.renew_lease(late.id, owner_token=token_of(late), lease=LONG)
        await expect_refused(world, renewal, "renewed_late", f"renewal of {status} a moment after the lease ended")
        answer = await worker.renew_lease(live.id, owner_token=token_of(live), lease=LONG)
        expect(isinstance(answer, Renewed), "not_renewed", f"renewal of {status} before the lease ends: {answer!r}")
        await expect_longer(world, live)


@claim("ATTEMPT-5")
async def test_release_comes_too_late_as_soon_as_the_lease_has_ended(world: World) -> None:
    """No grace: an owner whose lease ended a moment ago is refused; one whose lease is live gives its run back."""
    worker = world.actor("worker")
    for status, after in fates(world, "pending"):
        late, live = await just_expired(world, status), await world.run(status)
        release = worker.release_lease_for_retry(late.id, owner_token=token_of(late))
        await expect_refused(world, release, "released_late", f"release of {status} a moment after the lease ended")
        answer = await worker.release_lease_for_retry(live.id, owner_token=token_of(live))
        expect_equal(answer, Ended(after), "not_released", f"release of {status} before the lease ends")
        expect_equal((await world.snapshot()).runs[live.id].status, after, "not_released", f"status of {live.id}")


@claim("ATTEMPT-6")
async def test_end_comes_too_late_as_soon_as_the_lease_has_ended(world: World) -> None:
    """No grace: an owner whose lease ended a moment ago is refused; one whose lease is live ends its run."""
    worker = world.actor("worker")
    for status, after in fates(world, "failed"):
        late, live = await just_expired(world, status), await world.run(status)
        end = worker.set_terminal_status(late.id, owner_token=token_of(late), status="failed", error_type="late")
        await expect_refused(world, end, "ended_late", f"end of {status} a moment after the lease ended")
        answer = await worker.set_terminal_status(live.id, owner_token=token_of(live), status="failed")
        expect_equal(answer, Ended(after), "not_ended", f"end of {status} before the lease ends")
        expect_equal((await world.snapshot()).runs[live.id].status, after, "not_ended", f"status of {live.id}")


@claim("ATTEMPT-7")
async def test_sweep_takes_a_run_as_soon_as_its_lease_has_ended(world: World) -> None:
    """No grace: runs whose leases ended a moment ago are swept, the live ones beside them stay."""
    late = {(await just_expired(world, status)).id: after for status, after in fates(world, "failed")}
    live = await world.run("running")
    await world.actor("sweeper").reconcile_expired_leases()
    seen = await world.snapshot()
    expect_equal(seen.statuses(), {**late, live.id: "running"}, "spared", "statuses a moment after leases ended")
    ended = {run_id: outcomes(seen, seen.runs[run_id]) for run_id in (*late, live.id)}
    wanted = {run_id: [None if run_id == live.id else "lease_expired"] for run_id in (*late, live.id)}
    expect_equal(ended, wanted, "not_closed", "outcomes after the sweep")


@claim("ATTEMPT-3")
async def test_every_token_that_an_attempt_has_spent_is_refused(world: World) -> None:
    """Of three closed attempts not the last one's token alone is spent; a fresh one opens the fourth attempt."""
    worker, run = world.actor("worker"), await world.run("pending")
    spent = [await past(world, run, number, "retry_released") for number in (1, 2, 3)]
    for attempt in spent:
        token = attempt.owner_token or ""
        claiming = worker.mark_running(run.id, owner_token=token)
        await expect_refused(world, claiming, "token_reused", f"a claim by the token of no. {attempt.attempt_no} of 3")
    answer = await worker.mark_running(run.id, owner_token="fresh")
    expect_equal(answer, Claimed("fresh", 4), "not_claimed", "a claim by a fresh token")
    expect_owned(await world.snapshot(), run, "fresh", 4)


@claim("ATTEMPT-3")
async def test_refresh_changes_liveness_alone(world: World) -> None:
    """The live owner's second claim changes lease and heartbeat, and no other field of run and attempt."""
    start = await world.plant.now() - LONG
    run = await world.run("running", started_at=start, retry_count=2)
    before = await world.snapshot()
    answer = await world.actor("worker").mark_running(
        run.id, owner_token=token_of(run), worker_id=run.worker_id, lease=LONG
    )
    expect_equal(answer, Claimed(token_of(run), 1), "not_refreshed", "the live owner's second claim")
    seen = await world.snapshot()
    expect_owned(seen, run, token_of(run), 1)
    changed = changes(before.runs[run.id], seen.runs[run.id])
    changed += changes(before.attempts[run.id, 1], seen.attempts[run.id, 1])
    expect("started_at" not in changed, "restarted", f"fields that the refresh changed: {changed}")
    expect("retry_count" not in changed, "retries_changed", f"fields that the refresh changed: {changed}")
    expect(not set(changed) - {*LIVENESS}, "more_than_liveness", f"fields that the refresh changed: {changed}")
    await expect_longer(world, run)


def changes(before: Run | Attempt, after: Run | Attempt) -> list[str]:
    """The names of the fields that differ."""
    now = asdict(after)
    return [name for name, value in asdict(before).items() if now[name] != value]


@claim("ATTEMPT-4")
async def test_renewal_renews_the_heartbeat_of_run_and_attempt(world: World) -> None:
    """Where run and attempt each keep a heartbeat, a renewal an hour after the last one moves both."""
    earlier = await world.plant.now() - LONG
    run = await world.run("running", heartbeat_at=earlier)
    before = await world.snapshot()
    answer = await world.actor("worker").renew_lease(run.id, owner_token=token_of(run), lease=LONG)
    expect_equal(answer, Renewed(cancel_requested=False), "not_renewed", "renewal by the live owner")
    await expect_longer(world, run)
    seen = await world.snapshot()
    pairs = (
        ("run", before.runs[run.id].heartbeat_at, seen.runs[run.id].heartbeat_at),
        ("attempt", before.attempts[run.id, 1].heartbeat_at, seen.attempts[run.id, 1].heartbeat_at),
    )
    for what, old, new in pairs:
        if old is not None:
            expect(
                new is not None and new > old + LONG / 2, "heartbeat_stale", f"heartbeat of the {what}: {old}, {new}"
            )


@claim("ATTEMPT-6")
async def test_cancelled_end_stands_in_the_attempt_with_its_error(world: World) -> None:
    """Where a cancel was requested the attempt's outcome is cancelled, and the owner's error class stands beside it."""
    worker = world.actor("worker")
    for status in ("failed", "interrupted", "cancelled"):
        held = held_statuses(world)[-1]
        run, after = await world.run(held), status if held == "running" else "cancelled"
        answer = await worker.set_terminal_status(
            run.id, owner_token=token_of(run), status=status, error_type=f"{status}_class"
        )
        expect_equal(answer, Ended(after), "answer", f"{status} of {held}")
        attempt = (await world.snapshot()).attempts[run.id, 1]
        expect_equal((attempt.outcome, attempt.finished_at is None), (after, False), "wrong_outcome", f"{status}")
        expect_equal(attempt.error_type, f"{status}_class", "error_lost", f"error type of the attempt, {status}")


@claim("ATTEMPT-3")
async def test_owner_from_before_attempts_refreshes(world: World) -> None:
    """A live owner whose run has no attempt claims again, and its lease is longer."""
    run = await world.run("running", attempt=False)
    answer = await world.actor("worker").mark_running(run.id, owner_token=token_of(run), lease=LONG)
    expect(isinstance(answer, Claimed), "not_refreshed", f"a refresh without an attempt was answered {answer!r}")
    await expect_longer(world, run)


@claim("ATTEMPT-4")
async def test_owner_from_before_attempts_renews(world: World) -> None:
    """A live owner whose run has no attempt renews its lease, also where a cancel was requested."""
    worker = world.actor("worker")
    for status in held_statuses(world):
        run = await world.run(status, attempt=False)
        answer = await worker.renew_lease(run.id, owner_token=token_of(run), lease=LONG)
        wanted = Renewed(cancel_requested=status == "cancel_requested")
        expect_equal(answer, wanted, "not_renewed", f"renewal of {status} without an attempt")
        await expect_longer(world, run)


@claim("ATTEMPT-5")
async def test_owner_from_before_attempts_gives_its_run_back(world: World) -> None:
    """A live owner whose run has no attempt releases it: pending, or cancelled where that was asked for."""
    worker = world.actor("worker")
    for status, after in fates(world, "pending"):
        run = await world.run(status, attempt=False)
        answer = await worker.release_lease_for_retry(run.id, owner_token=token_of(run))
        expect_equal(answer, Ended(after), "not_released", f"release of {status} without an attempt")
        row = (await world.snapshot()).runs[run.id]
        expect_equal((row.status, row.owner_token), (after, None), "not_released", f"{run.id} (status, token)")


@claim("ATTEMPT-6")
async def test_owner_from_before_attempts_ends_its_run(world: World) -> None:
    """A live owner whose run has no attempt ends it."""
    worker = world.actor("worker")
    for status, after in fates(world, "failed"):
        run = await world.run(status, attempt=False)
        answer = await worker.set_terminal_status(run.id, owner_token=token_of(run), status="failed", error_type="old")
        expect_equal(answer, Ended(after), "not_ended", f"end of {status} without an attempt")
        row = (await world.snapshot()).runs[run.id]
        expect_equal((row.status, row.owner_token, row.error_type), (after, None, "old"), "not_ended", run.id)


@claim("ATTEMPT-10")
async def test_nothing_that_an_owner_from_before_attempts_does_invents_one(world: World) -> None:
    """Refresh, renewal, release and end of runs without attempts record none, and reads go on to say unknown."""
    worker = world.actor("worker")
    refreshed, renewed, released, stopped, ended = [
        await world.run(status, attempt=False)
        for status in ("running", "running", "running", held_statuses(world)[-1], "running")
    ]
    await worker.mark_running(refreshed.id, owner_token=token_of(refreshed), lease=LONG)
    await worker.renew_lease(renewed.id, owner_token=token_of(renewed), lease=LONG)
    for run in (released, stopped):
        await worker.release_lease_for_retry(run.id, owner_token=token_of(run))
    await worker.set_terminal_status(ended.id, owner_token=token_of(ended), result="done")

    seen = await world.snapshot()
    expect_equal(seen.runs[ended.id].status, "completed", "not_ended", f"status of {ended.id}")
    expect(not seen.attempts, "invented_by_owner", f"attempts of runs that had none: {sorted(seen.attempts)}")
    for run in (refreshed, renewed, released, stopped, ended):
        expect_equal(await worker.attempts(run.id), AttemptsRead(known=False), "said_known", f"history of {run.id}")


async def expect_longer(world: World, run: Run) -> None:
    """The run's lease ends, after a call that asked for an hour, far behind the one that it was planted with."""
    ends = (await world.snapshot()).runs[run.id].lease_expires_at
    expect(ends is not None and ends > await world.plant.now() + LONG / 2, "not_longer", f"lease of {run.id}: {ends}")
