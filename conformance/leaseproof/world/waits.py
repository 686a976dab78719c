"""Waits on facts of the server: who waits for whom, read from pg_stat_activity and pg_blocking_pids.

Owns the reading of activity; must not lock or write. A deadline here is one of the harness (`Undecided`), with the
activity as its detail; an operation that ends though it had to wait is refuted (`did_not_wait`).
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from time import monotonic
from typing import Any, TypeVar, cast

from psycopg import AsyncConnection
from psycopg.rows import class_row, dict_row, tuple_row

from leaseproof.checks import Undecided, refute

T = TypeVar("T")

HARNESS_DEADLINE = 10.0
"""Seconds that a fact may take to show before the harness gives up."""

PATIENCE = 30.0
"""Seconds: a statement time-out for operations that the suite itself holds up, so that a busy machine ends none."""

POLL = 0.002
"""Seconds between two looks at the server; a look is the condition, this only spares the server."""

WAITERS = """
    SELECT pid, wait_event_type, wait_event, pg_blocking_pids(pid) AS blocked_by, query
    FROM pg_stat_activity
    WHERE datname = current_database() AND application_name = %(name)s AND wait_event_type = 'Lock' AND state = 'active'
"""

ACTIVITY = """
    SELECT pid, application_name, state, wait_event_type, wait_event, pg_blocking_pids(pid) AS blocked_by, query
    FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() ORDER BY pid
"""


WAITED = """
    SELECT max(clock_timestamp() - l.waitstart) FROM pg_locks AS l JOIN pg_stat_activity AS a USING (pid)
    WHERE a.datname = current_database() AND a.application_name = %(name)s AND NOT l.granted
"""

HOLDINGS = """
    SELECT concat_ws(' ', 'lock', l.locktype, l.mode, l.relation::regclass)
    FROM pg_locks AS l JOIN pg_stat_activity AS a USING (pid)
    WHERE a.datname = current_database() AND a.application_name = %(name)s AND l.granted
    UNION ALL
    SELECT concat_ws(' ', 'transaction', state) FROM pg_stat_activity
    WHERE datname = current_database() AND application_name = %(name)s AND xact_start IS NOT NULL
"""


@dataclass(frozen=True)
class Waiting:
    """A session that waits for a lock, and the pids that block it."""

    pid: int
    wait_event_type: str
    wait_event: str
    blocked_by: list[int]
    query: str


class Watch:
    """Looks at the sessions of one database through a connection of the administrator's."""

    def __init__(self, connection: AsyncConnection[Any]) -> None:
        self._connection = connection

    async def waiting(self, name: str) -> Waiting | None:
        """The session of this application_name that waits for a lock now, if any."""
        async with self._connection.cursor(row_factory=class_row(Waiting)) as cursor:
            await cursor.execute(WAITERS, {"name": name})
            return await cursor.fetchone()

    async def holdings(self, name: str) -> list[str]:
        """Locks and open transactions of the sessions of this application_name, a line each."""
        async with self._connection.cursor(row_factory=tuple_row) as cursor:
            await cursor.execute(HOLDINGS, {"name": name})
            return [str(row[0]) for row in await cursor.fetchall()]

    async def waited(self, name: str) -> timedelta | None:
        """For how long a session of this application_name has been waiting for the lock that it waits for now."""
        async with self._connection.cursor(row_factory=tuple_row) as cursor:
            await cursor.execute(WAITED, {"name": name})
            row = await cursor.fetchone()
        return cast("tuple[timedelta | None]", row)[0]

    async def activity(self) -> str:
        """Every session of the database, a line each."""
        async with self._connection.cursor(row_factory=dict_row) as cursor:
            await cursor.execute(ACTIVITY)
            return "\n".join(str(row) for row in await cursor.fetchall())

    async def until(self, fact: Callable[[], Awaitable[T | None]], what: str) -> T:
        """The first value that `fact` gives; `Undecided` when it gives none within the harness's deadline."""
        deadline = monotonic() + HARNESS_DEADLINE
        while (seen := await fact()) is None:
            if monotonic() > deadline:
                raise Undecided(f"{what} was not seen within {HARNESS_DEADLINE} s; sessions:\n{await self.activity()}")
            await asyncio.sleep(POLL)
        return seen


class Pending:
    """An operation under way in a task of its own."""

    def __init__(self, task: asyncio.Task[Any], name: str, watch: Watch) -> None:
        self._task = task
        self._name = name
        self._watch = watch

    async def until_waiting(self) -> Waiting:
        """Return when a session of the operation waits for a lock; refuted when it ends without having waited."""

        async def look() -> Waiting | None:
            seen = await self._watch.waiting(self._name)
            if seen is None and self._task.done():
                refute("did_not_wait", f"{self._name} ended without waiting: {await self._task!r}")
            return seen

        return await self._watch.until(look, f"{self._name} waiting for a lock")

    async def until_blocked_by(self, pid: int) -> None:
        """Return when a session of the operation waits for this session; refuted when it ends without."""

        async def look() -> bool | None:
            seen = await self._watch.waiting(self._name)
            if seen is None and self._task.done():
                refute("did_not_wait", f"{self._name} ended without waiting for {pid}: {await self._task!r}")
            return True if seen is not None and pid in seen.blocked_by else None

        await self._watch.until(look, f"{self._name} waiting for session {pid}")

    async def until_ended_past(self, pid: int) -> None:
        """Return when the operation has ended; refuted (`waited`) when it waits for this session instead."""

        async def look() -> bool | None:
            seen = await self._watch.waiting(self._name)
            if seen is not None and pid in seen.blocked_by:
                refute("waited", f"{self._name} waits for session {pid}, and had to pass it by: {seen.query}")
            return self._task.done() or None

        await self._watch.until(look, f"{self._name} ending")

    def done(self) -> bool:
        """Whether the operation has ended."""
        return self._task.done()

    async def result(self, within: float = HARNESS_DEADLINE) -> Any:
        """The operation's answer; refuted (`did_not_end`) when it stays away for `within` seconds."""
        try:
            async with asyncio.timeout(within):
                return await asyncio.shield(self._task)
        except TimeoutError:
            refute("did_not_end", f"{self._name} did not end within {within} s:\n{await self._watch.activity()}")

    async def abandon(self) -> None:
        """End the task, whatever it does."""
        self._task.cancel()
        await asyncio.wait([self._task])
