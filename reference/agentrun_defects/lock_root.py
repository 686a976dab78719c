"""Defects of LOCK and CANCEL at the root: it is not locked, its lock is given back, or its status is read too early."""

from dataclasses import replace
from typing import Final

from sqlalchemy import func, select

from agentrun_defects._control import defect
from agentrun_reference.outcomes import CancelResult
from agentrun_reference.repository import HELD_COLUMNS, AgentRunRepository, HeldRun
from agentrun_reference.schema import RUNS
from agentrun_reference.shape import CANCEL_REQUESTED, CANCELLED, INTERRUPTED

ANY_STATUS: Final = "test_root_of_any_status_is_locked_while_a_descendant_is_awaited"
BELOW_ENDED_ROOT: Final = "test_active_runs_below_a_root_that_has_ended_are_reached"
AWAITED_ROOT: Final = "test_root_that_ends_while_awaited_stays_and_those_below_are_reached"
AWAITED_ROOTS_ANSWER: Final = "test_cancel_answers_for_a_root_that_ended_while_it_was_awaited"


class ReadsTheRootFirst(AgentRunRepository):
    """Reads the root before it locks it; `_root` decides what becomes of the two rows."""

    _before: HeldRun | None = None

    async def request_cancel_execution_tree(self, root_id: str) -> CancelResult:
        read = select(*HELD_COLUMNS).where(RUNS.c.id == root_id).cte("read")
        row = (await self._connection.execute(select(read, func.clock_timestamp()))).one_or_none()
        self._before = None if row is None else HeldRun(*row)
        return await super().request_cancel_execution_tree(root_id)

    async def lock_run(self, run_id: str) -> HeldRun | None:
        read, self._before = self._before, None
        return await super().lock_run(run_id) if read is None else await self._root(read)

    async def _root(self, read: HeldRun) -> HeldRun | None:
        raise NotImplementedError


@defect("passes_an_asked_root_by", refutes="LOCK-1", caught_by=ANY_STATUS, because="not_locked")
class PassesAnAskedRootBy(ReadsTheRootFirst):
    """Does not lock a root that was asked to stop before: there is nothing to write to it."""

    async def _root(self, read: HeldRun) -> HeldRun | None:
        return read if read.status == CANCEL_REQUESTED else await self.lock_run(read.id)


@defect("passes_a_cancelled_root_by", refutes="LOCK-1", caught_by=ANY_STATUS, because="not_locked")
class PassesACancelledRootBy(ReadsTheRootFirst):
    """Does not lock a root that was cancelled or interrupted, though it does lock one that completed or failed."""

    async def _root(self, read: HeldRun) -> HeldRun | None:
        return read if read.status in (CANCELLED, INTERRUPTED) else await self.lock_run(read.id)


@defect(
    "decides_by_the_root_that_it_read_before",
    refutes="LOCK-4",
    caught_by=AWAITED_ROOT,
    because="terminal_changed",
    also=["CANCEL-3"],
)
class DecidesByTheRootThatItReadBefore(ReadsTheRootFirst):
    """Waits for the root, and then decides by what it had read of it before."""

    async def _root(self, read: HeldRun) -> HeldRun | None:
        await self.lock_run(read.id)
        return read


@defect(
    "gives_the_roots_lock_back",
    refutes="LOCK-1",
    caught_by=ANY_STATUS,
    because="not_locked",
    also=["ATTEMPT-4", "ATTEMPT-5", "ATTEMPT-6"],
)
class GivesTheRootsLockBack(ReadsTheRootFirst):
    """Locks the root inside a savepoint, which it rolls back before it goes on."""

    async def _root(self, read: HeldRun) -> HeldRun | None:
        savepoint = await self._connection.begin_nested()
        root = await self.lock_run(read.id)
        await savepoint.rollback()
        return root


@defect(
    "leaves_the_tree_of_a_cancelled_root",
    refutes="LOCK-4",
    caught_by=BELOW_ENDED_ROOT,
    because="not_reached",
    also=["LOCK-1"],
)
class LeavesTheTreeOfACancelledRoot(AgentRunRepository):
    """Takes it that below a root that was cancelled or interrupted everything is over."""

    async def request_cancel_execution_tree(self, root_id: str) -> CancelResult:
        root = await self.lock_run(root_id)
        if root is not None and root.status in (CANCELLED, INTERRUPTED):
            return CancelResult(runs={root_id: (root.status, root.status)})
        return await super().request_cancel_execution_tree(root_id)


@defect(
    "answers_by_the_root_that_it_read_before",
    refutes="CANCEL-3",
    caught_by=AWAITED_ROOTS_ANSWER,
    because="wrong_answer",
)
class AnswersByTheRootThatItReadBefore(AgentRunRepository):
    """Decides by the locked root, and answers with the status that it had read before it waited."""

    async def request_cancel_execution_tree(self, root_id: str) -> CancelResult:
        before = await self._statuses([root_id])
        result = await super().request_cancel_execution_tree(root_id)
        runs = {run: (before.get(run, change)[0], change[1]) for run, change in result.runs.items()}
        return replace(result, runs=runs)
