"""Raw rows behind the system's back, by the adapter's statements. Owns writing; must not call operations.

Rows are legal unless a caller says otherwise. Illegal ones are written with the run table's CHECK constraints and
triggers lifted for that one transaction and put back, NOT VALID, by the catalogue's own definitions.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any, Final, LiteralString, cast

from psycopg import AsyncConnection, errors, sql
from psycopg.rows import tuple_row

from leaseproof.system import System
from leaseproof.world.facts import ATTEMPT_FIELDS, RUN_FIELDS, TERMINAL, Attempt, Run
from leaseproof.world.observe import run_table_of
from leaseproof.world.sessions import Session, statement

EPOCH: Final = datetime(2026, 1, 1, tzinfo=UTC)
"""When the first planted run was created; each later one is a second younger unless said otherwise."""

HOLDER: Final = frozenset({"running", "cancel_requested"})

CHECKS: LiteralString = """
    SELECT conname, pg_get_constraintdef(oid) FROM pg_constraint
    WHERE conrelid = %(table)s::regclass AND contype = 'c' AND pg_get_constraintdef(oid) LIKE 'CHECK%%'
"""


class Planter:
    """Writes rows through a connection of the owner's, which commits each call."""

    def __init__(self, connection: AsyncConnection[Any], system: System) -> None:
        self._connection = connection
        self._system = system
        self._numbers = count(1)

    async def now(self) -> datetime:
        """The database's clock."""
        async with self._connection.cursor(row_factory=tuple_row) as cursor:
            await cursor.execute("SELECT clock_timestamp()")
            row = await cursor.fetchone()
        return cast("datetime", cast("tuple[Any, ...]", row)[0])

    def name(self, kind: str) -> str:
        """A fresh id; ids of later calls sort behind earlier ones."""
        return f"{kind}-{next(self._numbers):05d}"

    def moment(self) -> datetime:
        """A time of creation; those of later calls are later."""
        return EPOCH + timedelta(seconds=next(self._numbers))

    async def write(self, kind: str, fields: Mapping[str, Any], within: Session | None = None) -> None:
        """One row of a kind that the adapter can plant ("conversation", "relation", "run", "attempt").

        `within` writes it in the open transaction of a session: one that holds a run can write what refers to it, and
        whoever else would have to wait.
        """
        for text in self._system.facts.plant[kind]:
            await (within or self._connection).execute(statement(text), fields)

    async def conversation(self, uid: str) -> str:
        """A conversation of the user's; its id."""
        identity = self.name("conversation")
        if "conversation" in self._system.facts.plant:
            await self.write("conversation", {"id": identity, "uid": uid})
        return identity

    async def relation(self, parent: str, child: str, uid: str) -> str:
        """A subagent relation between two conversations; its id."""
        identity = self.name("relation")
        if "relation" in self._system.facts.plant:
            await self.write(
                "relation",
                {
                    "id": identity,
                    "parent_conversation_id": parent,
                    "child_conversation_id": child,
                    "uid": uid,
                    "name": identity,
                },
            )
        return identity

    @property
    def keeps_attempts(self) -> bool:
        """Whether the adapter can plant a history."""
        return "attempt" in self._system.facts.plant

    async def run(
        self,
        status: str | None = "pending",
        *,
        creator: Run | None = None,
        attempt: bool = True,
        **fields: Any,
    ) -> Run:
        """A run of this status, with what belongs to it; the row in the kit's terms.

        Without a creator it is a chat. With one it is a subagent of the creator, unless `run_type` says resume. A run
        with a holder gets a token, a lease of the system's length and (`attempt`) an open attempt number 1; a run
        that an owner has ended gets a closed one. `fields` override single columns.
        """
        row = await self._legal(status, creator, fields)
        await self.write("run", _values(row, RUN_FIELDS))
        if attempt and self.keeps_attempts and status in HOLDER and row.owner_token is not None:
            await self.attempt(row)
        elif attempt and self.keeps_attempts and status in TERMINAL:
            await self.attempt(row, owner_token=f"{row.id}-ended", outcome=status, finished_at=row.finished_at)
        return row

    async def try_run(self, status: str | None, **fields: Any) -> Run | None:
        """A run as `run` plants it, None where the table can't hold it even then (NOT NULL, an enum)."""
        try:
            async with self._connection.transaction():
                return await self.run(status, **fields)
        except (errors.NotNullViolation, errors.InvalidTextRepresentation):
            return None

    async def _legal(self, status: str | None, creator: Run | None, fields: Mapping[str, Any]) -> Run:
        run_type = fields.get("run_type", "subagent" if creator else "chat")
        uid = fields.get("uid", creator.uid if creator else "user-1")
        now = await self.now()
        identity = self.name("run")
        held = status in HOLDER
        conversation = fields.get("conversation_id") or (
            creator.conversation_id if creator and run_type == "resume" else await self.conversation(uid or "user-1")
        )
        scope = creator.scope_conversation_id if creator and run_type == "subagent" else conversation
        row: dict[str, Any] = {
            **dict.fromkeys(RUN_FIELDS),
            "id": identity,
            "uid": uid,
            "run_type": run_type,
            "status": status,
            "conversation_id": conversation,
            "scope_conversation_id": scope,
            "created_by_run_id": creator.id if creator else None,
            "owner_token": f"{identity}-owner" if held else None,
            "worker_id": "planted-worker" if held else None,
            "lease_expires_at": now + timedelta(seconds=self._system.timeouts.lease) if held else None,
            "heartbeat_at": now if held else None,
            "started_at": now if held or status in TERMINAL else None,
            "finished_at": now if status in TERMINAL else None,
            "retry_count": 0,
            "created_at": self.moment(),
        }
        if run_type == "subagent" and creator is not None and "subagent_relation_id" not in fields:
            row["subagent_relation_id"] = await self.relation(
                creator.conversation_id or "", cast("str", conversation), uid or "user-1"
            )
        return Run(**{**row, **fields})

    async def attempt(self, run: Run, *, within: Session | None = None, **fields: Any) -> Attempt:
        """An attempt of the run, open with the run's own lease and token unless `fields` say otherwise."""
        attempt = Attempt(
            **{
                **dict.fromkeys(ATTEMPT_FIELDS),
                "run_id": run.id,
                "attempt_no": 1,
                "owner_token": run.owner_token,
                "started_at": run.started_at,
                "heartbeat_at": run.heartbeat_at,
                "lease_expires_at": run.lease_expires_at,
                **fields,
            }
        )
        await self.write("attempt", _values(attempt, ATTEMPT_FIELDS), within)
        return attempt

    async def age(self, run_id: str, by: timedelta) -> None:
        """Move the run's lease into the past, so that time has passed for this run alone."""
        await self._connection.execute(statement(self._system.facts.age), {"id": run_id, "by": by})

    @asynccontextmanager
    async def lawless(self) -> AsyncIterator[None]:
        """A transaction in which the run table's CHECK constraints and triggers don't hold."""
        table = run_table_of(self._system.facts)
        name = sql.Identifier(*table.name.split("."))
        alter = sql.SQL("ALTER TABLE {} ").format(name)
        async with self._connection.transaction():
            async with self._connection.cursor(row_factory=tuple_row) as cursor:
                await cursor.execute(CHECKS, {"table": table.name})
                checks = await cursor.fetchall()
            for constraint, _ in checks:
                await self._connection.execute(alter + sql.SQL("DROP CONSTRAINT {}").format(sql.Identifier(constraint)))
            await self._connection.execute(alter + sql.SQL("DISABLE TRIGGER USER"))
            yield
            await self._connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
            await self._connection.execute(alter + sql.SQL("ENABLE TRIGGER USER"))
            for constraint, definition in checks:
                unproved = definition if definition.endswith("NOT VALID") else f"{definition} NOT VALID"
                await self._connection.execute(
                    alter + sql.SQL("ADD CONSTRAINT {} ").format(sql.Identifier(constraint)) + statement(unproved)
                )

    async def illegal_run(self, status: str = "pending", **fields: Any) -> Run:
        """An active run whose shape the constraint would refuse, as data from before the constraint has it.

        Without `fields` it is a chat that names no scope.
        """
        async with self.lawless():
            return await self.run(status, **(fields or {"scope_conversation_id": None}))


def _values(row: Run | Attempt, fields: tuple[str, ...]) -> dict[str, Any]:
    """The row's columns as parameters."""
    return {name: getattr(row, name) for name in fields}
