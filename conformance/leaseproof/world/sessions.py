"""Plain sessions of the suite beside the system's actors: they hold row locks, or probe them.

Owns raw connections; must not call operations of the system.
"""

from collections.abc import Mapping
from typing import Any

from psycopg import AsyncConnection, errors, sql
from psycopg.rows import dict_row

from leaseproof.checks import refute


def statement(text: str) -> sql.SQL:
    """An adapter's printed SQL as a statement of psycopg's."""
    return sql.SQL(text)  # adapters print their SQL; it holds no data


class Session:
    """One connection with explicit transactions. `lock` is the adapter's locking SELECT (`Facts.lock`)."""

    def __init__(self, connection: AsyncConnection[Any], lock: str) -> None:
        self._connection = connection
        self._lock = lock

    @property
    def pid(self) -> int:
        """The backend's process id."""
        return self._connection.info.backend_pid

    async def lock(self, run_id: str) -> None:
        """Lock the run's row, in the transaction that stays open until `release`."""
        await self._connection.execute(statement(self._lock), {"id": run_id})

    async def hold_free(self, run_id: str, what: str) -> None:
        """Lock the run's row as `lock` does, without waiting; refute the claim (55P03) when somebody holds it."""
        try:
            await self._connection.execute(statement(f"{self._lock} NOWAIT"), {"id": run_id})
        except errors.LockNotAvailable:
            await self._connection.rollback()
            refute("55P03", f"{what} {run_id} is locked, and had to be free")

    async def hold_writes(self, table: str) -> None:
        """Keep everybody else from writing the table, in the transaction that stays open until `release`."""
        await self._connection.execute(sql.SQL("LOCK TABLE {} IN SHARE MODE").format(sql.Identifier(*table.split("."))))

    async def try_lock(self, run_id: str) -> bool:
        """Whether the row could be locked at once, by a transaction that is rolled back at once."""
        try:
            await self._connection.execute(statement(f"{self._lock} NOWAIT"), {"id": run_id})
        except errors.LockNotAvailable:
            return False
        finally:
            await self._connection.rollback()
        return True

    async def expect_free(self, run_id: str, what: str) -> None:
        """Refute the claim (55P03) when somebody holds the row."""
        if not await self.try_lock(run_id):
            refute("55P03", f"{what} {run_id} is locked, and had to be free")

    async def expect_locked(self, run_id: str, what: str) -> None:
        """Refute the claim (`not_locked`) when nobody holds the row."""
        if await self.try_lock(run_id):
            refute("not_locked", f"{what} {run_id} is free, and had to be locked")

    async def release(self) -> None:
        """Roll back, so that every lock goes."""
        await self._connection.rollback()

    async def commit(self) -> None:
        """Commit the open transaction."""
        await self._connection.commit()

    async def execute(self, text: str | sql.SQL | sql.Composed, params: Mapping[str, Any] | None = None) -> int:
        """Run one statement in the open transaction; the number of rows that it touched."""
        query = statement(text) if isinstance(text, str) else text
        cursor = await self._connection.execute(query, params)
        return int(cursor.rowcount)

    async def fetch(
        self, text: str | sql.SQL | sql.Composed, params: Mapping[str, Any] | None = None
    ) -> list[dict[str, Any]]:
        """The rows of one query, as dictionaries."""
        query = statement(text) if isinstance(text, str) else text
        async with self._connection.cursor(row_factory=dict_row) as cursor:
            await cursor.execute(query, params)
            return await cursor.fetchall()

    async def sqlstate_of(
        self, text: str | sql.SQL | sql.Composed, params: Mapping[str, Any] | None = None, *, keep: bool = False
    ) -> str | None:
        """The SQLSTATE that the statement, or its commit, ends in; None when it works. Rolled back unless `keep`."""
        try:
            await self.execute(text, params)
            if keep:
                await self.commit()
        except errors.Error as error:
            if error.sqlstate is None:
                raise
            return error.sqlstate
        finally:
            await self._connection.rollback()
        return None

    async def close(self) -> None:
        """Close the connection."""
        await self._connection.close()
