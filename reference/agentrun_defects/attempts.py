"""Defects of ATTEMPT-1 to 4: claims and renewals that leave another history than what happened."""

from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import ColumnElement, Text, cast, func, select, text

from agentrun_defects._control import defect
from agentrun_reference.attempts import LEASE_EXPIRED, Attempts, History
from agentrun_reference.outcomes import Claimed, Ended, Refused, Renewed
from agentrun_reference.repository import AgentRunRepository, HeldRun
from agentrun_reference.schema import ATTEMPTS, RUNS
from agentrun_reference.shape import CANCEL_REQUESTED, FAILED, RUNNING

NUMBER: Final = "test_claim_opens_the_attempt_after_the_last"
LOCKED: Final = "test_attempt_is_numbered_with_the_row_locked"
WITHIN: Final = "test_attempt_is_written_in_the_transaction_of_its_run"
SAME_NAME: Final = "test_new_token_opens_a_new_attempt_under_the_same_worker_name"
NOT_ALLOWED: Final = "test_claim_that_the_run_does_not_allow_opens_nothing"
TAKEOVER: Final = "test_takeover_closes_the_open_attempt_as_lease_expired"
LEFT_OPEN: Final = "test_claim_of_a_pending_run_closes_an_attempt_left_open"
REFRESH: Final = "test_live_owner_claiming_again_only_refreshes"
SPENT: Final = "test_token_is_good_for_one_attempt_of_a_run"
RENEWAL: Final = "test_renewal_renews_run_and_attempt_together"
STALE: Final = "test_renewal_by_anyone_else_changes_nothing_and_says_so"

UNIQUE_VIOLATION: Final = "23505"

Claim = Claimed | Ended | Refused


class TextNumbers(Attempts):
    """The number that sorts last as text."""

    def next_no(self) -> ColumnElement[int]:
        last = func.max(cast(ATTEMPTS.c.attempt_no, Text))
        return func.coalesce(cast(last, ATTEMPTS.c.attempt_no.type), 0) + 1


@defect("numbers_attempts_as_text", refutes="ATTEMPT-1", caught_by=NUMBER, because=UNIQUE_VIOLATION)
class NumbersAttemptsAsText(AgentRunRepository):
    """Takes the number that sorts last as text: behind twelve attempts the next would be the tenth again."""

    def __init__(self, connection: Any) -> None:
        super().__init__(connection)
        self._attempts = TextNumbers()


@defect("numbers_before_it_locks", refutes="ATTEMPT-1", caught_by=LOCKED, because=UNIQUE_VIOLATION)
class NumbersBeforeItLocks(AgentRunRepository):
    """Reads the history, then waits for the run: what was written meanwhile does not count."""

    async def mark_running(self, run_id: str, *, owner_token: str, worker_id: str, lease: timedelta) -> Claim:
        self._read = await super()._history(run_id, owner_token)
        return await super().mark_running(run_id, owner_token=owner_token, worker_id=worker_id, lease=lease)

    async def _history(self, run_id: str, owner_token: str) -> History:
        return self._read


@defect("commits_the_attempt_first", refutes="ATTEMPT-1", caught_by=WITHIN, because="seen_before_commit")
class CommitsTheAttemptFirst(AgentRunRepository):
    """Saves the attempt at once, so that a crash does not lose it; a rollback then leaves an owner who never was."""

    async def _take(self, run: HeldRun, attempt_no: int, **owner: Any) -> Claimed:
        until = run.now + owner["lease"]
        await self._connection.execute(
            self._attempts.opening(
                run.id, attempt_no, owner_token=owner["owner_token"], now=run.now, lease_expires_at=until
            )
        )
        await self._connection.execute(text("COMMIT"))
        values = {"status": RUNNING, "worker_id": owner["worker_id"], "owner_token": owner["owner_token"]}
        await self._write([run.id], {**values, "lease_expires_at": until, "started_at": run.now})
        return Claimed(owner["owner_token"], attempt_no, until)


@defect("knows_owners_by_worker_name", refutes="ATTEMPT-1", caught_by=SAME_NAME, because="ownership_unrecorded")
class KnowsOwnersByWorkerName(AgentRunRepository):
    """A worker that restarts under its stable name goes on with the attempt of its former life."""

    async def mark_running(self, run_id: str, *, owner_token: str, worker_id: str, lease: timedelta) -> Claim:
        run = await self.lock_run(run_id)
        label = await self._connection.scalar(select(RUNS.c.worker_id).where(RUNS.c.id == run_id))
        if run is None or run.status != RUNNING or not run.has_expired or label != worker_id:
            return await super().mark_running(run_id, owner_token=owner_token, worker_id=worker_id, lease=lease)
        until = run.now + lease
        await self._write([run_id], {"owner_token": owner_token, "lease_expires_at": until})
        return Claimed(owner_token, 1, until)


@defect("claims_what_is_to_be_cancelled", refutes="ATTEMPT-1", caught_by=NOT_ALLOWED, because="claimed_anyway")
class ClaimsWhatIsToBeCancelled(AgentRunRepository):
    """Takes every run over whose lease has expired, also one whose cancel was requested."""

    async def mark_running(self, run_id: str, *, owner_token: str, worker_id: str, lease: timedelta) -> Claim:
        run = await self.lock_run(run_id)
        if run is None or run.status != CANCEL_REQUESTED or not run.has_expired:
            return await super().mark_running(run_id, owner_token=owner_token, worker_id=worker_id, lease=lease)
        history = await self._history(run_id, owner_token)
        await self._connection.execute(self._attempts.closing([run_id], LEASE_EXPIRED, now=run.now))
        return await self._take(run, history.next_no, owner_token=owner_token, worker_id=worker_id, lease=lease)


class FailedTakeovers(Attempts):
    """What a takeover ends, has failed."""

    def closing(self, run_ids: Any, outcome: str, **named: Any) -> Any:
        return super().closing(run_ids, FAILED if outcome == LEASE_EXPIRED else outcome, **named)


@defect(
    "takes_over_what_failed",
    refutes="ATTEMPT-2",
    caught_by=TAKEOVER,
    because="not_closed",
    also=["ATTEMPT-1", "ATTEMPT-16"],
)
class TakesOverWhatFailed(AgentRunRepository):
    """Closes the attempt that it takes over as failed, though nobody knows what became of it."""

    async def _history(self, run_id: str, owner_token: str) -> History:
        history = await super()._history(run_id, owner_token)
        self._attempts = FailedTakeovers()
        return history


@defect("closes_for_running_runs_alone", refutes="ATTEMPT-2", caught_by=LEFT_OPEN, because=UNIQUE_VIOLATION)
class ClosesForRunningRunsAlone(AgentRunRepository):
    """Expects that a pending run has no open attempt, and stumbles over one that an older release left."""

    async def _history(self, run_id: str, owner_token: str) -> History:
        history = await super()._history(run_id, owner_token)
        status = await self._connection.scalar(select(RUNS.c.status).where(RUNS.c.id == run_id))
        return History(history.next_no, history.has_open and status == RUNNING, history.token_spent)


@defect("counts_every_claim", refutes="ATTEMPT-3", caught_by=REFRESH, because="second_attempt")
class CountsEveryClaim(AgentRunRepository):
    """A worker that asks again, after an answer that was lost, gets a second attempt."""

    async def mark_running(self, run_id: str, *, owner_token: str, worker_id: str, lease: timedelta) -> Claim:
        run = await self.lock_run(run_id)
        if run is None or run.status != RUNNING or not run.is_owned_by(owner_token) or not run.is_legal:
            return await super().mark_running(run_id, owner_token=owner_token, worker_id=worker_id, lease=lease)
        history = await self._history(run_id, owner_token)
        await self._connection.execute(self._attempts.closing([run_id], LEASE_EXPIRED, now=run.now))
        return await self._take(run, history.next_no, owner_token=owner_token, worker_id=worker_id, lease=lease)


@defect("forgets_spent_tokens", refutes="ATTEMPT-3", caught_by=SPENT, because="token_reused")
class ForgetsSpentTokens(AgentRunRepository):
    """Compares a token with the run's alone, not with those of its closed attempts."""

    async def _history(self, run_id: str, owner_token: str) -> History:
        history = await super()._history(run_id, owner_token)
        return History(history.next_no, history.has_open, token_spent=False)


@defect("revives_its_own_expired_lease", refutes="ATTEMPT-3", caught_by=SPENT, because="token_reused")
class RevivesItsOwnExpiredLease(AgentRunRepository):
    """Lets the holder of the token go on after its lease has expired, since nobody has taken over yet."""

    async def mark_running(self, run_id: str, *, owner_token: str, worker_id: str, lease: timedelta) -> Claim:
        run = await self.lock_run(run_id)
        if run is not None and run.status == RUNNING and run.owner_token == owner_token and run.is_legal:
            until, attempt_no = await self._renew(run, owner_token, lease)
            return Claimed(owner_token, attempt_no, until)
        return await super().mark_running(run_id, owner_token=owner_token, worker_id=worker_id, lease=lease)


@defect("renews_the_run_alone", refutes="ATTEMPT-4", caught_by=RENEWAL, because="leases_differ", also=["ATTEMPT-3"])
class RenewsTheRunAlone(AgentRunRepository):
    """Forgets the attempt, whose lease then ends while its owner is alive."""

    async def _renew(self, run: HeldRun, owner_token: str, lease: timedelta) -> tuple[datetime, int | None]:
        if not run.is_legal:
            return await super()._renew(run, owner_token, lease)
        until = max(run.lease_expires_at or run.now, run.now + lease)
        await self._write([run.id], {"lease_expires_at": until, "heartbeat_at": run.now})
        number = select(func.max(ATTEMPTS.c.attempt_no)).where(ATTEMPTS.c.run_id == run.id)
        return until, await self._connection.scalar(number)


@defect("shortens_leases", refutes="ATTEMPT-4", caught_by=RENEWAL, because="shortened")
class ShortensLeases(AgentRunRepository):
    """Sets the lease to what was asked for, though the one that it has is longer."""

    async def _renew(self, run: HeldRun, owner_token: str, lease: timedelta) -> tuple[datetime, int | None]:
        if not run.is_legal:
            return await super()._renew(run, owner_token, lease)
        until = run.now + lease
        renewing = self._attempts.renewing(run.id, owner_token=owner_token, now=run.now, lease_expires_at=until)
        return until, await self._write([run.id], {"lease_expires_at": until, "heartbeat_at": run.now}, renewing)


@defect("renews_what_has_expired", refutes="ATTEMPT-4", caught_by=STALE, because="renewed_anyway")
class RenewsWhatHasExpired(AgentRunRepository):
    """A late heartbeat revives its owner: the token is compared, and the lease is not looked at."""

    async def renew_lease(self, run_id: str, *, owner_token: str, lease: timedelta) -> Renewed | Refused:
        run = await self.lock_run(run_id)
        if run is None or not run.has_holder or not run.is_legal or run.owner_token != owner_token:
            return await super().renew_lease(run_id, owner_token=owner_token, lease=lease)
        until, _ = await self._renew(run, owner_token, lease)
        return Renewed(until, run.status == CANCEL_REQUESTED)


@defect("tells_stale_owners_nothing", refutes="ATTEMPT-4", caught_by=STALE, because="renewed_anyway")
class TellsStaleOwnersNothing(AgentRunRepository):
    """Does not look at how many rows its update touched: who lost the run works on."""

    async def renew_lease(self, run_id: str, *, owner_token: str, lease: timedelta) -> Renewed | Refused:
        answer = await super().renew_lease(run_id, owner_token=owner_token, lease=lease)
        now = await self._connection.scalar(select(func.clock_timestamp()))
        return Renewed(now, cancel_requested=False) if isinstance(answer, Refused) and now else answer
