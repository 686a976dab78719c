"""What the database says, through the adapter's views. Owns reading; must not write or call the system."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, LiteralString

from psycopg import AsyncConnection, IsolationLevel, sql
from psycopg.rows import class_row, tuple_row

from leaseproof.checks import Undecided
from leaseproof.system import Facts, RunTable
from leaseproof.world.facts import ATTEMPT_FIELDS, RUN_FIELDS, Attempt, Run
from leaseproof.world.sessions import statement

COLUMNS: LiteralString = """
    SELECT attname FROM pg_attribute
    WHERE attrelid = to_regclass(%(table)s) AND attnum > 0 AND NOT attisdropped ORDER BY attnum
"""


@dataclass(frozen=True)
class Snapshot:
    """Runs by id, and attempts by (run id, number), of one moment."""

    runs: Mapping[str, Run]
    attempts: Mapping[tuple[str, int], Attempt]

    def attempts_of(self, run_id: str) -> list[Attempt]:
        """The run's attempts in the order of their numbers."""
        return [attempt for (run, _), attempt in sorted(self.attempts.items()) if run == run_id]

    def open_attempt(self, run_id: str) -> Attempt | None:
        """The run's last open attempt, if any."""
        return next((a for a in reversed(self.attempts_of(run_id)) if a.finished_at is None), None)

    def statuses(self) -> dict[str, str | None]:
        """Run id to status."""
        return {run.id: run.status for run in self.runs.values()}


def run_table_of(facts: Facts) -> RunTable:
    """The table that holds a row a run; `Undecided` where the adapter names none."""
    if facts.run_table is None:
        raise Undecided("set Facts.run_table: this check writes rows of the table that holds a row a run")
    return facts.run_table


class Observer:
    """Reads through a connection of the kit's own."""

    def __init__(self, connection: AsyncConnection[Any], facts: Facts) -> None:
        self._connection = connection
        self._facts = facts

    async def snapshot(self) -> Snapshot:
        """Runs and attempts of one snapshot of the database."""
        await self._connection.set_isolation_level(IsolationLevel.REPEATABLE_READ)
        try:
            async with self._connection.transaction():
                return Snapshot({run.id: run for run in await self._runs()}, await self._attempts())
        finally:
            await self._connection.set_isolation_level(None)

    async def _runs(self) -> list[Run]:
        async with self._connection.cursor(row_factory=class_row(Run)) as cursor:
            await cursor.execute(_view(RUN_FIELDS, self._facts.runs))
            return await cursor.fetchall()

    async def _attempts(self) -> dict[tuple[str, int], Attempt]:
        if self._facts.attempts is None:
            return {}
        async with self._connection.cursor(row_factory=class_row(Attempt)) as cursor:
            await cursor.execute(_view(ATTEMPT_FIELDS, self._facts.attempts))
            return {(a.run_id, a.attempt_no): a for a in await cursor.fetchall()}

    async def columns(self, table: str) -> list[str]:
        """The table's columns in their order; none where this release has no such table."""
        async with self._connection.cursor(row_factory=tuple_row) as cursor:
            await cursor.execute(COLUMNS, {"table": table})
            return [row[0] for row in await cursor.fetchall()]

    async def raw(self, table: str, columns: Sequence[str] | None = None) -> list[str]:
        """Every row of a table as text, sorted: equal lists are equal contents, byte for byte.

        With `columns`, these columns of every row.
        """
        row: sql.Composable = sql.SQL("t")
        if columns is not None:
            row = sql.SQL("ROW({})").format(sql.SQL(", ").join(map(sql.Identifier, columns)))
        query = sql.SQL("SELECT {}::text FROM {} AS t ORDER BY 1").format(row, sql.Identifier(*table.split(".")))
        async with self._connection.cursor(row_factory=tuple_row) as cursor:
            await cursor.execute(query)
            return [row[0] for row in await cursor.fetchall()]

    async def raw_runs(self) -> dict[str, str]:
        """Run id to the whole row as text; to the view's row where runs don't lie in one table."""
        table = self._facts.run_table
        if table is None:
            return {run.id: repr(run) for run in await self._runs()}
        query = sql.SQL("SELECT {id}, t::text FROM {table} AS t").format(
            id=sql.Identifier(table.columns["id"]), table=sql.Identifier(*table.name.split("."))
        )
        async with self._connection.cursor(row_factory=tuple_row) as cursor:
            await cursor.execute(query)
            return dict(await cursor.fetchall())


def _view(fields: tuple[str, ...], view: str) -> sql.Composed:
    """The fields of the adapter's view, by name."""
    columns = sql.SQL(", ").join(map(sql.Identifier, fields))
    return sql.SQL("SELECT {} FROM ({}) AS v").format(columns, statement(view))
