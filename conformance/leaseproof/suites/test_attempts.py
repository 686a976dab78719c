"""ATTEMPT-1 to 4: claims and renewals, and the attempt that each ownership is.

With `test_attempt_ends`, every row of the specification's table of transitions for a lawful run, refusals included.
"""

from leaseproof.capabilities import Cap
from leaseproof.checks import claim, expect, expect_equal, refute
from leaseproof.suites.ownership import (
    LONG,
    SHORT,
    expect_owned,
    expect_refused,
    expect_unchanged,
    held_statuses,
    numbers,
    outcomes,
    past,
    token_of,
)
from leaseproof.system import Claimed, Renewed
from leaseproof.world.facts import TERMINAL
from leaseproof.world.world import World


@claim("ATTEMPT-1")
async def test_claim_opens_the_attempt_after_the_last(world: World) -> None:
    """The first claim opens number 1; behind 9 and behind 12 closed attempts it is 10 and 13, whatever was retried."""
    worker = world.actor("worker")
    for earlier in (0, 9, 12):
        run = await world.run("pending")
        for number in range(1, earlier + 1):
            await past(world, run, number, "lease_expired")

        answer = await worker.mark_running(run.id, owner_token=f"{run.id}-new")

        expect(isinstance(answer, Claimed), "not_claimed", f"{run.id} was answered {answer!r}")
        expect_equal(answer, Claimed(f"{run.id}-new", earlier + 1), "wrong_number", f"claim behind {earlier} attempts")
        seen = await world.snapshot()
        expect_owned(seen, run, f"{run.id}-new", earlier + 1)
        expect_equal(numbers(seen, run), list(range(1, earlier + 2)), "wrong_number", f"attempts of {run.id}")


@claim("ATTEMPT-1")
async def test_new_token_opens_a_new_attempt_under_the_same_worker_name(world: World) -> None:
    """A worker that takes its own expired run over, under the same label, is a new owner: a new attempt."""
    worker = world.actor("worker")
    run = await world.run("running", worker_id="stable-name")
    await world.age(run)

    answer = await worker.mark_running(run.id, owner_token="second-life", worker_id="stable-name")

    expect_equal(answer, Claimed("second-life", 2), "ownership_unrecorded", "takeover under the same name")
    expect_owned(await world.snapshot(), run, "second-life", 2)


@claim("ATTEMPT-1")
async def test_attempt_is_numbered_with_the_row_locked(world: World) -> None:
    """An attempt that is written while the claim waits for the row counts for its number."""
    holder, worker = await world.session("holder"), world.actor("worker")
    run = await world.run("pending")
    await holder.lock(run.id)

    async with worker.running(worker.mark_running(run.id, owner_token="late")) as claiming:
        await claiming.until_blocked_by(holder.pid)
        await past(world, run, 1, "retry_released", within=holder)
        await holder.commit()
        answer = await claiming.result()

    expect_equal(answer, Claimed("late", 2), "wrong_number", "claim behind an attempt written meanwhile")
    expect_owned(await world.snapshot(), run, "late", 2)


@claim("ATTEMPT-1")
async def test_attempt_is_written_in_the_transaction_of_its_run(world: World) -> None:
    """Nobody sees the ownership without its attempt; where the caller rolls back, neither is left."""
    worker, holder = world.actor("worker"), await world.session("holder")
    run, table = await world.run("pending"), world.system.facts.attempt_table
    if world.promises(Cap.caller_transaction):
        before = await world.digest()
        async with world.actor("quitter").transaction() as quitter:
            answer = await quitter.mark_running(run.id, owner_token="rolled-back")
            expect(isinstance(answer, Claimed), "not_claimed", f"{run.id} was answered {answer!r}")
            await expect_unchanged(world, before, "seen_before_commit", "the claim is open")
            quitter.rollback()
        await expect_unchanged(world, before, "survived_rollback", "the claim was rolled back")

    await holder.hold_writes(table or "")
    async with worker.running(worker.mark_running(run.id, owner_token="whole")) as claiming:
        await claiming.until_blocked_by(holder.pid)
        expect_equal((await world.snapshot()).statuses()[run.id], "pending", "seen_before_commit", "half a claim")
        await holder.release()
        await claiming.result()
    expect_owned(await world.snapshot(), run, "whole", 1)


@claim("ATTEMPT-1")
async def test_claim_that_the_run_does_not_allow_opens_nothing(world: World) -> None:
    """A live owner's run, a run whose cancel is requested and an ended run are refused; a pending one is claimed."""
    worker = world.actor("worker")
    taken = [await world.run("running")]
    if world.promises(Cap.execution_tree_cancel):
        stopping, stopped = await world.run("cancel_requested"), await world.run("cancel_requested")
        await world.age(stopped)
        taken += [stopping, stopped]
    for run in taken:
        await expect_refused(
            world, worker.mark_running(run.id, owner_token="other"), "claimed_anyway", f"a claim of {run.status}"
        )
    for status in sorted(TERMINAL):
        run = await world.run(status)
        await expect_refused(
            world, worker.mark_running(run.id, owner_token="other"), "claimed_anyway", f"a claim of {status}"
        )
    free = await world.run("pending")
    await worker.mark_running(free.id, owner_token="other")
    expect_owned(await world.snapshot(), free, "other", 1)


@claim("ATTEMPT-2")
async def test_takeover_closes_the_open_attempt_as_lease_expired(world: World) -> None:
    """Each of three takeovers, one of them of a null lease, closes the attempt before it and changes it no further."""
    worker = world.actor("worker")
    run = await world.run("running", lease_expires_at=None)
    for number in (2, 3, 4):
        before = (await world.snapshot()).attempts[run.id, number - 1]

        await worker.mark_running(run.id, owner_token=f"owner-{number}", worker_id=f"worker-{number}")

        seen = await world.snapshot()
        closed = seen.attempts[run.id, number - 1]
        expect_equal(closed.outcome, "lease_expired", "not_closed", f"outcome of no. {number - 1} after a takeover")
        expect(closed.finished_at is not None, "not_closed", f"no. {number - 1} has no end after a takeover")
        kept = (before.owner_token, before.started_at)
        expect_equal((closed.owner_token, closed.started_at), kept, "overwritten", f"token and start of {number - 1}")
        expect_owned(seen, run, f"owner-{number}", number)
        await world.age(run)


@claim("ATTEMPT-2")
async def test_claim_of_a_pending_run_closes_an_attempt_left_open(world: World) -> None:
    """A stale open attempt of a pending run is closed first, be its own lease live, expired or null."""
    worker, now = world.actor("worker"), await world.plant.now()
    for lease in (now + LONG, now - LONG, None):
        run = await world.run("pending")
        await world.plant.attempt(run, owner_token=f"{run.id}-gone", started_at=now, lease_expires_at=lease)

        await worker.mark_running(run.id, owner_token=f"{run.id}-new")

        seen = await world.snapshot()
        expect_equal(outcomes(seen, run), ["lease_expired", None], "not_closed", f"outcomes, stale lease {lease}")
        token = seen.attempts[run.id, 1].owner_token
        expect_equal(token, f"{run.id}-gone", "overwritten", "token of the stale attempt")
        expect_owned(seen, run, f"{run.id}-new", 2)


@claim("ATTEMPT-3")
async def test_live_owner_claiming_again_only_refreshes(world: World) -> None:
    """The same token claims twice: a longer lease of run and attempt, and no second attempt."""
    worker = world.actor("worker")
    run = await world.run("pending")
    await worker.mark_running(run.id, owner_token="twice")
    before = await world.snapshot()

    answer = await worker.mark_running(run.id, owner_token="twice", lease=LONG)

    expect(isinstance(answer, Claimed), "not_claimed", f"the owner's second claim was answered {answer!r}")
    seen = await world.snapshot()
    expect_equal(numbers(seen, run), [1], "second_attempt", "attempts after the second claim")
    attempt = expect_owned(seen, run, "twice", 1)
    expect_equal(answer, Claimed("twice", 1), "second_attempt", "answer to the second claim")
    expect_equal(attempt.started_at, before.attempts[run.id, 1].started_at, "restarted", "start of the attempt")
    first, second = before.runs[run.id].lease_expires_at, seen.runs[run.id].lease_expires_at
    expect(first is not None and second is not None and first < second, "not_refreshed", f"leases: {first}, {second}")
    expect_equal(attempt.lease_expires_at, second, "not_refreshed", "lease of the attempt")


@claim("ATTEMPT-3")
async def test_token_is_good_for_one_attempt_of_a_run(world: World) -> None:
    """A token whose lease expired, or whose attempt is closed, is refused; a new one then claims the same run."""
    worker = world.actor("worker")
    expired, released, taken = [await world.run(status) for status in ("running", "pending", "running")]
    await world.age(expired)
    await world.age(taken)
    await past(world, released, 1, "retry_released")
    await worker.mark_running(taken.id, owner_token="second")
    await world.age(taken)
    reused = [
        (expired, token_of(expired), "the holder's token after its lease expired"),
        (released, f"{released.id}-past-1", "the token of a closed attempt, run pending"),
        (taken, token_of(taken), "the token that was taken over, the next lease expired too"),
    ]
    if world.promises(Cap.retry_release):
        lent = await world.run("running")
        await worker.release_lease_for_retry(lent.id, owner_token=token_of(lent))
        reused.append((lent, token_of(lent), "the token that released the run"))
    for run, token, what in reused:
        claiming = worker.mark_running(run.id, owner_token=token, worker_id=f"{token}-again")
        await expect_refused(world, claiming, "token_reused", f"a claim by {what}")
    for run, _, what in reused:
        answer = await worker.mark_running(run.id, owner_token=f"{run.id}-fresh", worker_id=f"{run.id}-worker")
        expect(isinstance(answer, Claimed), "not_claimed", f"a fresh token, instead of {what}: {answer!r}")
        expect_owned(await world.snapshot(), run, f"{run.id}-fresh", 3 if run is taken else 2)


@claim("ATTEMPT-4")
async def test_renewal_renews_run_and_attempt_together(world: World) -> None:
    """A longer lease is the same in run and attempt to the microsecond; a shorter one shortens neither."""
    worker = world.actor("worker")
    for status in held_statuses(world):
        run = await world.run(status)
        before, now = await world.snapshot(), await world.plant.now()

        answer = await worker.renew_lease(run.id, owner_token=token_of(run), lease=LONG)

        expect_equal(answer, Renewed(cancel_requested=status == "cancel_requested"), "answer", f"renewal of {status}")
        seen = await world.snapshot()
        renewed = seen.runs[run.id].lease_expires_at
        if renewed is None or renewed < now + LONG / 2:
            refute("not_renewed", f"the lease of {run.id} ends at {renewed}")
        expect_equal(seen.attempts[run.id, 1].lease_expires_at, renewed, "leases_differ", f"attempt of {run.id}")
        expect_equal(seen.runs[run.id].status, status, "status_changed", f"status of {run.id}")
        expect_equal(outcomes(seen, run), [None], "attempt_changed", f"attempts of {run.id}")
        started = before.attempts[run.id, 1].started_at
        expect_equal(seen.attempts[run.id, 1].started_at, started, "attempt_changed", f"start of {run.id}")

        await worker.renew_lease(run.id, owner_token=token_of(run), lease=SHORT)

        later = await world.snapshot()
        kept = later.runs[run.id].lease_expires_at
        expect(kept is not None and kept >= renewed, "shortened", f"lease of {run.id}: {renewed}, then {kept}")
        expect_equal(later.attempts[run.id, 1].lease_expires_at, kept, "leases_differ", f"attempt of {run.id}")


@claim("ATTEMPT-4")
async def test_renewal_by_anyone_else_changes_nothing_and_says_so(world: World) -> None:
    """A foreign token, an owner whose lease expired or is null, and one of an ended or released run are told."""
    worker = world.actor("worker")
    for status in held_statuses(world):
        held, expired = await world.run(status), await world.run(status)
        unleased = await world.run(status, lease_expires_at=None)
        await world.age(expired)
        for run, token, what in (
            (held, "somebody-else", "a foreign token"),
            (expired, token_of(expired), "an owner whose lease expired"),
            (unleased, token_of(unleased), "an owner without a lease"),
        ):
            renewal = worker.renew_lease(run.id, owner_token=token)
            await expect_refused(world, renewal, "renewed_anyway", f"renewal of {status} by {what}")
        owner = await worker.renew_lease(held.id, owner_token=token_of(held), lease=LONG)
        expect(isinstance(owner, Renewed), "not_renewed", f"the owner's renewal of {status} was answered {owner!r}")
        lease = (await world.snapshot()).runs[held.id].lease_expires_at
        expect(lease is not None and lease > await world.plant.now() + LONG / 2, "not_renewed", f"lease: {lease}")
    taken, released = await world.run("running"), await world.run("pending")
    await world.age(taken)
    await worker.mark_running(taken.id, owner_token="next")
    await past(world, released, 1, "retry_released")
    stale = [(taken, token_of(taken)), (released, f"{released.id}-past-1")]
    stale += [(run, f"{run.id}-ended") for run in [await world.run(status) for status in sorted(TERMINAL)]]
    for run, token in stale:
        renewal = worker.renew_lease(run.id, owner_token=token)
        await expect_refused(world, renewal, "renewed_anyway", f"renewal by {token}, the former owner")
