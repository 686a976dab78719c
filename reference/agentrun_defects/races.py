"""Defects of ATTEMPT-1, 4, 5 and 6: operations that look at a run, wait for it, and decide by what they saw before."""

from datetime import timedelta
from typing import Any, Final

from sqlalchemy import Select, func, select

from agentrun_defects._control import defect
from agentrun_reference.outcomes import Claimed, Ended, Refused, Renewed
from agentrun_reference.repository import HELD_COLUMNS, AgentRunRepository, HeldRun
from agentrun_reference.schema import RUNS

RENEWAL: Final = "test_renewal_decides_by_the_row_that_it_waited_for"
RELEASE: Final = "test_release_decides_by_the_row_that_it_waited_for"
END: Final = "test_end_decides_by_the_row_that_it_waited_for"
CLAIM: Final = "test_claim_decides_by_the_row_that_it_waited_for"


class Unlocked(AgentRunRepository):
    """Reads a run without a lock, and leaves it to the write to wait for it."""

    async def lock_run(self, run_id: str) -> HeldRun | None:
        read: Select[*tuple[Any, ...]] = select(*HELD_COLUMNS, func.clock_timestamp()).where(RUNS.c.id == run_id)
        row = (await self._connection.execute(read)).one_or_none()
        return None if row is None else HeldRun(*row)


@defect("renew_unlocked_read", refutes="ATTEMPT-4", caught_by=RENEWAL, because="stale_answer")
class RenewUnlockedRead(AgentRunRepository):
    """Renews by a plain read of the run: a cancel that commits before the write is not told of."""

    async def renew_lease(self, run_id: str, *, owner_token: str, lease: timedelta) -> Renewed | Refused:
        return await Unlocked(self._connection).renew_lease(run_id, owner_token=owner_token, lease=lease)


@defect("release_unlocked_read", refutes="ATTEMPT-5", caught_by=RELEASE, because="cancel_lost")
class ReleaseUnlockedRead(AgentRunRepository):
    """Releases by a plain read of the run: a cancel that commits before the write is lost."""

    async def release_lease_for_retry(self, run_id: str, *, owner_token: str, **error: Any) -> Ended | Refused:
        return await Unlocked(self._connection).release_lease_for_retry(run_id, owner_token=owner_token, **error)


@defect("finish_unlocked_read", refutes="ATTEMPT-6", caught_by=END, because="cancel_lost")
class FinishUnlockedRead(AgentRunRepository):
    """Ends by a plain read of the run: what was committed before the write is overwritten."""

    async def set_terminal_status(self, run_id: str, **end: Any) -> Ended | Refused:
        return await Unlocked(self._connection).set_terminal_status(run_id, **end)


@defect("claim_decides_before_lock", refutes="ATTEMPT-1", caught_by=CLAIM, because="claimed_anyway")
class ClaimDecidesBeforeLock(AgentRunRepository):
    """Sees that the run is free, then locks and numbers: the second of two claimers takes the run from the first."""

    async def mark_running(self, run_id: str, **claim: Any) -> Claimed | Ended | Refused:
        self._read = await Unlocked(self._connection).lock_run(run_id)
        return await super().mark_running(run_id, **claim)

    async def lock_run(self, run_id: str) -> HeldRun | None:
        run, read = await super().lock_run(run_id), self.__dict__.pop("_read", None)
        return read if run is not None and read is not None else run
