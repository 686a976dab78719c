"""The port: what a system under test shows to the kit, and the only thing that an adapter has to import.

Owns the interface; must not touch a database, pytest or any particular system. An adapter is one file: a `System`
that says what it promises, how to read its tables in the kit's terms, and how to call its operations.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any, Protocol

from leaseproof.answers import (
    AttemptsRead,
    CancelAnswer,
    Claimed,
    Created,
    Deadlocked,
    Ended,
    Fault,
    IllegalShape,
    NotPromised,
    Purged,
    Refused,
    Renewed,
    Swept,
    TimedOut,
    Unavailable,
)
from leaseproof.capabilities import Cap

__all__ = [
    "Actor",
    "AttemptsRead",
    "CancelAnswer",
    "Cap",
    "Claimed",
    "Created",
    "Database",
    "Deadlocked",
    "Ended",
    "Facts",
    "Fault",
    "IllegalShape",
    "NewRun",
    "NotPromised",
    "Operations",
    "Policy",
    "Purged",
    "Refused",
    "Renewed",
    "RunTable",
    "Style",
    "Swept",
    "System",
    "TimedOut",
    "Timeouts",
    "Unavailable",
]


@dataclass(frozen=True)
class Database:
    """One database of this run, with the least privilege for each use. DSNs are libpq connection strings.

    `owner_dsn` installs and upgrades, as a role that owns this database and is no superuser; the system grants what
    its operations need to `app_role`, and what a purge needs to `maintenance_role`. The roles are made for the run.
    """

    owner_dsn: str
    app_role: str
    maintenance_role: str


@dataclass(frozen=True)
class RunTable:
    """The table that holds the current state of runs, where it has one row a run and a column a field.

    `columns` maps the kit's field names (spec, Vocabulary) to the table's columns.
    """

    name: str
    columns: Mapping[str, str]


@dataclass(frozen=True)
class Facts:
    """How the kit sees and sets rows of the system, from a connection of its own: printed SQL, psycopg parameters.

    The kit never observes through the system's own read-back.

    runs:     SELECT that gives the columns of `leaseproof.world.facts.RUN_FIELDS`, a row a run (NULL where unknown).
    attempts: SELECT that gives the columns of `ATTEMPT_FIELDS`, a row an ownership; None without a history.
    age:      statement that moves the lease of run %(id)s by %(by)s (interval) into the past, heartbeat included.
    lock:     SELECT that locks the row of run %(id)s with the strength that the operations use;
              the kit appends NOWAIT for a probe.
    plant:    raw writes behind the system's back, by kind ("conversation", "relation", "run", "attempt"): statements
              with the fields of that kind as parameters.
    tables:   the system's tables, for digests, parents first.
    run_table: see `RunTable`; None where runs don't lie in one table.
    attempt_table: the table of the history; None without one.
    """

    runs: str
    age: str
    lock: str
    plant: Mapping[str, Sequence[str]]
    tables: tuple[str, ...]
    attempts: str | None = None
    run_table: RunTable | None = None
    attempt_table: str | None = None


@dataclass(frozen=True)
class NewRun:
    """What a caller asks of the creation service (CREATE). Fields as in the spec's vocabulary.

    chat: uid and conversation. resume: uid and creator. subagent: uid, creator with the token of its live owner,
    relation, child conversation and the scope that it inherits.
    """

    run_type: str
    uid: str
    conversation_id: str | None = None
    scope_conversation_id: str | None = None
    created_by_run_id: str | None = None
    owner_token: str | None = None
    subagent_relation_id: str | None = None
    workdir: str | None = None


class Operations(Protocol):
    """The operations of a system, each inside the transaction that the actor has open.

    The first six carry the names of the spec's transitions; a system maps its own to them. One that a system lacks
    raises `NotPromised` (inherit from `Operations`, and it does). Leases are durations from the database's now.
    """

    async def mark_running(
        self, run_id: str, *, owner_token: str, worker_id: str, lease: timedelta
    ) -> Claimed | Ended | Refused:
        """Claim the run, take it over, or refresh it as its live owner (ATTEMPT-1, 2, 3)."""
        raise NotPromised("mark_running")

    async def renew_lease(self, run_id: str, *, owner_token: str, lease: timedelta) -> Renewed | Refused:
        """Lengthen the owner's lease, run and attempt together (ATTEMPT-4)."""
        raise NotPromised("renew_lease")

    async def release_lease_for_retry(
        self, run_id: str, *, owner_token: str, error_type: str | None = None, error_message: str | None = None
    ) -> Ended | Refused:
        """Give the run back: pending again, or cancelled where that was asked for (ATTEMPT-5)."""
        raise NotPromised("release_lease_for_retry")

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
        """End the run as its owner (ATTEMPT-6); `status` in the answer is what the run became."""
        raise NotPromised("set_terminal_status")

    async def reconcile_expired_leases(self, *, limit: int | None = None) -> Swept:
        """End runs whose lease has expired (ATTEMPT-7), at most `limit` of them in one sweep where given."""
        raise NotPromised("reconcile_expired_leases")

    async def request_cancel_execution_tree(self, root_id: str) -> CancelAnswer:
        """Cancel the tree below the run (LOCK, CANCEL)."""
        raise NotPromised("request_cancel_execution_tree")

    async def fetch_next(self, *, limit: int = 1) -> tuple[str, ...]:
        """The ids of the next pending runs, first in, first out by (created_at, id)."""
        raise NotPromised("fetch_next")

    async def attempts(self, run_id: str) -> AttemptsRead:
        """The system's own reading of the run's history (ATTEMPT-10)."""
        raise NotPromised("attempts")

    async def create_run(self, new: NewRun) -> Created | Refused:
        """Create a run through the creation service (CREATE)."""
        raise NotPromised("create_run")

    async def orm_write(self, fields: Mapping[str, Any]) -> None:
        """Insert a run with exactly these fields through the mapper, and flush (SHAPE-1).

        Raises `IllegalShape` with the SQLSTATE where the database refuses the row.
        """
        raise NotPromised("orm_write")

    async def purge(self, *, older_than: timedelta, limit: int) -> Purged:
        """Remove at most `limit` runs that finished longer ago, with their attempts (ATTEMPT-18)."""
        raise NotPromised("purge")

    def savepoint(self) -> AbstractAsyncContextManager[None]:
        """A savepoint of the caller's transaction: released at the end, rolled back when the body raises."""
        raise NotPromised("savepoint")


class Actor(Protocol):
    """One participant with connections of its own, used inside one task or process.

    In the style `caller`, `transaction()` opens one transaction at READ COMMITTED, which commits at the end and rolls
    back when the body raises. In the style `own`, each operation commits by itself and `transaction()` only groups.
    The application_name of the DSN must reach the server: the kit finds the actor's sessions by it.
    """

    def transaction(self) -> AbstractAsyncContextManager[Operations]: ...

    async def close(self) -> None:
        """Close the connections; after it no session of this actor is left on the server."""


class Style(StrEnum):
    """Whose transactions the operations run in."""

    caller = "caller"
    own = "own"


@dataclass(frozen=True)
class Timeouts:
    """The system's own time-outs, in seconds: a lease, the interval of renewals, and the longest wait for a lock."""

    lease: float = 30.0
    renewal: float = 10.0
    statement: float = 5.0


@dataclass(frozen=True)
class Policy:
    """Where a system declares that it differs from the reference's table of transitions (spec, Transitions).

    completion_beats_cancel: a completion may win over a cancel request that its owner had not read yet (CANCEL-2).
    max_retries: releases for retry before the worker fails the run.
    retry_exhaustion_in_repository: a release may itself fail the run when no retry is left (ATTEMPT-16).
    """

    completion_beats_cancel: bool = False
    max_retries: int = 3
    retry_exhaustion_in_repository: bool = False


class System(ABC):
    """A system under test. Each `Cap` stands either in `capabilities` or, with its reason, in `not_promised`.

    schema:   names what `install` makes: systems with the same name share one installed template database.
    owners:   the symbols ("module:qualified.name") that own each side effect, by the spec's names of owners; they
              are looked up in the source at the commit, not imported.
    releases: names of the releases that `install` knows, oldest first, the current one last.
    """

    name: str
    version: str
    schema: str
    capabilities: frozenset[Cap]
    not_promised: Mapping[Cap, str]
    facts: Facts
    owners: Mapping[str, str]
    releases: Sequence[str] = ("current",)
    style: Style = Style.caller
    timeouts: Timeouts = Timeouts()
    policy: Policy = Policy()

    @abstractmethod
    async def install(self, database: Database, release: str) -> None:
        """Create the schema of `release` in the empty database, grants to the two roles included."""

    async def upgrade(self, database: Database, from_release: str) -> None:
        """Bring the schema of `from_release` to the current release, in place (`Cap.upgrade`)."""
        raise NotPromised("upgrade")

    @abstractmethod
    def actor(self, dsn: str, *, statement_timeout: float | None = None) -> Actor:
        """A participant on this DSN; `statement_timeout` (seconds) replaces the system's own where given (LOCK-7)."""
