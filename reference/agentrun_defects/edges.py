"""Defects of ATTEMPT-3 to 7 and 10 at their edges: grace, fields that get lost, owners without an attempt."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import Update, exists, func, select

from agentrun_defects._control import defect
from agentrun_reference.attempts import RETRY_RELEASED, Attempts, History
from agentrun_reference.outcomes import Claimed, Ended, Refused, Renewed
from agentrun_reference.repository import ENDS_AT, IS_HELD, AgentRunRepository, HeldRun
from agentrun_reference.schema import ATTEMPTS, RUNS
from agentrun_reference.shape import CANCEL_REQUESTED, CANCELLED, PENDING, RUNNING

RENEWED_LATE: Final = "test_renewal_comes_too_late_as_soon_as_the_lease_has_ended"
RELEASED_LATE: Final = "test_release_comes_too_late_as_soon_as_the_lease_has_ended"
ENDED_LATE: Final = "test_end_comes_too_late_as_soon_as_the_lease_has_ended"
SWEPT_LATE: Final = "test_sweep_takes_a_run_as_soon_as_its_lease_has_ended"
SPENT: Final = "test_every_token_that_an_attempt_has_spent_is_refused"
REFRESH: Final = "test_refresh_changes_liveness_alone"
HEARTBEAT: Final = "test_renewal_renews_the_heartbeat_of_run_and_attempt"
CANCELLED_END: Final = "test_cancelled_end_stands_in_the_attempt_with_its_error"
OLD_RENEWAL: Final = "test_owner_from_before_attempts_renews"
OLD_RELEASE: Final = "test_owner_from_before_attempts_gives_its_run_back"
INVENTED: Final = "test_nothing_that_an_owner_from_before_attempts_does_invents_one"

GRACE: Final = timedelta(seconds=10)


class Graced(HeldRun):
    """A run whose lease counts as live for some seconds more."""

    @property
    def has_expired(self) -> bool:
        return self.lease_expires_at is None or self.lease_expires_at + GRACE <= self.now


class Graceful(AgentRunRepository):
    """Sees every run so."""

    async def lock_run(self, run_id: str) -> HeldRun | None:
        run = await super().lock_run(run_id)
        return None if run is None else Graced(**vars(run))


@defect("renew_within_grace", refutes="ATTEMPT-4", caught_by=RENEWED_LATE, because="renewed_late")
class RenewWithinGrace(AgentRunRepository):
    """Lets an owner renew for ten seconds after its lease has ended, when another may have been told it is free."""

    async def renew_lease(self, run_id: str, *, owner_token: str, lease: timedelta) -> Renewed | Refused:
        return await Graceful(self._connection).renew_lease(run_id, owner_token=owner_token, lease=lease)


@defect("release_within_grace", refutes="ATTEMPT-5", caught_by=RELEASED_LATE, because="released_late")
class ReleaseWithinGrace(AgentRunRepository):
    """Lets an owner give its run back for ten seconds after its lease has ended."""

    async def release_lease_for_retry(self, run_id: str, *, owner_token: str, **error: Any) -> Ended | Refused:
        return await Graceful(self._connection).release_lease_for_retry(run_id, owner_token=owner_token, **error)


@defect("finish_within_grace", refutes="ATTEMPT-6", caught_by=ENDED_LATE, because="ended_late")
class FinishWithinGrace(AgentRunRepository):
    """Takes a result for ten seconds after the lease has ended, so that no work is lost."""

    async def set_terminal_status(self, run_id: str, **end: Any) -> Ended | Refused:
        return await Graceful(self._connection).set_terminal_status(run_id, **end)


@defect("sweep_spares_for_grace", refutes="ATTEMPT-7", caught_by=SWEPT_LATE, because="spared")
class SweepSparesForGrace(AgentRunRepository):
    """Leaves a run alone for ten seconds after its lease has ended: this sweep does not take it."""

    async def _lock_expired(self, limit: int | None) -> list[HeldRun]:
        late = select(func.clock_timestamp() - GRACE).scalar_subquery() >= ENDS_AT
        return await self._lock(IS_HELD, late, order=(ENDS_AT, RUNS.c.id), limit=limit, skip_locked=True)


@defect("token_vs_last_attempt_only", refutes="ATTEMPT-3", caught_by=SPENT, because="token_reused")
class TokenVsLastAttemptOnly(AgentRunRepository):
    """Compares a token with that of the last closed attempt alone: an older one opens a new life."""

    async def _history(self, run_id: str, owner_token: str) -> History:
        history = await super()._history(run_id, owner_token)
        closed = ATTEMPTS.c.run_id == run_id, ATTEMPTS.c.finished_at.is_not(None)
        tokens = select(ATTEMPTS.c.owner_token).where(*closed)
        last = await self._connection.scalar(tokens.order_by(ATTEMPTS.c.attempt_no.desc()).limit(1))
        return replace(history, token_spent=last == owner_token)


class Refreshing(AgentRunRepository):
    """Writes something of its own when the live owner claims again."""

    def also(self, run: HeldRun) -> Mapping[str, Any]:
        raise NotImplementedError

    async def mark_running(
        self, run_id: str, *, owner_token: str, worker_id: str, lease: timedelta
    ) -> Claimed | Ended | Refused:
        before = await self.lock_run(run_id)
        answer = await super().mark_running(run_id, owner_token=owner_token, worker_id=worker_id, lease=lease)
        refreshed = before is not None and before.status == RUNNING and before.owner_token == owner_token
        if before is not None and refreshed and isinstance(answer, Claimed):
            await self._write([run_id], self.also(before))
        return answer


@defect("refresh_clears_retries", refutes="ATTEMPT-3", caught_by=REFRESH, because="retries_changed")
class RefreshClearsRetries(Refreshing):
    """Counts the retries from nought again when the live owner claims again."""

    def also(self, run: HeldRun) -> Mapping[str, Any]:
        return {"retry_count": 0}


@defect("refresh_restarts_run", refutes="ATTEMPT-3", caught_by=REFRESH, because="restarted")
class RefreshRestartsRun(Refreshing):
    """Takes the live owner's second claim for the start of the run."""

    def also(self, run: HeldRun) -> Mapping[str, Any]:
        return {"started_at": run.now}


class LeaseAlone(Attempts):
    """Renews the lease of an attempt, and forgets its heartbeat."""

    def renewing(self, run_id: str, *, owner_token: str, now: datetime, lease_expires_at: datetime) -> Update:
        renewing = super().renewing(run_id, owner_token=owner_token, now=now, lease_expires_at=lease_expires_at)
        return renewing.values(heartbeat_at=ATTEMPTS.c.heartbeat_at)


@defect("attempt_heartbeat_not_renewed", refutes="ATTEMPT-4", caught_by=HEARTBEAT, because="heartbeat_stale")
class AttemptHeartbeatNotRenewed(AgentRunRepository):
    """Renews lease and heartbeat of the run, and the lease alone of its attempt."""

    def __init__(self, connection: Any) -> None:
        super().__init__(connection)
        self._attempts = LeaseAlone()


@defect("cancelled_attempt_loses_error", refutes="ATTEMPT-6", caught_by=CANCELLED_END, because="error_lost")
class CancelledAttemptLosesError(AgentRunRepository):
    """Where a cancel was requested the owner's error stands in the run, and its attempt ends without one."""

    async def _end(self, runs: Sequence[HeldRun], status: str, *, outcome: str, **end: Any) -> None:
        if outcome == CANCELLED and runs and runs[0].status == CANCEL_REQUESTED:
            error = {name: end.pop(name, None) for name in ("error_type", "error_message")}
            end["values"] = {**(end.get("values") or {}), **error}
        await super()._end(runs, status, outcome=outcome, **end)


class Recorded(AgentRunRepository):
    """Asks the history whether somebody owns a run."""

    async def has_attempt(self, run_id: str) -> bool:
        await self.lock_run(run_id)
        return bool(await self._connection.scalar(select(exists().where(ATTEMPTS.c.run_id == run_id))))


@defect("renew_needs_attempt", refutes="ATTEMPT-4", caught_by=OLD_RENEWAL, because="not_renewed")
class RenewNeedsAttempt(Recorded):
    """Fences a renewal by the attempt: an owner from before attempts loses its run in the upgrade."""

    async def renew_lease(self, run_id: str, *, owner_token: str, lease: timedelta) -> Renewed | Refused:
        run = await self.lock_run(run_id)
        if run is not None and run.is_legal and not await self.has_attempt(run_id):
            return Refused("not_the_owner")
        return await super().renew_lease(run_id, owner_token=owner_token, lease=lease)


@defect("release_needs_attempt", refutes="ATTEMPT-5", caught_by=OLD_RELEASE, because="not_released")
class ReleaseNeedsAttempt(Recorded):
    """Looks for the attempt to close before it gives a run back: without one it is kept."""

    async def release_lease_for_retry(self, run_id: str, *, owner_token: str, **error: Any) -> Ended | Refused:
        if not await self.has_attempt(run_id):
            return Refused("not_the_owner")
        return await super().release_lease_for_retry(run_id, owner_token=owner_token, **error)


class Inventive(Recorded):
    """Writes the attempt that a run from before attempts does not have."""

    async def invent(self, run: HeldRun, outcome: str | None) -> None:
        opening = self._attempts.opening(
            run.id, 1, owner_token=run.owner_token or "", now=run.now, lease_expires_at=run.lease_expires_at or run.now
        )
        await self._connection.execute(opening)
        if outcome is not None:
            await self._connection.execute(self._attempts.closing([run.id], outcome, now=run.now))


@defect("release_invents_attempt", refutes="ATTEMPT-10", caught_by=INVENTED, because="invented_by_owner")
class ReleaseInventsAttempt(Inventive):
    """Records, when an owner from before attempts gives its run back, the attempt that ends so."""

    async def release_lease_for_retry(self, run_id: str, *, owner_token: str, **error: Any) -> Ended | Refused:
        run = await self.lock_run(run_id)
        answer = await super().release_lease_for_retry(run_id, owner_token=owner_token, **error)
        if run is not None and isinstance(answer, Ended) and not await self.has_attempt(run_id):
            await self.invent(run, RETRY_RELEASED if answer.status == PENDING else CANCELLED)
        return answer


@defect("refresh_invents_attempt", refutes="ATTEMPT-10", caught_by=INVENTED, because="invented_by_owner")
class RefreshInventsAttempt(Inventive):
    """Records, when a live owner from before attempts claims again, its attempt."""

    async def mark_running(self, run_id: str, **claim: Any) -> Claimed | Ended | Refused:
        answer = await super().mark_running(run_id, **claim)
        run = await self.lock_run(run_id)
        if run is None or not isinstance(answer, Claimed) or answer.attempt_no is not None:
            return answer
        await self.invent(run, None)
        return replace(answer, attempt_no=1)
