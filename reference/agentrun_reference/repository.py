"""The current state of runs: owns the six transitions of agent_runs and the order in which they lock; must not commit.

Each operation runs inside the caller's transaction, at READ COMMITTED, and goes the same way: lock, decide in plain
Python from the row that the locking statement returned, write. One lock mode everywhere, FOR NO KEY UPDATE, which
lets foreign keys refer to a locked run; a run before its attempts. Times are the database's, read after the lock is
held, never this host's.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, Final

from sqlalchemy import (
    ARRAY,
    ColumnElement,
    Insert,
    Row,
    Select,
    Text,
    Update,
    any_,
    bindparam,
    func,
    literal_column,
    select,
    update,
)
from sqlalchemy.ext.asyncio import AsyncConnection

from agentrun_reference.attempts import LEASE_EXPIRED, RETRY_RELEASED, Attempts, History, among
from agentrun_reference.deadline import Deadline
from agentrun_reference.outcomes import (
    CancelResult,
    Change,
    Claimed,
    Ended,
    IllegalRunShape,
    ReconcileResult,
    Refused,
    Renewed,
)
from agentrun_reference.schema import ATTEMPTS, HELD_RUNS, LEASE_ORDER, PENDING_RUNS, RUNS
from agentrun_reference.shape import (
    ACTIVE,
    CANCEL_REQUESTED,
    CANCELLED,
    FAILED,
    PENDING,
    RUNNING,
    SUBAGENT,
    TERMINAL,
    may_be_active,
)

INVALID_RUNTIME_SCOPE: Final = "invalid_runtime_scope"
WORKER_LEASE_EXPIRED: Final = "worker_lease_expired"

ENDS_AT: Final[ColumnElement[datetime]] = literal_column(LEASE_ORDER)
"""When a lease ends; the index agent_runs_leases is sorted by it."""

IS_PENDING: Final[ColumnElement[bool]] = literal_column(PENDING_RUNS)
IS_HELD: Final[ColumnElement[bool]] = literal_column(HELD_RUNS)
"""Literal, as the partial indexes have them: a parameter would keep the planner from using these."""

IS_ACTIVE: Final = RUNS.c.status.in_(ACTIVE)
IS_EXPIRED: Final = select(func.clock_timestamp()).scalar_subquery() >= ENDS_AT

ONE_RUN: Final = RUNS.c.id == bindparam("run_id")
THESE_RUNS: Final = RUNS.c.id == any_(bindparam("run_ids", type_=ARRAY(Text)))

UNOWNED: Final = {"owner_token": None, "lease_expires_at": None}


@dataclass(frozen=True)
class HeldRun:
    """A run as the statement that locked it returned it; `now` is the database's clock, read with the lock held."""

    id: str
    uid: str
    run_type: str | None
    status: str | None
    conversation_id: str | None
    scope_conversation_id: str | None
    created_by_run_id: str | None
    subagent_relation_id: str | None
    workdir: str | None
    owner_token: str | None
    lease_expires_at: datetime | None
    now: datetime

    @property
    def is_active(self) -> bool:
        return self.status in ACTIVE

    @property
    def is_legal(self) -> bool:
        return may_be_active(self)

    @property
    def has_expired(self) -> bool:
        return self.lease_expires_at is None or self.lease_expires_at <= self.now

    @property
    def has_holder(self) -> bool:
        """Whether somebody holds the run's token, the lease live or not."""
        return self.status in (RUNNING, CANCEL_REQUESTED) and self.owner_token is not None

    def is_owned_by(self, owner_token: str) -> bool:
        return self.has_holder and self.owner_token == owner_token and not self.has_expired


HELD_COLUMNS: Final = tuple(RUNS.c[name] for name in HeldRun.__dataclass_fields__ if name != "now")


class AgentRunRepository:
    """The six transitions, beside reads, on one connection inside the caller's transaction."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection
        self._attempts = Attempts()

    async def mark_running(
        self, run_id: str, *, owner_token: str, worker_id: str, lease: timedelta
    ) -> Claimed | Ended | Refused:
        """Claim a pending run, take over one whose lease has expired, or refresh one as its live owner (ATTEMPT-1..3).

        Locks: the run.
        """
        run = await self.lock_run(run_id)
        if run is None:
            return Refused("no_such_run")
        if run.status == RUNNING and run.is_owned_by(owner_token):
            renewed_until, attempt_no = await self._renew(run, owner_token, lease)
            return Claimed(owner_token, attempt_no, renewed_until)
        if run.status == RUNNING and not run.has_expired:
            return Refused("owned_by_another")
        if run.status not in (PENDING, RUNNING):
            return Refused(f"run_is_{run.status}")
        if not run.is_legal:
            return await self._end_illegal(run, outcome=LEASE_EXPIRED)
        history = await self._history(run_id, owner_token)
        if history.token_spent or run.owner_token == owner_token:
            return Refused("token_spent")
        if history.has_open:
            await self._connection.execute(self._attempts.closing([run_id], LEASE_EXPIRED, now=run.now))
        return await self._take(run, history.next_no, owner_token=owner_token, worker_id=worker_id, lease=lease)

    async def renew_lease(self, run_id: str, *, owner_token: str, lease: timedelta) -> Renewed | Refused:
        """Lengthen the owner's lease, run and attempt together (ATTEMPT-4). Raises IllegalRunShape (SHAPE-5).

        Locks: the run.
        """
        run = await self.lock_run(run_id)
        if run is None or not run.is_active:
            return Refused("not_active")
        if not run.is_legal:
            raise IllegalRunShape(run.id, run.run_type)
        if not run.is_owned_by(owner_token):
            return Refused("not_the_owner")
        renewed_until, _ = await self._renew(run, owner_token, lease)
        return Renewed(renewed_until, run.status == CANCEL_REQUESTED)

    async def release_lease_for_retry(
        self, run_id: str, *, owner_token: str, error_type: str | None = None, error_message: str | None = None
    ) -> Ended | Refused:
        """Give the run back as its owner: pending again, or cancelled where that was asked for (ATTEMPT-5).

        Locks: the run.
        """
        run = await self.lock_run(run_id)
        if run is None or not run.is_owned_by(owner_token):
            return Refused("not_the_owner")
        if run.status == CANCEL_REQUESTED:
            await self._end([run], CANCELLED, outcome=CANCELLED, error_type=error_type, error_message=error_message)
            return Ended(CANCELLED)
        if not run.is_legal:
            return await self._end_illegal(run, outcome=FAILED)
        closing = self._attempts.closing(
            [run_id], RETRY_RELEASED, now=run.now, error_type=error_type, error_message=error_message
        )
        await self._write([run_id], {**UNOWNED, "status": PENDING, "retry_count": RUNS.c.retry_count + 1}, closing)
        return Ended(PENDING)

    async def set_terminal_status(
        self,
        run_id: str,
        *,
        owner_token: str,
        status: str,
        result: Any = None,
        error_type: str | None = None,
        error_message: str | None = None,
    ) -> Ended | Refused:
        """End the run as its owner; one whose cancel was requested becomes cancelled, whatever it did (ATTEMPT-6).

        Locks: the run. Raises ValueError for a status that is not terminal.
        """
        if status not in TERMINAL:
            raise ValueError(f"{status!r} ends no run; give one of {', '.join(TERMINAL)}")
        run = await self.lock_run(run_id)
        if run is None or not run.is_owned_by(owner_token):
            return Refused("not_the_owner")
        ended = CANCELLED if run.status == CANCEL_REQUESTED else status
        await self._end(
            [run], ended, outcome=ended, error_type=error_type, error_message=error_message, values={"result": result}
        )
        return Ended(ended)

    async def reconcile_expired_leases(self, *, limit: int | None = None) -> ReconcileResult:
        """End runs whose lease has expired, at most `limit` of them (ATTEMPT-7); a locked one is the next sweep's.

        Locks: those runs, in the order in which their leases ended; it never waits for one.
        """
        runs = await self._lock_expired(limit)
        fates: defaultdict[tuple[str, str | None], list[HeldRun]] = defaultdict(list)
        for run in runs:
            fates[_fate(run)].append(run)
        for (status, error_type), alike in fates.items():
            await self._end(alike, status, outcome=LEASE_EXPIRED, error_type=error_type)
        return ReconcileResult(
            {run.id: (run.status, _fate(run)[0]) for run in runs},
            frozenset(run.id for run in runs if not run.is_legal),
        )

    async def request_cancel_execution_tree(self, root_id: str) -> CancelResult:
        """Cancel the tree below the run (LOCK-1..5, CANCEL-1); the caller signals `to_signal` after its commit.

        Locks: the root, terminal or not; then the active runs of one level after another, each level in
        (created_at, id). A level is listed when all above it is held, so that it can't grow any more. All of them
        together wait no longer than one statement may (LOCK-7). Raises OperationTimedOut.
        """
        deadline = await Deadline.of_one_statement(self._connection)
        root = await self.lock_run(root_id)
        if root is None:
            return CancelResult()
        held, seen, level = [root], {root_id}, {root_id}
        while level := await self._children(level) - seen:
            seen |= level
            await deadline.go_on()
            held += await self._lock_level(level)
        active = [run for run in held if run.is_active]
        untouched = await self._statuses(seen - {run.id for run in active})
        await deadline.go_on()
        cancelled = await self._cancel(active)
        await deadline.restore()
        return CancelResult(
            to_signal=tuple(run.id for run in active if run.has_holder),
            runs=untouched | cancelled,
            ended_illegal=frozenset(run.id for run in active if not run.is_legal),
        )

    async def fetch_next(self, *, limit: int = 1) -> tuple[str, ...]:
        """The next pending runs, first in, first out: a plain read, since mark_running decides."""
        query = select(RUNS.c.id).where(IS_PENDING).order_by(RUNS.c.created_at, RUNS.c.id).limit(limit)
        return tuple((await self._connection.execute(query)).scalars())

    async def run(self, run_id: str) -> Row[Any] | None:
        """The run as it is, without a lock."""
        return (await self._connection.execute(select(RUNS).where(RUNS.c.id == run_id))).one_or_none()

    async def attempts(self, run_id: str) -> Sequence[Row[Any]] | None:
        """The run's attempts, oldest first; None, "unknown (legacy)", for one that was owned before any were kept."""
        attempts = (await self._connection.execute(self._attempts.listing(run_id))).all()
        run = None if attempts else await self.run(run_id)
        return None if run is not None and _was_owned(run) else attempts

    async def lock_run(self, run_id: str) -> HeldRun | None:
        """The run, locked; None where there is none. Waits for whoever holds it."""
        return next(iter(await self._lock(ONE_RUN, run_id=run_id)), None)

    async def _lock_level(self, ids: Iterable[str]) -> list[HeldRun]:
        """The active ones among these runs, locked one after another in (created_at, id)."""
        return await self._lock(THESE_RUNS, IS_ACTIVE, order=(RUNS.c.created_at, RUNS.c.id), run_ids=sorted(ids))

    async def _lock_expired(self, limit: int | None) -> list[HeldRun]:
        """Runs without a live lease that nobody else holds, the longest expired first.

        Nothing is waited for, so the clock may be read before the lock: a run renewed since is judged again.
        """
        return await self._lock(IS_HELD, IS_EXPIRED, order=(ENDS_AT, RUNS.c.id), limit=limit, skip_locked=True)

    async def _lock(
        self,
        *conditions: ColumnElement[bool],
        order: tuple[ColumnElement[Any], ...] = (),
        limit: int | None = None,
        skip_locked: bool = False,
        **parameters: Any,
    ) -> list[HeldRun]:
        """One locking statement, and the clock of the database after its wait."""
        statement = _locking(conditions, order, limit, skip_locked)
        return [HeldRun(*row) for row in await self._connection.execute(statement, parameters)]

    async def _children(self, ids: Iterable[str]) -> set[str]:
        """The subagent runs that these runs created, terminal ones too: below them there may be active ones."""
        query = select(RUNS.c.id).where(among(RUNS.c.created_by_run_id, sorted(ids)), RUNS.c.run_type == SUBAGENT)
        return set((await self._connection.execute(query)).scalars())

    async def _statuses(self, ids: Iterable[str]) -> dict[str, Change]:
        """Runs of the tree that a cancel leaves alone: terminal ones, which nobody changes any more."""
        query = select(RUNS.c.id, RUNS.c.status).where(among(RUNS.c.id, sorted(ids)))
        return {run_id: (status, status) for run_id, status in await self._connection.execute(query)}

    async def _history(self, run_id: str, owner_token: str) -> History:
        """Read by a statement after the one that locked: its snapshot shows what the last owner left (ATTEMPT-1)."""
        return History(*(await self._connection.execute(self._attempts.history(run_id, owner_token))).one())

    async def _take(
        self, run: HeldRun, attempt_no: int, *, owner_token: str, worker_id: str, lease: timedelta
    ) -> Claimed:
        """A new owner, and its attempt."""
        until = run.now + lease
        opening = self._attempts.opening(
            run.id, attempt_no, owner_token=owner_token, now=run.now, lease_expires_at=until
        )
        values = {
            "status": RUNNING,
            "worker_id": worker_id,
            "owner_token": owner_token,
            "lease_expires_at": until,
            "heartbeat_at": run.now,
            "started_at": func.coalesce(RUNS.c.started_at, run.now),
        }
        await self._write([run.id], values, opening)
        return Claimed(owner_token, attempt_no, until)

    async def _renew(self, run: HeldRun, owner_token: str, lease: timedelta) -> tuple[datetime, int | None]:
        """A later end of the lease, never an earlier one, for run and attempt alike; gives it and the number."""
        if not run.is_legal:
            raise IllegalRunShape(run.id, run.run_type)
        until = max(run.lease_expires_at or run.now, run.now + lease)
        renewing = self._attempts.renewing(run.id, owner_token=owner_token, now=run.now, lease_expires_at=until)
        number = await self._write([run.id], {"lease_expires_at": until, "heartbeat_at": run.now}, renewing)
        return until, number

    async def _cancel(self, runs: Sequence[HeldRun]) -> dict[str, Change]:
        """Ask the holders; end what nobody holds, and what can't stay active in its shape (CANCEL-1)."""
        asked = [run for run in runs if run.has_holder and run.is_legal]
        await self._request_cancel([run for run in asked if run.status == RUNNING])
        await self._end([run for run in runs if not run.has_holder], CANCELLED, outcome=LEASE_EXPIRED)
        await self._end([run for run in runs if run.has_holder and not run.is_legal], CANCELLED, outcome=CANCELLED)
        return {run.id: (run.status, CANCEL_REQUESTED if run in asked else CANCELLED) for run in runs}

    async def _request_cancel(self, runs: Sequence[HeldRun]) -> None:
        """The holder stays, and its attempt stays open: only the holder, or the end of its lease, ends the run."""
        if runs:
            await self._write([run.id for run in runs], {"status": CANCEL_REQUESTED})

    async def _end_illegal(self, run: HeldRun, *, outcome: str) -> Ended:
        """A run that can't be active in its shape fails, so that it stops nobody else (SHAPE-5, 6)."""
        await self._end([run], FAILED, outcome=outcome, error_type=INVALID_RUNTIME_SCOPE)
        return Ended(FAILED, illegal=True)

    async def _end(
        self,
        runs: Sequence[HeldRun],
        status: str,
        *,
        outcome: str,
        error_type: str | None = None,
        error_message: str | None = None,
        values: Mapping[str, Any] | None = None,
    ) -> None:
        """These runs end, and with them the attempts that are still open."""
        if not runs:
            return
        ids, now = [run.id for run in runs], max(run.now for run in runs)
        error = {"error_type": error_type, "error_message": error_message}
        closing = self._attempts.closing(ids, outcome, now=now, **error)
        await self._write(ids, {**UNOWNED, **error, "status": status, "finished_at": now, **(values or {})}, closing)

    async def _write(
        self, ids: Sequence[str], values: Mapping[str, Any], attempt: Insert | Update | None = None
    ) -> int | None:
        """Write runs that are locked, and their attempts in the same statement; the number that `attempt` returns."""
        write = update(RUNS).where(among(RUNS.c.id, ids)).values(values)
        if attempt is None:
            await self._connection.execute(write)
            return None
        beside = attempt.returning(ATTEMPTS.c.attempt_no).cte("attempt")
        number = select(func.max(beside.c.attempt_no)).scalar_subquery()
        return (await self._connection.scalars(write.returning(number))).first()


@lru_cache(maxsize=32)
def _locking(
    conditions: tuple[ColumnElement[bool], ...],
    order: tuple[ColumnElement[Any], ...],
    limit: int | None,
    skip_locked: bool,
) -> Select[*tuple[Any, ...]]:
    """The clock stands outside the part that waits, or it could be as old as the wait.

    Kept once built: to build it costs SQLAlchemy more than to run it.
    """
    locked = (
        select(*HELD_COLUMNS)
        .where(*conditions)
        .order_by(*order)
        .limit(limit)
        .with_for_update(key_share=True, skip_locked=skip_locked)  # FOR NO KEY UPDATE
        .cte("locked")
    )
    return select(locked, func.clock_timestamp())


def _fate(run: HeldRun) -> tuple[str, str | None]:
    """Status and error of a run whose lease has expired."""
    if run.status == CANCEL_REQUESTED:
        return CANCELLED, None
    return FAILED, WORKER_LEASE_EXPIRED if run.is_legal else INVALID_RUNTIME_SCOPE


def _was_owned(run: Row[Any]) -> bool:
    """Whether the run shows traces of an owner."""
    return run.started_at is not None or run.worker_id is not None or run.status not in (PENDING, CANCELLED, FAILED)
