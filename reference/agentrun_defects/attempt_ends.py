"""Defects of ATTEMPT-5 to 7 and 16: ownerships that end otherwise than their runs, or not at all."""

from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import func, select

from agentrun_defects._control import defect
from agentrun_reference.attempts import LEASE_EXPIRED, RETRY_RELEASED, Attempts
from agentrun_reference.outcomes import Ended, ReconcileResult, Refused
from agentrun_reference.repository import UNOWNED, AgentRunRepository, HeldRun
from agentrun_reference.schema import ATTEMPTS, RUNS
from agentrun_reference.shape import CANCEL_REQUESTED, FAILED, PENDING, RUNNING

TRIES: Final = "test_release_for_retry_keeps_each_try"
CANCELLED_TRY: Final = "test_release_of_a_run_whose_cancel_is_requested_cancels_it"
RELEASE: Final = "test_release_by_anyone_else_changes_nothing"
END: Final = "test_terminal_status_closes_the_attempt_with_outcome_and_error"
LOSING: Final = "test_repeated_or_losing_end_changes_nothing"
RANDOM_ENDS: Final = "test_random_histories_end_attempts_with_their_runs"
SWEEP: Final = "test_reconcile_ends_every_expired_run_and_nothing_else"
BATCH: Final = "test_one_sweep_takes_more_runs_than_a_batch"
LOCKED: Final = "test_reconcile_passes_a_locked_run_by"
EXPLAINED: Final = "test_last_attempt_explains_how_the_run_stands"
RETRIES: Final = "test_retries_alone_end_no_run"


@defect(
    "leaves_a_released_attempt_open", refutes="ATTEMPT-5", caught_by=TRIES, because="wrong_outcome", also=["ATTEMPT-16"]
)
class LeavesAReleasedAttemptOpen(AgentRunRepository):
    """Gives the run back and leaves the attempt to the next claim, which calls it expired."""

    async def release_lease_for_retry(self, run_id: str, *, owner_token: str, **error: Any) -> Ended | Refused:
        run = await self.lock_run(run_id)
        if run is None or run.status != RUNNING or not run.is_owned_by(owner_token) or not run.is_legal:
            return await super().release_lease_for_retry(run_id, owner_token=owner_token, **error)
        await self._write([run_id], {**UNOWNED, "status": PENDING, "retry_count": RUNS.c.retry_count + 1})
        return Ended(PENDING)


@defect("counts_retries_by_attempts", refutes="ATTEMPT-5", caught_by=TRIES, because="retry_count")
class CountsRetriesByAttempts(AgentRunRepository):
    """Takes the retries for the attempts before this one: one too few, and each takeover counts."""

    async def release_lease_for_retry(self, run_id: str, *, owner_token: str, **error: Any) -> Ended | Refused:
        answer = await super().release_lease_for_retry(run_id, owner_token=owner_token, **error)
        if answer == Ended(PENDING):
            earlier = select(func.max(ATTEMPTS.c.attempt_no) - 1).where(ATTEMPTS.c.run_id == run_id)
            await self._write([run_id], {"retry_count": earlier.scalar_subquery()})
        return answer


@defect("retries_what_is_to_be_cancelled", refutes="ATTEMPT-5", caught_by=CANCELLED_TRY, because="answer")
class RetriesWhatIsToBeCancelled(AgentRunRepository):
    """Gives a run back to the queue although its cancel was requested: the cancel is lost."""

    async def release_lease_for_retry(self, run_id: str, *, owner_token: str, **error: Any) -> Ended | Refused:
        run = await self.lock_run(run_id)
        if run is None or run.status != CANCEL_REQUESTED or not run.is_owned_by(owner_token) or not run.is_legal:
            return await super().release_lease_for_retry(run_id, owner_token=owner_token, **error)
        closing = self._attempts.closing([run_id], RETRY_RELEASED, now=run.now)
        await self._write([run_id], {**UNOWNED, "status": PENDING, "retry_count": RUNS.c.retry_count + 1}, closing)
        return Ended(PENDING)


class Unhurried(HeldRun):
    """A run whose lease nobody looks at."""

    @property
    def has_expired(self) -> bool:
        return False


@defect("releases_what_has_expired", refutes="ATTEMPT-5", caught_by=RELEASE, because="released_anyway")
class ReleasesWhatHasExpired(AgentRunRepository):
    """Compares the token and not the lease: an owner that was given up still gives its run back."""

    async def release_lease_for_retry(self, run_id: str, *, owner_token: str, **error: Any) -> Ended | Refused:
        self._late = True
        return await super().release_lease_for_retry(run_id, owner_token=owner_token, **error)

    async def lock_run(self, run_id: str) -> HeldRun | None:
        run = await super().lock_run(run_id)
        return Unhurried(**vars(run)) if run is not None and getattr(self, "_late", False) else run


@defect("ends_what_has_expired", refutes="ATTEMPT-6", caught_by=LOSING, because="ended_anyway")
class EndsWhatHasExpired(AgentRunRepository):
    """Takes the result of an owner whose lease has expired, as long as nobody has taken over."""

    async def set_terminal_status(self, run_id: str, **named: Any) -> Ended | Refused:
        self._late = True
        return await super().set_terminal_status(run_id, **named)

    async def lock_run(self, run_id: str) -> HeldRun | None:
        run = await super().lock_run(run_id)
        return Unhurried(**vars(run)) if run is not None and getattr(self, "_late", False) else run


@defect("stores_results_before_it_looks", refutes="ATTEMPT-6", caught_by=LOSING, because="refusal_changed_rows")
class StoresResultsBeforeItLooks(AgentRunRepository):
    """Saves the result first, then asks whose the run is: the loser's result stays."""

    async def set_terminal_status(self, run_id: str, *, result: Any = None, **named: Any) -> Ended | Refused:
        run = await self.lock_run(run_id)
        if run is not None and run.is_legal:
            await self._write([run_id], {"result": result})
        return await super().set_terminal_status(run_id, result=result, **named)


class Nameless(Attempts):
    """Keeps no error class."""

    def closing(self, run_ids: Sequence[str], outcome: str, **named: Any) -> Any:
        return super().closing(run_ids, outcome, now=named["now"])


@defect("keeps_errors_of_runs_alone", refutes="ATTEMPT-6", caught_by=END, because="error_lost")
class KeepsErrorsOfRunsAlone(AgentRunRepository):
    """Writes the error class to the run, where the next try overwrites it, and not to the attempt."""

    def __init__(self, connection: Any) -> None:
        super().__init__(connection)
        self._attempts = Nameless()


@defect(
    "finds_its_attempt_by_retries",
    refutes="ATTEMPT-6",
    caught_by=RANDOM_ENDS,
    because="other_state",
    also=["ATTEMPT-16"],
)
class FindsItsAttemptByRetries(AgentRunRepository):
    """Closes the attempt after as many as were retried: behind a takeover that is not the owner's."""

    async def set_terminal_status(self, run_id: str, **named: Any) -> Ended | Refused:
        retries = select(RUNS.c.retry_count + 1).where(RUNS.c.id == run_id).scalar_subquery()
        opened = select(ATTEMPTS.c.attempt_no).where(ATTEMPTS.c.run_id == run_id, ATTEMPTS.c.finished_at.is_(None))
        astray = await self._connection.scalar(select(opened.scalar_subquery() != retries))
        self._attempts = Astray() if astray else Attempts()
        return await super().set_terminal_status(run_id, **named)


class Astray(Attempts):
    """Closes another attempt than the open one."""

    def closing(self, run_ids: Sequence[str], outcome: str, **named: Any) -> Any:
        return super().closing(run_ids, outcome, **named).where(ATTEMPTS.c.finished_at.is_not(None))


@defect("sweeps_no_null_leases", refutes="ATTEMPT-7", caught_by=SWEEP, because="not_swept", also=["SHAPE-6"])
class SweepsNoNullLeases(AgentRunRepository):
    """Compares the lease with the clock: a running row without one is invisible to every sweep."""

    async def _lock_expired(self, limit: int | None) -> list[HeldRun]:
        return [run for run in await super()._lock_expired(limit) if run.lease_expires_at is not None]


@defect(
    "sweeps_running_runs_alone",
    refutes="ATTEMPT-7",
    caught_by=SWEEP,
    because="not_swept",
    also=["SHAPE-6"],
)
class SweepsRunningRunsAlone(AgentRunRepository):
    """Forgets runs whose owner died after a cancel was requested: they stay so for ever."""

    async def _lock_expired(self, limit: int | None) -> list[HeldRun]:
        return [run for run in await super()._lock_expired(limit) if run.status == RUNNING]


@defect("sweeps_a_hundred_at_most", refutes="ATTEMPT-7", caught_by=BATCH, because="left_behind")
class SweepsAHundredAtMost(AgentRunRepository):
    """Has a bound of its own where the caller gave none."""

    async def reconcile_expired_leases(self, *, limit: int | None = None) -> ReconcileResult:
        return await super().reconcile_expired_leases(limit=min(limit or 100, 100))


@defect("sweeps_wait", refutes="ATTEMPT-7", caught_by=LOCKED, because="waited")
class SweepsWait(AgentRunRepository):
    """Waits for a run that somebody holds, and with it all the other expired runs wait."""

    async def _lock(self, *conditions: Any, skip_locked: bool = False, **named: Any) -> list[HeldRun]:
        return await super()._lock(*conditions, **named)


@defect(
    "sweeps_close_nothing", refutes="ATTEMPT-7", caught_by=SWEEP, because="not_closed", also=["ATTEMPT-16", "SHAPE-6"]
)
class SweepsCloseNothing(AgentRunRepository):
    """Ends the runs and leaves their attempts open, so that they seem to be at work."""

    async def _end(self, runs: Sequence[HeldRun], status: str, *, outcome: str, **named: Any) -> None:
        if outcome != LEASE_EXPIRED:
            return await super()._end(runs, status, outcome=outcome, **named)
        if runs:
            error = {"error_type": named.get("error_type"), "finished_at": runs[0].now}
            await self._write([run.id for run in runs], {**UNOWNED, **error, "status": status})
        return None


@defect("sweeps_without_a_reason", refutes="ATTEMPT-16", caught_by=EXPLAINED, because="unexplained", also=["SHAPE-6"])
class SweepsWithoutAReason(AgentRunRepository):
    """Fails an expired run without saying why: an error of the agent looks the same."""

    async def _end(self, runs: Sequence[HeldRun], status: str, *, outcome: str, **named: Any) -> None:
        if outcome == LEASE_EXPIRED and all(run.is_legal for run in runs):
            named["error_type"] = None
        await super()._end(runs, status, outcome=outcome, **named)


@defect(
    "records_what_was_asked_for", refutes="ATTEMPT-16", caught_by=EXPLAINED, because="unexplained", also=["ATTEMPT-6"]
)
class RecordsWhatWasAskedFor(AgentRunRepository):
    """Cancels the run, as was requested, and calls its attempt what the owner said."""

    async def set_terminal_status(self, run_id: str, *, status: str, **named: Any) -> Ended | Refused:
        self._asked = status
        return await super().set_terminal_status(run_id, status=status, **named)

    async def _end(self, runs: Sequence[HeldRun], status: str, *, outcome: str, **named: Any) -> None:
        await super()._end(runs, status, outcome=getattr(self, "_asked", outcome), **named)


@defect("fails_runs_that_were_retried_enough", refutes="ATTEMPT-16", caught_by=RETRIES, because="unexplained")
class FailsRunsThatWereRetriedEnough(AgentRunRepository):
    """Ends a run when it is given back once too often, which is the worker's to decide."""

    async def release_lease_for_retry(self, run_id: str, *, owner_token: str, **error: Any) -> Ended | Refused:
        answer = await super().release_lease_for_retry(run_id, owner_token=owner_token, **error)
        retries = await self._connection.scalar(select(RUNS.c.retry_count).where(RUNS.c.id == run_id))
        if answer != Ended(PENDING) or retries is None or retries <= 3:
            return answer
        await self._write([run_id], {"status": FAILED, "error_type": "retries_exhausted"})
        return Ended(FAILED)
