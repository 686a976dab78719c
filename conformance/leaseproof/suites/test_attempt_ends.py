"""ATTEMPT-5 to 7: how an ownership ends: given back, ended by its owner, or swept."""

from collections.abc import Mapping

from leaseproof.capabilities import Cap
from leaseproof.checks import claim, expect, expect_equal
from leaseproof.suites.ownership import expect_refused, held_statuses, outcomes, past, token_of
from leaseproof.system import Ended
from leaseproof.world.facts import TERMINAL, Run
from leaseproof.world.world import World


@claim("ATTEMPT-5")
async def test_release_for_retry_keeps_each_try(world: World) -> None:
    """A run is claimed and released three times: numbers go on, and each earlier attempt stays byte for byte."""
    worker, table = world.actor("worker"), world.system.facts.attempt_table or ""
    run, counts = await world.run("pending"), await world.keeps("retry_count")
    earlier: set[str] = set()
    for number in (1, 2, 3):
        await worker.mark_running(run.id, owner_token=f"try-{number}")
        claimed = await world.snapshot()

        answer = await worker.release_lease_for_retry(run.id, owner_token=f"try-{number}", error_type="tool_error")

        expect_equal(answer, Ended("pending"), "answer", f"release no. {number}")
        seen = await world.snapshot()
        row = seen.runs[run.id]
        expect_equal((row.status, row.owner_token, row.lease_expires_at), ("pending", None, None), "not_released")
        if counts:
            expect_equal(row.retry_count, number, "retry_count", f"retries after release no. {number}")
        expect_equal(outcomes(seen, run), ["retry_released"] * number, "wrong_outcome", "outcomes")
        closed, opened = seen.attempts[run.id, number], claimed.attempts.get((run.id, number))
        expect(closed.finished_at is not None, "wrong_outcome", f"no. {number} has no end")
        kept = (opened.owner_token, opened.started_at) if opened else None
        expect_equal((closed.owner_token, closed.started_at), kept, "overwritten", f"token and start of no. {number}")
        rows = set(await world.raw(table))
        expect(earlier <= rows, "overwritten", f"earlier attempts that changed: {sorted(earlier - rows)}")
        earlier = rows


@claim("ATTEMPT-5")
async def test_release_of_a_run_whose_cancel_is_requested_cancels_it(world: World) -> None:
    """Giving back a run that was to be cancelled ends it, and its attempt, as cancelled; any other waits again."""
    ends = {"running": ("pending", "retry_released"), "cancel_requested": ("cancelled", "cancelled")}
    for status in held_statuses(world):
        run, (after, outcome) = await world.run(status), ends[status]

        answer = await world.actor("worker").release_lease_for_retry(run.id, owner_token=token_of(run))

        expect_equal(answer, Ended(after), "answer", f"release of {status}")
        seen = await world.snapshot()
        row = seen.runs[run.id]
        expect_equal((row.status, row.owner_token), (after, None), "not_cancelled", f"{run.id} (status, token)")
        expect_equal(outcomes(seen, run), [outcome], "wrong_outcome", "outcomes")


@claim("ATTEMPT-5")
async def test_release_by_anyone_else_changes_nothing(world: World) -> None:
    """A foreign token, an expired owner, and former owners of pending and ended runs are refused; the owner is not."""
    worker = world.actor("worker")
    for status in held_statuses(world):
        held, expired = await world.run(status), await world.run(status)
        await world.age(expired)
        for run, token in ((held, "somebody-else"), (expired, token_of(expired))):
            release = worker.release_lease_for_retry(run.id, owner_token=token)
            await expect_refused(world, release, "released_anyway", f"release of {status} by {token}")
        await worker.release_lease_for_retry(held.id, owner_token=token_of(held))
        expect((await world.snapshot()).runs[held.id].owner_token is None, "not_released", f"the owner of {held.id}")
        again = worker.release_lease_for_retry(held.id, owner_token=token_of(held))
        await expect_refused(world, again, "released_anyway", f"second release of {status}")
    for status in sorted(TERMINAL):
        run = await world.run(status)
        release = worker.release_lease_for_retry(run.id, owner_token=f"{run.id}-ended")
        await expect_refused(world, release, "released_anyway", f"release of {status}")


@claim("ATTEMPT-6")
async def test_terminal_status_closes_the_attempt_with_outcome_and_error(world: World) -> None:
    """Each of the four ends stands in run and attempt, with the error class in both."""
    worker = world.actor("worker")
    keeps = {"result": await world.keeps("result"), "error_type": await world.keeps("error_type")}
    for status in ("completed", "failed", "cancelled", "interrupted"):
        run = await world.run("running")
        error = None if status == "completed" else f"{status}_class"

        answer = await worker.set_terminal_status(
            run.id, owner_token=token_of(run), status=status, result="done", error_type=error
        )

        expect_equal(answer, Ended(status), "answer", f"set_terminal_status {status}")
        seen = await world.snapshot()
        row, attempt = seen.runs[run.id], seen.attempts[run.id, 1]
        expect_equal((row.status, row.owner_token, row.lease_expires_at), (status, None, None), "not_ended", run.id)
        expect_kept(row, keeps, {"result": "done", "error_type": error})
        expect(attempt.finished_at is not None, "not_closed", f"the attempt of {run.id} has no end")
        expect_equal(attempt.outcome, status, "wrong_outcome", f"outcome of {run.id}")
        expect_equal(attempt.error_type, error, "error_lost", f"error type of the attempt of {run.id}")


def expect_kept(row: Run, keeps: Mapping[str, bool], wanted: Mapping[str, object]) -> None:
    """What the owner said stands in the run, as far as the system keeps it."""
    for field, value in wanted.items():
        if keeps[field]:
            expect_equal(getattr(row, field), value, "result_lost", f"{row.id} ({field})")


@claim("ATTEMPT-6")
async def test_end_of_a_run_whose_cancel_is_requested_is_cancelled(world: World) -> None:
    """Whatever the owner asks for, the run is cancelled, its attempt closed, and result and error are kept.

    A run that is not to be cancelled becomes what its owner asks for.
    """
    worker = world.actor("worker")
    keeps = {"result": await world.keeps("result"), "error_type": await world.keeps("error_type")}
    asked = [("running", "failed", "failed")]
    if world.promises(Cap.execution_tree_cancel):
        beaten = {"completed"} if world.system.policy.completion_beats_cancel else set()
        asked += [("cancel_requested", status, "cancelled") for status in sorted(TERMINAL - beaten)]
    for before, status, after in asked:
        run = await world.run(before)

        answer = await worker.set_terminal_status(
            run.id, owner_token=token_of(run), status=status, result="half", error_type="late"
        )

        expect_equal(answer, Ended(after), "answer", f"{status} of {before}")
        seen = await world.snapshot()
        row = seen.runs[run.id]
        expect_equal((row.status, row.owner_token), (after, None), "cancel_lost", f"{run.id} (status, token)")
        expect_kept(row, keeps, {"result": "half", "error_type": "late"})
        expect(seen.open_attempt(run.id) is None, "not_closed", f"the attempt of {run.id} is open")


@claim("ATTEMPT-6")
async def test_repeated_or_losing_end_changes_nothing(world: World) -> None:
    """The second call of the owner, a foreign token, an expired owner and one that was taken over are refused."""
    worker = world.actor("worker")
    for status in held_statuses(world):
        ended, expired = await world.run(status), await world.run(status)
        await world.age(expired)
        for run, token in ((ended, "somebody-else"), (expired, token_of(expired))):
            losing = worker.set_terminal_status(run.id, owner_token=token, result="lost")
            await expect_refused(world, losing, "ended_anyway", f"end of {status} by {token}")
        await worker.set_terminal_status(ended.id, owner_token=token_of(ended), status="failed", error_type="first")
        final = "failed" if status == "running" else "cancelled"
        expect_equal((await world.snapshot()).runs[ended.id].status, final, "not_ended", f"{ended.id} after its end")
        for again in ("failed", "completed"):
            repeated = worker.set_terminal_status(ended.id, owner_token=token_of(ended), status=again, result="again")
            await expect_refused(world, repeated, "ended_twice", f"a second end ({again}) of {final}")
    taken, pending = await world.run("running"), await world.run("pending")
    await world.age(taken)
    await worker.mark_running(taken.id, owner_token="next")
    await past(world, pending, 1, "retry_released")
    for run, token in ((taken, token_of(taken)), (pending, f"{pending.id}-past-1")):
        losing = worker.set_terminal_status(run.id, owner_token=token)
        await expect_refused(world, losing, "ended_anyway", f"end by {token}, the former owner")


@claim("ATTEMPT-7")
async def test_reconcile_ends_every_expired_run_and_nothing_else(world: World) -> None:
    """Expired and null leases, with and without an attempt, in one sweep; live, pending and ended runs stay."""
    expired: dict[str, tuple[str, str]] = {}
    ends = {"running": "failed", "cancel_requested": "cancelled"}
    for status, after in [(status, ends[status]) for status in held_statuses(world)]:
        dead = [await world.run(status), await world.run(status, attempt=False)]
        for run in dead:
            await world.age(run)
        dead.append(await world.run(status, lease_expires_at=None))
        dead.append(await world.run(status, lease_expires_at=None, attempt=False))
        expired |= {run.id: (status, after) for run in dead}
    legacy = await world.run("running", owner_token=None, worker_id="legacy", lease_expires_at=None, attempt=False)
    expired[legacy.id] = ("running", "failed")
    retried = await world.run("running", attempt=False)
    await past(world, retried, 1, "retry_released")
    await world.plant.attempt(retried, attempt_no=2)
    await world.age(retried)
    expired[retried.id] = ("running", "failed")
    others = [await world.run(status) for status in (*held_statuses(world), "pending", *sorted(TERMINAL))]
    before, rows = await world.snapshot(), await world.raw_runs()

    answer = await world.actor("sweeper").reconcile_expired_leases()

    seen = await world.snapshot()
    for run_id, (_, after) in expired.items():
        row = seen.runs[run_id]
        expect_equal((row.status, row.owner_token), (after, None), "not_swept", f"{run_id} (status, token)")
        expect(row.lease_expires_at is None, "not_swept", f"{run_id} has a lease")
    expect_equal(dict(answer.runs), expired, "answer", "what the sweep says that it did")
    for key, attempt in before.attempts.items():
        now = seen.attempts[key]
        if key[0] in expired and attempt.finished_at is None:
            expect_equal((now.outcome, now.finished_at is None), ("lease_expired", False), "not_closed", f"{key}")
        else:
            expect_equal(now, attempt, "touched_another", f"attempt {key}")
    after_rows = await world.raw_runs()
    for run in others:
        expect_equal(after_rows[run.id], rows[run.id], "touched_another", f"{run.status} {run.id}")


@claim("ATTEMPT-7")
async def test_one_sweep_takes_more_runs_than_a_batch(world: World) -> None:
    """101 expired runs are ended by one sweep without a limit; five more by at most five sweeps with one."""
    sweeper, conversation = world.actor("sweeper"), await world.plant.conversation("user-1")

    async def expired(many: int) -> list[Run]:
        fields = {"conversation_id": conversation, "scope_conversation_id": conversation, "lease_expires_at": None}
        return [await world.run("running", attempt=False, **fields) for _ in range(many)]

    runs = await expired(101)
    await sweeper.reconcile_expired_leases()
    statuses = (await world.snapshot()).statuses()
    left = [run.id for run in runs if statuses[run.id] != "failed"]
    expect(not left, "left_behind", f"{len(left)} of 101 are left after a sweep, {left[:3]} first")

    runs = await expired(5)
    for _ in runs:
        answer = await sweeper.reconcile_expired_leases(limit=2)
        statuses = (await world.snapshot()).statuses()
        left = [run.id for run in runs if statuses[run.id] != "failed"]
        expect(bool(answer.runs), "left_behind", f"a sweep took none, and {left} are left")
        if not left:
            break
    expect(not left, "left_behind", f"{left} are left after five sweeps with a limit of two")


@claim("ATTEMPT-7")
async def test_reconcile_passes_a_locked_run_by(world: World) -> None:
    """A run that somebody holds does not make the sweep wait, and is taken by the next one."""
    holder, sweeper = await world.session("holder"), world.actor("sweeper")
    runs = [await world.run("running") for _ in range(3)]
    for run in runs:
        await world.age(run)
    held = runs[1]
    await holder.lock(held.id)

    async with sweeper.running(sweeper.reconcile_expired_leases()) as sweep:
        await sweep.until_ended_past(holder.pid)
        await sweep.result()
    seen = await world.snapshot()
    wanted = {run.id: "running" if run is held else "failed" for run in runs}
    expect_equal(seen.statuses(), wanted, "not_swept", "statuses while one run is held")
    expect_equal(outcomes(seen, held), [None], "touched_another", "outcomes of the held run")

    await holder.release()
    await sweeper.reconcile_expired_leases()
    later = await world.snapshot()
    expect_equal(later.statuses()[held.id], "failed", "never_taken", "the held run, after the next sweep")
    expect_equal(outcomes(later, held), ["lease_expired"], "not_closed", "outcomes of the held run")
