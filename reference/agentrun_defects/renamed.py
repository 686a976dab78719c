"""A correct variant with tables and columns of other names. Owns the names, and rewrites every statement to them."""

import re
from typing import Any, Final

import psycopg
from psycopg import sql
from sqlalchemy import event

from agentrun_defects._control import variant
from agentrun_reference.conformance import FACTS, ReferenceActor, ReferenceSystem
from leaseproof.system import Database, Facts, RunTable
from leaseproof.world.facts import ATTEMPT_FIELDS, RUN_FIELDS

TABLES: Final = {"agent_runs": "executions", "agent_run_attempts": "ownerships", "conversations": "threads"}
COLUMNS: Final = {
    "status": "state",
    "run_type": "kind",
    "scope_conversation_id": "runtime_thread_id",
    "conversation_id": "thread_id",
    "created_by_run_id": "parent_execution_id",
    "owner_token": "fence",
    "lease_expires_at": "leased_until",
    "retry_count": "releases",
    "run_id": "execution_id",
    "attempt_no": "number",
    "previous_attempt_no": "previous_number",
    "outcome": "ending",
}
NAMES: Final = TABLES | COLUMNS
WORDS: Final = re.compile(rf"(?<!%\()\b({'|'.join(NAMES)})\b")
"""The names as words of a statement, but not as names of its parameters."""

FOUND: Final = """
    SELECT c.relname, a.attname FROM pg_attribute AS a JOIN pg_class AS c ON c.oid = a.attrelid
    WHERE c.relnamespace = 'public'::regnamespace AND c.relkind = 'r' AND a.attnum > 0 AND NOT a.attisdropped
"""
FUNCTIONS: Final = """
    SELECT pg_get_functiondef(oid) FROM pg_proc WHERE pronamespace = 'public'::regnamespace
"""


def renamed(statement: str) -> str:
    """The statement in the other names."""
    return WORDS.sub(lambda word: NAMES[word[0]], statement)


def view(fields: tuple[str, ...], table: str) -> str:
    """The table in the kit's terms."""
    return f"SELECT {', '.join(f'{renamed(field)} AS {field}' for field in fields)} FROM {TABLES[table]}"  # noqa: S608


class RenamedSystem(ReferenceSystem):
    """The reference over tables and columns of other names."""

    facts = Facts(
        runs=view(RUN_FIELDS, "agent_runs"),
        attempts=view(ATTEMPT_FIELDS, "agent_run_attempts"),
        age=renamed(FACTS.age),
        lock=renamed(FACTS.lock),
        plant={kind: [renamed(statement) for statement in statements] for kind, statements in FACTS.plant.items()},
        tables=tuple(renamed(table) for table in FACTS.tables),
        run_table=RunTable(TABLES["agent_runs"], {field: renamed(field) for field in RUN_FIELDS}),
        attempt_table=TABLES["agent_run_attempts"],
    )

    def __init__(self) -> None:
        super().__init__()
        self.schema += "+renamed"

    async def install(self, database: Database, release: str) -> None:
        await super().install(database, release)
        await rename(database, NAMES)

    async def upgrade(self, database: Database, from_release: str) -> None:
        await rename(database, {new: old for old, new in NAMES.items()})
        await super().upgrade(database, from_release)
        await rename(database, NAMES)

    def actor(self, dsn: str, *, statement_timeout: float | None = None) -> ReferenceActor:
        actor = super().actor(dsn, statement_timeout=statement_timeout)

        @event.listens_for(actor._engine.sync_engine, "before_cursor_execute", retval=True)
        def rewrite(_: Any, __: Any, statement: str, parameters: Any, *___: Any) -> tuple[str, Any]:
            return renamed(statement), parameters

        return actor


async def rename(database: Database, names: dict[str, str]) -> None:
    """Rename what the database has of these names; the functions' texts follow."""
    async with await psycopg.AsyncConnection.connect(database.owner_dsn) as connection:
        found = await (await connection.execute(FOUND)).fetchall()
        for table, column in found:
            if column in names:
                alter = sql.SQL("ALTER TABLE {} RENAME COLUMN {} TO {}")
                await connection.execute(alter.format(*map(sql.Identifier, (table, column, names[column]))))
        for table in {table for table, _ in found} & names.keys():
            alter = sql.SQL("ALTER TABLE {} RENAME TO {}")
            await connection.execute(alter.format(*map(sql.Identifier, (table, names[table]))))
        for (definition,) in await (await connection.execute(FUNCTIONS)).fetchall():
            await connection.execute(renamed(definition).encode())


variant("other_names", str(RenamedSystem.__doc__), RenamedSystem)
