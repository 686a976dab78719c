"""Defects of LOCK-2 that show in large levels, deep trees, near ages and mixed ids alone, or in runs asked before."""

from collections.abc import Iterable
from typing import Final

from sqlalchemy import func, select

from agentrun_defects._control import defect
from agentrun_reference.attempts import among
from agentrun_reference.outcomes import CancelResult
from agentrun_reference.repository import HELD_COLUMNS, IS_ACTIVE, THESE_RUNS, AgentRunRepository, HeldRun
from agentrun_reference.schema import RUNS
from agentrun_reference.shape import CANCEL_REQUESTED, PENDING, RUNNING

AGE_BEFORE_ID: Final = "test_runs_are_locked_by_age_before_id"
EQUAL_AGE: Final = "test_runs_of_equal_age_are_locked_by_id"
WIDE: Final = "test_wide_level_is_locked_in_one_order"
DEEP: Final = "test_deep_chain_is_locked_to_its_end"
MIXED_CASE: Final = "test_ids_of_mixed_case_are_locked_as_the_database_sorts_them"


@defect("orders_a_level_by_whole_seconds", refutes="LOCK-2", caught_by=AGE_BEFORE_ID, because="55P03")
class OrdersALevelByWholeSeconds(AgentRunRepository):
    """Compares ages in seconds, as its log shows them."""

    async def _lock_level(self, ids: Iterable[str]) -> list[HeldRun]:
        order = (func.date_trunc("second", RUNS.c.created_at), RUNS.c.id)
        return await self._lock(THESE_RUNS, IS_ACTIVE, order=order, run_ids=sorted(ids))


@defect("ignores_the_case_of_ids", refutes="LOCK-2", caught_by=MIXED_CASE, because="55P03")
class IgnoresTheCaseOfIds(AgentRunRepository):
    """Sorts ids as a locale does, capital letters among the others."""

    async def _lock_level(self, ids: Iterable[str]) -> list[HeldRun]:
        order = (RUNS.c.created_at, func.lower(RUNS.c.id), RUNS.c.id)
        return await self._lock(THESE_RUNS, IS_ACTIVE, order=order, run_ids=sorted(ids))


@defect("locks_a_level_in_batches", refutes="LOCK-2", caught_by=WIDE, because="55P03")
class LocksALevelInBatches(AgentRunRepository):
    """Locks twenty runs a statement: each batch is in order, the level is not."""

    async def _lock_level(self, ids: Iterable[str]) -> list[HeldRun]:
        level, held = sorted(ids), list[HeldRun]()
        for start in range(0, len(level), 20):
            held += await super()._lock_level(level[start : start + 20])
        return held


@defect("lists_a_hundred_subagents", refutes="LOCK-2", caught_by=WIDE, because="did_not_wait")
class ListsAHundredSubagents(AgentRunRepository):
    """Reads a level by a page of a hundred, and no second page."""

    async def _children(self, ids: Iterable[str]) -> set[str]:
        return set(sorted(await super()._children(ids))[:100])


@defect("goes_six_levels_down", refutes="LOCK-2", caught_by=DEEP, because="did_not_wait")
class GoesSixLevelsDown(AgentRunRepository):
    """Guards against cycles by a limit of depth."""

    async def request_cancel_execution_tree(self, root_id: str) -> CancelResult:
        self._depth = 0
        return await super().request_cancel_execution_tree(root_id)

    async def _children(self, ids: Iterable[str]) -> set[str]:
        self._depth += 1
        return await super()._children(ids) if self._depth <= 6 else set()


@defect("locks_no_run_that_was_asked_before", refutes="LOCK-2", caught_by=EQUAL_AGE, because="did_not_wait")
class LocksNoRunThatWasAskedBefore(AgentRunRepository):
    """Reads the descendants that were asked to stop before, and locks only those to which it will write."""

    async def _lock_level(self, ids: Iterable[str]) -> list[HeldRun]:
        order, level = (RUNS.c.created_at, RUNS.c.id), sorted(ids)
        to_write, was_asked = RUNS.c.status.in_((PENDING, RUNNING)), RUNS.c.status == CANCEL_REQUESTED
        held = await self._lock(THESE_RUNS, to_write, order=order, run_ids=level)
        asked = select(*HELD_COLUMNS).where(among(RUNS.c.id, level), was_asked).cte("asked")
        read = await self._connection.execute(select(asked, func.clock_timestamp()))
        return held + [HeldRun(*row) for row in read]
