"""Three systems that keep none of their promises, over plain tables: no constraint, key or trigger, and every right.

`nothing` does nothing, `raising` always raises, and `cheat` reads the rows, says what it would have had to do, and
remembers what it said, but never writes. They know the port alone.
"""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import dict_row

from leaseproof.system import (
    AttemptsRead,
    CancelAnswer,
    Cap,
    Claimed,
    Created,
    Database,
    Ended,
    Facts,
    IllegalShape,
    NewRun,
    Operations,
    Purged,
    Refused,
    Renewed,
    RunTable,
    Swept,
    System,
)

SCHEMA = """
    CREATE TABLE threads (id text, uid text);
    CREATE TABLE relations (
        id text, parent_conversation_id text, child_conversation_id text, uid text, name text
    );
    CREATE TABLE runs (
        id text COLLATE "C", uid text, run_type text, status text, conversation_id text, scope_conversation_id text,
        created_by_run_id text, subagent_relation_id text, workdir text, worker_id text, owner_token text,
        lease_expires_at timestamptz, heartbeat_at timestamptz, retry_count integer, created_at timestamptz,
        started_at timestamptz, finished_at timestamptz, result jsonb, error_type text, error_message text
    );
    CREATE TABLE tries (
        run_id text COLLATE "C", attempt_no integer, owner_token text, started_at timestamptz,
        heartbeat_at timestamptz, lease_expires_at timestamptz, finished_at timestamptz, outcome text,
        error_type text, error_message text
    );
"""
COLUMNS = {
    "threads": "id uid",
    "relations": "id parent_conversation_id child_conversation_id uid name",
    "runs": "id uid run_type status conversation_id scope_conversation_id created_by_run_id subagent_relation_id "
    "workdir worker_id owner_token lease_expires_at heartbeat_at retry_count created_at started_at finished_at "
    "result error_type error_message",
    "tries": "run_id attempt_no owner_token started_at heartbeat_at lease_expires_at finished_at outcome error_type "
    "error_message",
}
TERMINAL = ("completed", "failed", "cancelled", "interrupted")


def insert(table: str) -> list[str]:
    """The statement that plants a row."""
    columns = COLUMNS[table].split()
    return [f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({', '.join(f'%({name})s' for name in columns)})"]


FACTS = Facts(
    runs=f"SELECT {', '.join(COLUMNS['runs'].split())} FROM runs",
    attempts=f"SELECT {', '.join(COLUMNS['tries'].split())} FROM tries",
    age="UPDATE runs SET lease_expires_at = lease_expires_at - %(by)s WHERE id = %(id)s",
    lock="SELECT id FROM runs WHERE id = %(id)s FOR NO KEY UPDATE",
    plant={
        "conversation": insert("threads"),
        "relation": insert("relations"),
        "run": insert("runs"),
        "attempt": insert("tries"),
    },
    tables=("threads", "relations", "runs", "tries"),
    run_table=RunTable("runs", {name: name for name in COLUMNS["runs"].split()}),
    attempt_table="tries",
)


@dataclass
class Memory:
    """What a cheat has said about one database."""

    runs: dict[str, dict[str, Any]] = field(default_factory=dict)
    spent: dict[str, list[str]] = field(default_factory=dict)
    purged: set[str] = field(default_factory=set)


Make = Callable[[psycopg.AsyncConnection[Any], Memory], Operations]


class ShamActor:
    """A connection for reading; what was said in a transaction that is rolled back is forgotten."""

    def __init__(self, dsn: str, memory: Memory, make: Make) -> None:
        self._dsn, self._memory, self._make = dsn, memory, make
        self._connection: psycopg.AsyncConnection[Any] | None = None

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Operations]:
        if self._connection is None:
            self._connection = await psycopg.AsyncConnection.connect(self._dsn, autocommit=True, row_factory=dict_row)
        with forgetting(self._memory):
            yield self._make(self._connection, self._memory)

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()


class forgetting:  # noqa: N801 - used as a word
    """Take back what was said in a block that raises."""

    def __init__(self, memory: Memory) -> None:
        self._memory, self._before = memory, deepcopy(memory)

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            self._memory.__dict__.update(self._before.__dict__)


class Sham(System):
    """Promises everything."""

    version = "1"
    capabilities = frozenset(Cap)
    not_promised: Mapping[Cap, str] = {}
    facts = FACTS
    owners: Mapping[str, str] = {}
    releases = ("old", "new")

    def __init__(self, name: str, make: Make) -> None:
        self.name = self.schema = f"sham-{name}"
        self._make = make
        self._memories: dict[str, Memory] = {}

    async def install(self, database: Database, release: str) -> None:
        async with await psycopg.AsyncConnection.connect(database.owner_dsn) as connection:
            await connection.execute(SCHEMA)
            grant = sql.SQL("GRANT ALL ON ALL TABLES IN SCHEMA public TO {}, {}")
            await connection.execute(
                grant.format(sql.Identifier(database.app_role), sql.Identifier(database.maintenance_role))
            )

    async def upgrade(self, database: Database, from_release: str) -> None:
        """Nothing to do."""

    def actor(self, dsn: str, *, statement_timeout: float | None = None) -> ShamActor:
        memory = self._memories.setdefault(str(conninfo_to_dict(dsn)["dbname"]), Memory())
        return ShamActor(dsn, memory, self._make)


OPERATIONS = (
    "mark_running",
    "renew_lease",
    "release_lease_for_retry",
    "set_terminal_status",
    "reconcile_expired_leases",
    "request_cancel_execution_tree",
    "fetch_next",
    "attempts",
    "create_run",
    "orm_write",
    "purge",
)


@asynccontextmanager
async def no_savepoint(_: Operations) -> AsyncIterator[None]:
    yield


async def nothing_done(*_: object, **__: object) -> None:
    """Does nothing."""


async def raised(*_: object, **__: object) -> None:
    raise RuntimeError("this system always raises")


Nothing = type("Nothing", (Operations,), dict.fromkeys(OPERATIONS, nothing_done) | {"savepoint": no_savepoint})
Raising = type("Raising", (Operations,), dict.fromkeys(OPERATIONS, raised) | {"savepoint": no_savepoint})


def legal(run: Mapping[str, Any]) -> bool:
    """Whether a run of this shape may be active."""
    conversation, scope = run["conversation_id"], run["scope_conversation_id"]
    creator, relation = run["created_by_run_id"] is not None, run["subagent_relation_id"] is not None
    if conversation is None or scope is None:
        return False
    match run["run_type"]:
        case "chat" | "resume":
            return scope == conversation and not relation and creator == (run["run_type"] == "resume")
        case "subagent":
            return creator and relation
        case _:
            return False


class Cheat(Operations):
    """Reads, answers and remembers, and does not write."""

    def __init__(self, connection: psycopg.AsyncConnection[Any], memory: Memory) -> None:
        self._connection, self._memory = connection, memory

    async def _rows(self, table: str) -> list[dict[str, Any]]:
        return await (await self._connection.execute(f"SELECT * FROM {table}")).fetchall()

    async def _runs(self) -> dict[str, dict[str, Any]]:
        """The runs as they would be."""
        rows = {row["id"]: row | self._memory.runs.get(row["id"], {}) for row in await self._rows("runs")}
        made = {run_id: run for run_id, run in self._memory.runs.items() if "created_at" in run}
        return {run_id: run for run_id, run in (rows | made).items() if run_id not in self._memory.purged}

    async def _run(self, run_id: str) -> dict[str, Any] | None:
        return (await self._runs()).get(run_id)

    async def _tokens(self, run_id: str) -> list[str]:
        rows = [row["owner_token"] for row in await self._rows("tries") if row["run_id"] == run_id]
        return rows + self._memory.spent.get(run_id, [])

    def _say(self, run_id: str, **fields: Any) -> None:
        self._memory.runs.setdefault(run_id, {}).update(fields)

    def _end(self, run_id: str, status: str) -> None:
        self._say(run_id, status=status, owner_token=None, lease_expires_at=None, finished_at=datetime.now(UTC))

    @staticmethod
    def _live(run: Mapping[str, Any]) -> bool:
        return run["lease_expires_at"] is not None and run["lease_expires_at"] > datetime.now(UTC)

    async def _owned(self, run_id: str, token: str) -> dict[str, Any] | None:
        run = await self._run(run_id)
        held = run is not None and run["status"] in ("running", "cancel_requested") and run["owner_token"] == token
        return run if run is not None and held and self._live(run) else None

    async def mark_running(
        self, run_id: str, *, owner_token: str, worker_id: str, lease: timedelta
    ) -> Claimed | Ended | Refused:
        run = await self._run(run_id)
        if run is None or run["status"] not in ("pending", "running"):
            return Refused("not claimable")
        tokens = await self._tokens(run_id)
        if run["status"] == "running" and self._live(run):
            return Claimed(owner_token, len(tokens) or None) if run["owner_token"] == owner_token else Refused("owned")
        if not legal(run):
            self._end(run_id, "failed")
            return Ended("failed", illegal=True)
        if owner_token in tokens or run["owner_token"] == owner_token:
            return Refused("spent")
        self._memory.spent.setdefault(run_id, []).append(owner_token)
        self._say(run_id, status="running", owner_token=owner_token, lease_expires_at=datetime.now(UTC) + lease)
        return Claimed(owner_token, len(tokens) + 1)

    async def renew_lease(self, run_id: str, *, owner_token: str, lease: timedelta) -> Renewed | Refused:
        run = await self._owned(run_id, owner_token)
        if run is None:
            return Refused("not the owner")
        if not legal(run):
            raise IllegalShape("illegal")
        self._say(run_id, lease_expires_at=max(run["lease_expires_at"], datetime.now(UTC) + lease))
        return Renewed(run["status"] == "cancel_requested")

    async def release_lease_for_retry(self, run_id: str, *, owner_token: str, **_: Any) -> Ended | Refused:
        run = await self._owned(run_id, owner_token)
        if run is None:
            return Refused("not the owner")
        status = "cancelled" if run["status"] == "cancel_requested" else "pending" if legal(run) else "failed"
        self._end(run_id, status)
        return Ended(status, illegal=status == "failed")

    async def set_terminal_status(self, run_id: str, *, owner_token: str, status: str, **_: Any) -> Ended | Refused:
        run = await self._owned(run_id, owner_token)
        if run is None:
            return Refused("not the owner")
        said = "cancelled" if run["status"] == "cancel_requested" else status
        self._end(run_id, said)
        return Ended(said)

    async def reconcile_expired_leases(self, *, limit: int | None = None) -> Swept:
        fates = {"running": "failed", "cancel_requested": "cancelled"}
        expired = [run for run in (await self._runs()).values() if run["status"] in fates and not self._live(run)]
        taken = expired[:limit]
        for run in taken:
            self._end(run["id"], fates[run["status"]])
        changes = {run["id"]: (run["status"], fates[run["status"]]) for run in taken}
        return Swept(changes, frozenset(run["id"] for run in taken if not legal(run)))

    async def request_cancel_execution_tree(self, root_id: str) -> CancelAnswer:
        runs = await self._runs()
        level, tree = {root_id} & runs.keys(), {root_id: runs.get(root_id)}
        while level:
            below = {
                run["id"]: run
                for run in runs.values()
                if run["created_by_run_id"] in level and run["run_type"] == "subagent" and run["id"] not in tree
            }
            tree |= below
            level = set(below)
        active = [run for run in tree.values() if run is not None and run["status"] not in TERMINAL]
        held = {run["id"] for run in active if run["owner_token"] is not None and run["status"] != "pending"}
        changes = {}
        for run in active:
            asked = run["id"] in held and legal(run)
            changes[run["id"]] = (run["status"], "cancel_requested" if asked else "cancelled")
            if asked:
                self._say(run["id"], status="cancel_requested")
            else:
                self._end(run["id"], "cancelled")
        signals = tuple(run["id"] for run in active if run["id"] in held)
        return CancelAnswer(signals, changes, frozenset(run["id"] for run in active if not legal(run)))

    async def fetch_next(self, *, limit: int = 1) -> tuple[str, ...]:
        pending = [run for run in (await self._runs()).values() if run["status"] == "pending"]
        pending.sort(key=lambda run: (run["created_at"], run["id"]))
        return tuple(run["id"] for run in pending[:limit])

    async def attempts(self, run_id: str) -> AttemptsRead:
        run, tokens = await self._run(run_id), await self._tokens(run_id)
        known = bool(tokens) or run is None or run["status"] == "pending"
        return AttemptsRead(known, tuple(range(1, len(tokens) + 1)))

    async def create_run(self, new: NewRun) -> Created | Refused:
        runs = await self._runs()
        threads = {row["id"]: row["uid"] for row in await self._rows("threads")}
        creator = runs.get(new.created_by_run_id or "")
        relation = next((row for row in await self._rows("relations") if row["id"] == new.subagent_relation_id), None)
        if new.run_type == "chat":
            fits = threads.get(new.conversation_id) == new.uid
        elif creator is None or creator["uid"] != new.uid:
            fits = False
        elif new.run_type == "resume":
            fits = creator["status"] == "interrupted"
        else:
            fits = (
                relation is not None
                and creator["status"] == "running"
                and creator["owner_token"] == new.owner_token
                and creator["scope_conversation_id"] == new.scope_conversation_id
                and (relation["parent_conversation_id"], relation["child_conversation_id"], relation["uid"])
                == (creator["conversation_id"], new.conversation_id, new.uid)
            )
        if not fits:
            return Refused("it does not fit")
        run_id = f"made-{len(self._memory.runs):04d}"
        made = dict.fromkeys(COLUMNS["runs"].split()) | vars(new) | {"id": run_id, "status": "pending"}
        self._say(run_id, **made | {"created_at": datetime.now(UTC)})
        return Created(run_id)

    async def orm_write(self, fields: Mapping[str, Any]) -> None:
        known = fields["status"] in ("pending", "running", "cancel_requested") and legal(fields)
        if fields["status"] not in TERMINAL and not known:
            raise IllegalShape("illegal", sqlstate="23514")

    async def purge(self, *, older_than: timedelta, limit: int) -> Purged:
        before = datetime.now(UTC) - older_than
        runs = (await self._runs()).values()
        needed = {run["created_by_run_id"] for run in runs}
        old = [run["id"] for run in runs if run["finished_at"] and run["finished_at"] < before]
        gone = [run_id for run_id in old if run_id not in needed][:limit]
        self._memory.purged |= set(gone)
        return Purged(len(gone), sum([len(await self._tokens(run_id)) for run_id in gone]))

    @asynccontextmanager
    async def savepoint(self) -> AsyncIterator[None]:
        with forgetting(self._memory):
            yield


nothing = Sham("nothing", lambda *_: Nothing())
raising = Sham("raising", lambda *_: Raising())
cheat = Sham("cheat", Cheat)
