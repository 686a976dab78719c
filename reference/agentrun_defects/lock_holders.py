"""Defects around holders: an owner without a lease is taken for none, and locks stay where an operation ends early."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from sqlalchemy import func, select

from agentrun_defects._control import defect
from agentrun_reference.outcomes import CancelResult, Change, Ended, Refused
from agentrun_reference.repository import AgentRunRepository, HeldRun
from agentrun_reference.service import AgentRunService

TABLE: Final = "test_cancel_writes_the_facts_of_the_table"
HOLDERS: Final = "test_cancel_returns_each_run_with_a_holder_once"
REFUSED: Final = "test_no_lock_outlives_an_operation_that_is_refused"
CREATED: Final = "test_no_lock_outlives_the_transaction_of_a_creation_in_a_tree"


@defect(
    "ends_owners_without_a_lease",
    refutes="CANCEL-1",
    caught_by=TABLE,
    because="not_requested",
    also=["CANCEL-3", "LOCK-5"],
)
class EndsOwnersWithoutALease(AgentRunRepository):
    """Takes a token without a lease for nobody's, and cancels the run under its owner."""

    async def _cancel(self, runs: Sequence[HeldRun]) -> dict[str, Change]:
        return await super()._cancel(
            [replace(run, owner_token=None) if run.lease_expires_at is None else run for run in runs]
        )


@defect("signals_no_owner_without_a_lease", refutes="LOCK-5", caught_by=HOLDERS, because="owner_not_signalled")
class SignalsNoOwnerWithoutALease(AgentRunRepository):
    """Asks an owner without a lease to stop, and does not tell it."""

    async def _cancel(self, runs: Sequence[HeldRun]) -> dict[str, Change]:
        self._without = {run.id for run in runs if run.lease_expires_at is None}
        return await super()._cancel(runs)

    async def request_cancel_execution_tree(self, root_id: str) -> CancelResult:
        result = await super().request_cancel_execution_tree(root_id)
        return replace(result, to_signal=tuple(run for run in result.to_signal if run not in self._without))


@defect("keeps_a_lock_when_it_refuses", refutes="LOCK-10", caught_by=REFUSED, because="lock_left")
class KeepsALockWhenItRefuses(AgentRunRepository):
    """Guards an end by an advisory lock of the session, and gives it back where the end succeeds."""

    async def set_terminal_status(self, run_id: str, **ending: Any) -> Ended | Refused:
        key = func.hashtext(run_id)
        await self._connection.execute(select(func.pg_advisory_lock_shared(key)))
        answer = await super().set_terminal_status(run_id, **ending)
        if isinstance(answer, Ended):
            await self._connection.execute(select(func.pg_advisory_unlock_shared(key)))
        return answer


@defect("keeps_a_lock_on_the_creator", refutes="LOCK-10", caught_by=CREATED, because="lock_left")
class KeepsALockOnTheCreator(AgentRunService):
    """Guards the creator of a subagent by an advisory lock of the session, and never gives it back."""

    async def create_subagent(self, *, created_by_run_id: str, **new: Any) -> str:
        await self.connection.execute(select(func.pg_advisory_lock_shared(func.hashtext(created_by_run_id))))
        return await super().create_subagent(created_by_run_id=created_by_run_id, **new)
