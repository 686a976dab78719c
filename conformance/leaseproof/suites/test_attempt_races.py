"""ATTEMPT-1, 4, 5 and 6: operations that wait for a run's row while somebody before them changes it."""

from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any

from leaseproof.capabilities import Cap
from leaseproof.checks import claim, expect, expect_equal
from leaseproof.suites.ownership import LONG, expect_owned, outcomes, token_of
from leaseproof.system import Claimed, Ended, Refused, Renewed
from leaseproof.world.actors import Participant
from leaseproof.world.facts import Run
from leaseproof.world.sessions import Session
from leaseproof.world.waits import PATIENCE
from leaseproof.world.world import World

Call = Callable[[Participant], Coroutine[Any, Any, Any]]


class Queue:
    """Two actors in a queue for one row, behind a session that holds it. The lock queue is first in, first out."""

    def __init__(self, world: World, holder: Session) -> None:
        self._world = world
        self._holder = holder
        self._ahead = world.actor("ahead", statement_timeout=PATIENCE)
        self._late = world.actor("late", statement_timeout=PATIENCE)

    @classmethod
    async def of(cls, world: World) -> "Queue":
        """The world's queue; one is enough for several runs, one after another."""
        return cls(world, await world.session("holder"))

    async def behind(self, run: Run, ahead: Call, late: Call) -> Any:
        """The answer of `late`, which waited for the row while `ahead`, before it in the queue, committed."""
        await self._holder.lock(run.id)
        async with self._ahead.running(ahead(self._ahead)) as first:
            await first.until_blocked_by(self._holder.pid)
            async with self._late.running(late(self._late)) as second:
                await second.until_waiting()
                await self._holder.release()
                await first.result()
                return await second.result()

    async def behind_the_end_of_its_lease(self, run: Run, late: Call) -> Any:
        """The answer of `late`, which waited for the row while the run's lease came to be over."""
        await self._holder.lock(run.id)
        async with self._late.running(late(self._late)) as waiting:
            await waiting.until_blocked_by(self._holder.pid)
            by = timedelta(seconds=2 * self._world.system.timeouts.lease)
            await self._holder.execute(self._world.system.facts.age, {"id": run.id, "by": by})
            await self._holder.commit()
            return await waiting.result()


@claim("ATTEMPT-4")
async def test_renewal_decides_by_the_row_that_it_waited_for(world: World) -> None:
    """A renewal behind a cancel tells of it; behind the owner's own end, or the lease's, it is refused."""
    queue = await Queue.of(world)
    if world.promises(Cap.execution_tree_cancel):
        asked = await world.run("running")
        answer = await queue.behind(asked, _cancel(asked), _renew(asked))
        expect_equal(answer, Renewed(cancel_requested=True), "stale_answer", "a renewal behind a cancel")
        seen = await world.snapshot()
        row, attempt = seen.runs[asked.id], seen.attempts[asked.id, 1]
        expect_equal(row.status, "cancel_requested", "cancel_lost", f"status of {asked.id}")
        ends = row.lease_expires_at
        expect(ends is not None and ends > await world.plant.now() + LONG / 2, "not_renewed", f"lease: {ends}")
        expect_equal(attempt.lease_expires_at, ends, "leases_differ", f"attempt of {asked.id}")
    await _loses_to_the_end(world, queue, _renew, "renewed_anyway")
    await _loses_to_the_clock(world, queue, _renew, "renewed_anyway")


@claim("ATTEMPT-5")
async def test_release_decides_by_the_row_that_it_waited_for(world: World) -> None:
    """A release behind a cancel cancels; behind the owner's own end, or the lease's, it is refused."""
    queue = await Queue.of(world)
    if world.promises(Cap.execution_tree_cancel):
        asked = await world.run("running")
        answer = await queue.behind(asked, _cancel(asked), _release(asked))
        expect_equal(answer, Ended("cancelled"), "cancel_lost", "a release behind a cancel")
        await _expect_cancelled(world, asked)
    await _loses_to_the_end(world, queue, _release, "released_anyway")
    await _loses_to_the_clock(world, queue, _release, "released_anyway")


@claim("ATTEMPT-6")
async def test_end_decides_by_the_row_that_it_waited_for(world: World) -> None:
    """An end behind a cancel is cancelled; behind the owner's own end, or the lease's, it is refused."""
    queue = await Queue.of(world)
    if world.promises(Cap.execution_tree_cancel):
        asked = await world.run("running")
        answer = await queue.behind(asked, _cancel(asked), _fail(asked))
        expect_equal(answer, Ended("cancelled"), "cancel_lost", "an end behind a cancel")
        await _expect_cancelled(world, asked)
    await _loses_to_the_end(world, queue, _fail, "ended_twice")
    await _loses_to_the_clock(world, queue, _fail, "ended_anyway")


@claim("ATTEMPT-1")
async def test_claim_decides_by_the_row_that_it_waited_for(world: World) -> None:
    """Of two claims of a pending or an expired run the second is refused; so is one behind the run's cancel."""
    queue = await Queue.of(world)
    pending, expired = await world.run("pending"), await world.run("running")
    await world.age(expired)
    for run, number in ((pending, 1), (expired, 2)):
        answer = await queue.behind(run, _claim(run, "first"), _claim(run, "second"))
        expect(isinstance(answer, Refused), "claimed_anyway", f"a claim behind the claim of {run.id}: {answer!r}")
        seen = await world.snapshot()
        expect_owned(seen, run, f"{run.id}-first", number)
        expect_equal(outcomes(seen, run), ["lease_expired", None][-number:], "history_changed", f"outcomes of {run.id}")
    if world.promises(Cap.execution_tree_cancel):
        run = await world.run("pending")
        answer = await queue.behind(run, _cancel(run), _claim(run, "late"))
        expect(isinstance(answer, Refused), "claimed_anyway", f"a claim behind a cancel: {answer!r}")
        seen = await world.snapshot()
        expect_equal((seen.runs[run.id].status, outcomes(seen, run)), ("cancelled", []), "cancel_lost", run.id)
    free = await world.run("pending")
    answer = await world.actor("free").mark_running(free.id, owner_token="free")
    expect_equal(answer, Claimed("free", 1), "not_claimed", "a claim that waits for nobody")


async def _loses_to_the_end(world: World, queue: Queue, late: Callable[[Run], Call], because: str) -> None:
    """Behind the same owner's completion the call is refused, and the completion stays as it is."""
    run = await world.run("running")
    answer = await queue.behind(run, _complete(run), late(run))
    expect(isinstance(answer, Refused), because, f"a call behind the owner's own end was answered {answer!r}")
    seen = await world.snapshot()
    row, attempt = seen.runs[run.id], seen.attempts[run.id, 1]
    result = "first" if await world.keeps("result") else None
    ended = (row.status, row.result, row.error_type, row.owner_token, row.lease_expires_at, row.retry_count or 0)
    expect_equal(ended, ("completed", result, None, None, None, 0), "end_changed", f"{run.id} after its end")
    closed = (attempt.outcome, attempt.error_type, outcomes(seen, run))
    expect_equal(closed, ("completed", None, ["completed"]), "end_changed", f"the attempt of {run.id} after its end")


async def _loses_to_the_clock(world: World, queue: Queue, late: Callable[[Run], Call], because: str) -> None:
    """Where the lease ran out during the wait the call is refused, and the run waits for a sweep or a takeover."""
    run = await world.run("running")
    answer = await queue.behind_the_end_of_its_lease(run, late(run))
    expect(isinstance(answer, Refused), because, f"a call behind the end of its lease was answered {answer!r}")
    seen = await world.snapshot()
    expect_owned(seen, run, token_of(run), 1)
    lease = seen.runs[run.id].lease_expires_at
    expect(lease is not None and lease < await world.plant.now(), because, f"the lease of {run.id} ends at {lease}")


async def _expect_cancelled(world: World, run: Run) -> None:
    """The cancel was honoured: nobody owns the run any more, and its attempt ended as cancelled."""
    seen = await world.snapshot()
    row = seen.runs[run.id]
    expect_equal((row.status, row.owner_token, row.retry_count or 0), ("cancelled", None, 0), "cancel_lost", run.id)
    expect_equal(outcomes(seen, run), ["cancelled"], "wrong_outcome", f"outcomes of {run.id}")


def _cancel(run: Run) -> Call:
    return lambda actor: actor.request_cancel_execution_tree(run.id)


def _claim(run: Run, who: str) -> Call:
    return lambda actor: actor.mark_running(run.id, owner_token=f"{run.id}-{who}")


def _renew(run: Run) -> Call:
    return lambda actor: actor.renew_lease(run.id, owner_token=token_of(run), lease=LONG)


def _release(run: Run) -> Call:
    return lambda actor: actor.release_lease_for_retry(run.id, owner_token=token_of(run))


def _complete(run: Run) -> Call:
    return lambda actor: actor.set_terminal_status(run.id, owner_token=token_of(run), result="first")


def _fail(run: Run) -> Call:
    return lambda actor: actor.set_terminal_status(
        run.id, owner_token=token_of(run), status="failed", result="late", error_type="late"
    )
