"""Defects of LOCK: the order of locks, the rows that a cancel touches, whom it signals, and how its waits end."""

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from itertools import chain
from typing import Any, Final

from sqlalchemy import ColumnElement, select, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection

from agentrun_defects._control import defect, system_defect
from agentrun_reference.attempts import among
from agentrun_reference.conformance import STATEMENT_TIMEOUT, ReferenceActor, ReferenceSystem, connect
from agentrun_reference.outcomes import CancelResult, Change, Claimed, Ended, Refused
from agentrun_reference.repository import AgentRunRepository, HeldRun
from agentrun_reference.schema import RUNS
from agentrun_reference.shape import ACTIVE, RUNNING, TERMINAL
from leaseproof.system import Operations, Timeouts

ROOT_FIRST: Final = "test_cancel_execution_tree_locks_root_before_descendants"
TERMINAL_ROOT: Final = "test_terminal_root_is_locked_before_its_descendants"
COUSINS: Final = "test_descendants_are_locked_level_by_level_among_cousins"
EQUAL_AGE: Final = "test_runs_of_equal_age_are_locked_by_id"
AGE_BEFORE_ID: Final = "test_runs_are_locked_by_age_before_id"
TERMINAL_ONES: Final = "test_terminal_descendants_are_neither_awaited_nor_changed"
AWAITED_END: Final = "test_run_that_ends_while_awaited_stays_and_those_below_are_reached"
HOLDERS: Final = "test_cancel_returns_each_run_with_a_holder_once"
ILLEGAL_OWNER: Final = "test_cancel_returns_the_owner_of_a_run_of_illegal_shape"
TIMES_OUT: Final = "test_blocked_cancel_times_out_without_a_trace_and_can_be_repeated"
SHORT_WAITS: Final = "test_many_short_waits_together_stay_within_the_timeout"
LEVEL_AFTER_LEVEL: Final = "test_short_waits_on_every_level_together_stay_within_the_timeout"
NOTHING_OUTLIVES: Final = "test_no_lock_outlives_the_transaction_of_a_lease_operation"


@defect("locks_children_first", refutes="LOCK-1", caught_by=ROOT_FIRST, because="55P03")
class LocksChildrenFirst(AgentRunRepository):
    """Locks the descendants, and the root at the end."""

    async def request_cancel_execution_tree(self, root_id: str) -> CancelResult:
        seen = level = {root_id}
        while level := await self._children(level) - seen:
            seen = seen | level
            await self._lock_level(level)
        return await super().request_cancel_execution_tree(root_id)


@defect("passes_a_terminal_root_by", refutes="LOCK-1", caught_by=TERMINAL_ROOT, because="did_not_wait")
class PassesATerminalRootBy(AgentRunRepository):
    """Has nothing to change about a root that has ended, and goes straight to its subagents without locking it."""

    async def request_cancel_execution_tree(self, root_id: str) -> CancelResult:
        root = await self.run(root_id)
        if root is None or root.status in ACTIVE:
            return await super().request_cancel_execution_tree(root_id)
        children = sorted(await self._children({root_id}))
        results = [await self.request_cancel_execution_tree(run) for run in children]
        return CancelResult(
            tuple(chain.from_iterable(result.to_signal for result in results)),
            dict(chain.from_iterable(result.runs.items() for result in results)),
            frozenset(chain.from_iterable(result.ended_illegal for result in results)),
        )


@defect("orders_a_level_by_id", refutes="LOCK-2", caught_by=AGE_BEFORE_ID, because="55P03")
class OrdersALevelById(AgentRunRepository):
    """Takes the order of ids for the order of creation."""

    async def _lock_level(self, ids: Iterable[str]) -> list[HeldRun]:
        return await self._lock(among(RUNS.c.id, sorted(ids)), RUNS.c.status.in_(ACTIVE), order=(RUNS.c.id,))


@defect("orders_a_level_by_age_alone", refutes="LOCK-2", caught_by=EQUAL_AGE, because="55P03")
class OrdersALevelByAgeAlone(AgentRunRepository):
    """Leaves runs that were created at once in the order in which the plan meets them."""

    async def _lock_level(self, ids: Iterable[str]) -> list[HeldRun]:
        return await self._lock(among(RUNS.c.id, sorted(ids)), RUNS.c.status.in_(ACTIVE), order=(RUNS.c.created_at,))


@defect("locks_the_tree_in_one_statement", refutes="LOCK-2", caught_by=COUSINS, because="55P03")
class LocksTheTreeInOneStatement(AgentRunRepository):
    """Finds all descendants first and locks them together by age, so that a grandchild goes before its uncle."""

    async def _children(self, ids: Iterable[str]) -> set[str]:
        below, level = set[str](), set(ids)
        while level := await super()._children(level) - below:
            below |= level
        return below


@defect("locks_each_creators_children_apart", refutes="LOCK-2", caught_by=COUSINS, because="55P03")
class LocksEachCreatorsChildrenApart(AgentRunRepository):
    """Orders siblings, not cousins: one creator's subagents after another's."""

    async def _lock_level(self, ids: Iterable[str]) -> list[HeldRun]:
        creators = select(RUNS.c.created_by_run_id).where(among(RUNS.c.id, sorted(ids))).distinct()
        held: list[HeldRun] = []
        for creator in sorted((await self._connection.scalars(creators)).all()):
            held += await super()._lock_level(set(ids) & await self._children({creator}))
        return held


@defect("locks_depth_first", refutes="LOCK-2", caught_by=COUSINS, because="55P03", also=["LOCK-7"])
class LocksDepthFirst(AgentRunRepository):
    """Locks all that is below a run before it turns to the run's siblings."""

    async def request_cancel_execution_tree(self, root_id: str) -> CancelResult:
        self._met = {root_id}
        return await super().request_cancel_execution_tree(root_id)

    async def _lock_level(self, ids: Iterable[str]) -> list[HeldRun]:
        held: list[HeldRun] = []
        for run in sorted(set(ids) - self._met):
            self._met.add(run)
            held += await super()._lock_level({run})
            held += await self._lock_level(await self._children({run}))
        return held


@defect(
    "skips_locked_descendants",
    refutes="LOCK-2",
    caught_by=COUSINS,
    because="did_not_wait",
    also=["CANCEL-3", "LOCK-1", "LOCK-4", "LOCK-5", "LOCK-7"],
)
class SkipsLockedDescendants(AgentRunRepository):
    """Passes by whatever somebody holds, as a queue does: SKIP LOCKED in a cancel."""

    async def _lock_level(self, ids: Iterable[str]) -> list[HeldRun]:
        order = (RUNS.c.created_at, RUNS.c.id)
        return await self._lock(among(RUNS.c.id, sorted(ids)), RUNS.c.status.in_(ACTIVE), order=order, skip_locked=True)


@defect("locks_terminal_descendants", refutes="LOCK-4", caught_by=TERMINAL_ONES, because="waited", also=["LOCK-2"])
class LocksTerminalDescendants(AgentRunRepository):
    """Locks every run of a level, and looks for the active ones afterwards."""

    async def _lock_level(self, ids: Iterable[str]) -> list[HeldRun]:
        return await self._lock(among(RUNS.c.id, sorted(ids)), order=(RUNS.c.created_at, RUNS.c.id))


@defect("stops_at_a_terminal_run", refutes="LOCK-4", caught_by=TERMINAL_ONES, because="not_reached")
class StopsAtATerminalRun(AgentRunRepository):
    """Takes it that nothing is active below a descendant that has ended."""

    async def _children(self, ids: Iterable[str]) -> set[str]:
        ended = select(RUNS.c.id).where(
            among(RUNS.c.id, sorted(ids)), RUNS.c.status.in_(TERMINAL), RUNS.c.created_by_run_id.is_not(None)
        )
        return await super()._children(set(ids) - set((await self._connection.scalars(ended)).all()))


@defect("descends_through_what_it_locked", refutes="LOCK-4", caught_by=AWAITED_END, because="not_reached")
class DescendsThroughWhatItLocked(AgentRunRepository):
    """Goes on below runs that had ended before and below those that it locked; a run that ends meanwhile is neither."""

    _through: set[str] | None = None

    async def _lock_level(self, ids: Iterable[str]) -> list[HeldRun]:
        ended = select(RUNS.c.id).where(among(RUNS.c.id, sorted(ids)), RUNS.c.status.in_(TERMINAL))
        self._through = set((await self._connection.scalars(ended)).all())
        held = await super()._lock_level(ids)
        self._through |= {run.id for run in held}
        return held

    async def _children(self, ids: Iterable[str]) -> set[str]:
        return await super()._children(ids if self._through is None else self._through)


@defect(
    "decides_by_what_it_read_before_the_lock",
    refutes="LOCK-4",
    caught_by=AWAITED_END,
    because="terminal_changed",
    also=["CANCEL-3"],
)
class DecidesByWhatItReadBeforeTheLock(AgentRunRepository):
    """Reads the statuses, then waits for the rows, and decides by the statuses that it had read."""

    async def _lock_level(self, ids: Iterable[str]) -> list[HeldRun]:
        read = select(RUNS.c.id, RUNS.c.status).where(among(RUNS.c.id, sorted(ids)), RUNS.c.status.in_(ACTIVE))
        before = {row.id: row.status for row in await self._connection.execute(read)}
        held = await self._lock(among(RUNS.c.id, sorted(before)), order=(RUNS.c.created_at, RUNS.c.id))
        return [replace(run, status=before[run.id]) for run in held]


@defect("signals_every_active_run", refutes="LOCK-5", caught_by=HOLDERS, because="needless_signal", also=["SHAPE-6"])
class SignalsEveryActiveRun(AgentRunRepository):
    """Signals runs that nobody holds, too."""

    async def request_cancel_execution_tree(self, root_id: str) -> CancelResult:
        result = await super().request_cancel_execution_tree(root_id)
        return replace(result, to_signal=tuple(run for run, (before, _) in result.runs.items() if before in ACTIVE))


@defect(
    "signals_live_leases_alone", refutes="LOCK-5", caught_by=HOLDERS, because="owner_not_signalled", also=["SHAPE-6"]
)
class SignalsLiveLeasesAlone(AgentRunRepository):
    """Takes an owner whose lease has expired for dead; it may be only late."""

    async def _cancel(self, runs: Sequence[HeldRun]) -> dict[str, Change]:
        self._expired = {run.id for run in runs if run.has_expired}
        return await super()._cancel(runs)

    async def request_cancel_execution_tree(self, root_id: str) -> CancelResult:
        result = await super().request_cancel_execution_tree(root_id)
        return replace(result, to_signal=tuple(run for run in result.to_signal if run not in self._expired))


@defect(
    "signals_only_what_it_changed", refutes="LOCK-5", caught_by=HOLDERS, because="owner_not_signalled", also=["SHAPE-6"]
)
class SignalsOnlyWhatItChanged(AgentRunRepository):
    """Does not tell an owner again whose first signal may have been lost."""

    async def request_cancel_execution_tree(self, root_id: str) -> CancelResult:
        result = await super().request_cancel_execution_tree(root_id)
        return replace(result, to_signal=tuple(run for run in result.to_signal if result.runs[run][0] == RUNNING))


@defect("signals_the_root_twice", refutes="LOCK-5", caught_by=HOLDERS, because="signalled_twice", also=["SHAPE-6"])
class SignalsTheRootTwice(AgentRunRepository):
    """Signals the root for itself, and again among the runs of its tree."""

    async def request_cancel_execution_tree(self, root_id: str) -> CancelResult:
        result = await super().request_cancel_execution_tree(root_id)
        roots = tuple(run for run in result.to_signal if run == root_id)
        return replace(result, to_signal=roots + result.to_signal)


@defect(
    "forgets_the_owner_of_an_illegal_run",
    refutes="LOCK-5",
    caught_by=ILLEGAL_OWNER,
    because="owner_not_signalled",
    also=["SHAPE-6"],
)
class ForgetsTheOwnerOfAnIllegalRun(AgentRunRepository):
    """Ends a run of illegal shape at once, and lets its owner work on."""

    async def request_cancel_execution_tree(self, root_id: str) -> CancelResult:
        result = await super().request_cancel_execution_tree(root_id)
        return replace(result, to_signal=tuple(run for run in result.to_signal if run not in result.ended_illegal))


@defect("waits_for_ever", refutes="LOCK-7", caught_by=TIMES_OUT, because="did_not_end", also=["LOCK-10"])
class WaitsForEver(AgentRunRepository):
    """Lifts the statement time-out, so that a cancel is never given up."""

    async def request_cancel_execution_tree(self, root_id: str) -> CancelResult:
        await self._connection.execute(text("SET LOCAL statement_timeout = 0"))
        return await super().request_cancel_execution_tree(root_id)


@defect("times_each_lock_out_alone", refutes="LOCK-7", caught_by=SHORT_WAITS, because="no_timeout")
class TimesEachLockOutAlone(AgentRunRepository):
    """Has a lock_timeout in the statement time-out's place, which starts again at each row."""

    async def request_cancel_execution_tree(self, root_id: str) -> CancelResult:
        await self._connection.execute(
            text(
                "SELECT set_config('lock_timeout', current_setting('statement_timeout'), true), "
                "set_config('statement_timeout', '0', true)"
            )
        )
        return await super().request_cancel_execution_tree(root_id)


@defect("times_each_level_out_alone", refutes="LOCK-7", caught_by=LEVEL_AFTER_LEVEL, because="no_timeout")
class TimesEachLevelOutAlone(AgentRunRepository):
    """Leaves the time-out to PostgreSQL, which gives each level's statement the whole of it again."""

    _timeout: str | None = None

    async def request_cancel_execution_tree(self, root_id: str) -> CancelResult:
        self._timeout = await self._connection.scalar(text("SELECT current_setting('statement_timeout')"))
        await self._connection.execute(text("SET LOCAL statement_timeout = 0"))
        return await super().request_cancel_execution_tree(root_id)

    async def _lock(self, *conditions: ColumnElement[bool], **parameters: Any) -> list[HeldRun]:
        if self._timeout is not None:
            again = text("SELECT set_config('statement_timeout', :timeout, true)")
            await self._connection.execute(again, {"timeout": self._timeout})
        return await super()._lock(*conditions, **parameters)


@defect("keeps_what_it_got_before_the_timeout", refutes="LOCK-7", caught_by=TIMES_OUT, because="partial_effect")
class KeepsWhatItGotBeforeTheTimeout(AgentRunRepository):
    """Commits the cancels of the levels above when the wait for a level is cut short."""

    async def _lock_level(self, ids: Iterable[str]) -> list[HeldRun]:
        savepoint = await self._connection.begin_nested()
        try:
            self._above = await super()._lock_level(ids)
        except DBAPIError:
            await savepoint.rollback()
            await self._cancel(getattr(self, "_above", []))
            await self._connection.execute(text("COMMIT"))
            raise
        await savepoint.commit()
        return self._above


class Patient(ReferenceSystem):
    """The reference, said to wait longer than its owners may wait with a renewal."""

    timeouts = Timeouts(statement=12.0)


system_defect(
    "may_wait_longer_than_a_renewal",
    "Declares a statement time-out above the interval of renewals, which a waiting cancel blocks.",
    Patient,
    refutes="LOCK-7",
    caught_by=TIMES_OUT,
    because="timeout_above_renewal",
)


@defect("keeps_an_advisory_lock", refutes="LOCK-10", caught_by=NOTHING_OUTLIVES, because="lock_left")
class KeepsAnAdvisoryLock(AgentRunRepository):
    """Marks the run that it claims by an advisory lock of the session, not of the transaction."""

    async def mark_running(
        self, run_id: str, *, owner_token: str, worker_id: str, lease: timedelta
    ) -> Claimed | Ended | Refused:
        await self._connection.execute(text("SELECT pg_try_advisory_lock(hashtext(:run_id))"), {"run_id": run_id})
        return await super().mark_running(run_id, owner_token=owner_token, worker_id=worker_id, lease=lease)


class LingeringActor(ReferenceActor):
    """Reads once more after its transaction, and does not end the transaction that this opens."""

    _reading: AsyncConnection | None = None

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Operations]:
        await self._end_reading()
        async with super().transaction() as operations:
            yield operations
        self._reading = await self._engine.connect()
        await self._reading.execute(text("SELECT 1"))

    async def close(self) -> None:
        await self._end_reading()
        await super().close()

    async def _end_reading(self) -> None:
        if self._reading is not None:
            await self._reading.close()
        self._reading = None


class Lingering(ReferenceSystem):
    """The reference with lingering actors."""

    def actor(self, dsn: str, *, statement_timeout: float | None = None) -> ReferenceActor:
        seconds = STATEMENT_TIMEOUT if statement_timeout is None else statement_timeout
        return LingeringActor(connect(dsn, seconds), self._repository, self._service)


system_defect(
    "leaves_a_transaction_open",
    "Reads once more after its transaction, and leaves the connection idle in the transaction that this opens.",
    Lingering,
    refutes="LOCK-10",
    caught_by=NOTHING_OUTLIVES,
    because="open_transaction",
)
