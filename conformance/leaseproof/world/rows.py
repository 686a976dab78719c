"""Many rows of the run table, each judged by PostgreSQL itself. Owns writing them; must not know which are legal.

Rows are given in the kit's terms and written through the adapter's map of columns. The answer says for each row's id
which SQLSTATE refused it, None where it was written; what was accepted stays written.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, LiteralString

from psycopg import AsyncConnection, errors, sql
from psycopg.rows import tuple_row

from leaseproof.system import RunTable

Refusals = Mapping[str, str | None]
Row = Mapping[str, Any]

NO_DATA: Final = "02000"
"""Stands for a row that was not refused, and yet not written (a trigger swallowed it)."""

PROBE: LiteralString = """
DO $probe$
DECLARE
    item jsonb;
    refusals text[] := '{{}}';
    touched bigint;
BEGIN
    FOR item IN SELECT value FROM jsonb_array_elements(current_setting('leaseproof.rows')::jsonb) LOOP
        BEGIN
            {write};
            GET DIAGNOSTICS touched = ROW_COUNT;
            SET CONSTRAINTS ALL IMMEDIATE;
            refusals := array_append(refusals, CASE WHEN touched <> 1 THEN {no_data} END);
        EXCEPTION WHEN OTHERS THEN
            refusals := array_append(refusals, SQLSTATE);
        END;
    END LOOP;
    PERFORM set_config('leaseproof.refusals', to_jsonb(refusals)::text, false);
END
$probe$
"""

COLUMNS: LiteralString = """
    SELECT attname FROM pg_attribute
    WHERE attrelid = %(table)s::regclass AND attnum > 0 AND NOT attisdropped AND attgenerated = ''
"""

MAY: LiteralString = """
    SELECT coalesce(bool_and(has_column_privilege(%(table)s, name, %(right)s)), false)
    FROM unnest(%(columns)s::text[]) AS name
"""


class RowWriter:
    """Writes through one autocommitting connection, as its role."""

    def __init__(self, connection: AsyncConnection[Any], table: RunTable) -> None:
        self._connection = connection
        self._table = table
        self._name = sql.Identifier(*table.name.split("."))

    async def columns(self) -> dict[str, str]:
        """Field to column, of the columns that this release of the table has."""
        present = {row[0] for row in await self._rows(COLUMNS, {"table": self._table.name})}
        return {field: column for field, column in self._table.columns.items() if column in present}

    async def may(self, right: str, fields: Sequence[str]) -> bool:
        """Whether the connection's role has this right (INSERT, UPDATE) on the columns of all these fields."""
        columns = await self.columns()
        wanted = [columns[field] for field in fields if field in columns]
        rows = await self._rows(MAY, {"table": self._table.name, "right": right, "columns": wanted})
        return bool(rows[0][0])

    async def inserts(self, rows: Sequence[Row]) -> Refusals:
        """Insert each row alone."""
        columns = list((await self.columns()).values())
        write = sql.SQL("INSERT INTO {table} ({columns}) SELECT {columns} FROM jsonb_populate_record({row})").format(
            table=self._name, columns=_list(columns), row=self._item()
        )
        return await self._probe(write, rows)

    async def updates(self, rows: Sequence[Row], fields: Sequence[str]) -> Refusals:
        """Update these fields of each row, which exists already, alone."""
        columns = await self.columns()
        write = sql.SQL("UPDATE {table} AS t SET {sets} FROM jsonb_populate_record({row}) AS n WHERE t.{id} = n.{id}")
        sets = [
            sql.SQL("{column} = n.{column}").format(column=sql.Identifier(columns[field]))
            for field in fields
            if field in columns
        ]
        identity = sql.Identifier(columns["id"])
        composed = write.format(table=self._name, sets=sql.SQL(", ").join(sets), row=self._item(), id=identity)
        return await self._probe(composed, rows)

    async def copy(self, rows: Sequence[Row]) -> str | None:
        """COPY all rows in one statement: all are written, or none."""
        columns = await self.columns()
        command = sql.SQL("COPY {} ({}) FROM STDIN").format(self._name, _list(list(columns.values())))
        try:
            async with self._connection.cursor() as cursor, cursor.copy(command) as copy:
                for row in rows:
                    await copy.write_row([row[field] for field in columns])
        except errors.Error as error:
            if error.sqlstate is None:
                raise
            return error.sqlstate
        return None

    async def copies(self, rows: Sequence[Row]) -> Refusals:
        """COPY each row alone."""
        return {row["id"]: await self.copy([row]) for row in rows}

    def _item(self) -> sql.Composed:
        return sql.SQL("NULL::{}, item").format(self._name)

    async def _probe(self, write: sql.Composed, rows: Sequence[Row]) -> Refusals:
        columns = await self.columns()
        items = [{column: row[field] for field, column in columns.items()} for row in rows]
        await self._connection.execute(
            "SELECT set_config('leaseproof.rows', %s, false)", [json.dumps(items, default=str)]
        )
        await self._connection.execute(sql.SQL(PROBE).format(write=write, no_data=sql.Literal(NO_DATA)))
        answer = await self._rows("SELECT current_setting('leaseproof.refusals')", {})
        return {row["id"]: refusal for row, refusal in zip(rows, json.loads(answer[0][0]), strict=True)}

    async def _rows(self, query: LiteralString, params: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        async with self._connection.cursor(row_factory=tuple_row) as cursor:
            await cursor.execute(query, params)
            return await cursor.fetchall()


def _list(columns: Sequence[str]) -> sql.Composed:
    return sql.SQL(", ").join(map(sql.Identifier, columns))
