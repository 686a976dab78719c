"""The adapter: shows this reference to the kit. Owns the translation, and is the only file here that imports the kit.

Must not decide anything: each operation is one call. Parts can be swapped, so that a defect or a variant differs from
the reference in one point.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from datetime import timedelta
from hashlib import sha256
from typing import Any, LiteralString

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from sqlalchemy import func, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine

from agentrun_reference import __version__, outcomes
from agentrun_reference.manager import CURRENT, RELEASES, SchemaManager
from agentrun_reference.repository import AgentRunRepository
from agentrun_reference.schema import AgentRun
from agentrun_reference.service import AgentRunService, unit_of_work
from leaseproof.system import (
    AttemptsRead,
    CancelAnswer,
    Cap,
    Claimed,
    Created,
    Database,
    Deadlocked,
    Ended,
    Facts,
    Fault,
    IllegalShape,
    NewRun,
    Operations,
    Purged,
    Refused,
    Renewed,
    RunTable,
    Swept,
    System,
    TimedOut,
    Unavailable,
)
from leaseproof.world.facts import RUN_FIELDS

STATEMENT_TIMEOUT = 5.0
"""Seconds that an operation may take: below the interval of renewals, which a waiting cancel holds up (LOCK-7)."""

LATER = "comes in a later release"

FACTS = Facts(
    runs="""
        SELECT id, uid, run_type, status, conversation_id, scope_conversation_id, created_by_run_id,
               subagent_relation_id, workdir, worker_id, owner_token, lease_expires_at, heartbeat_at, retry_count,
               created_at, started_at, finished_at, result, error_type, error_message
        FROM agent_runs
    """,
    attempts="""
        SELECT run_id, attempt_no, owner_token, started_at, heartbeat_at, lease_expires_at, finished_at, outcome,
               error_type, error_message
        FROM agent_run_attempts
    """,
    age="""
        WITH attempt AS (
            UPDATE agent_run_attempts
            SET lease_expires_at = lease_expires_at - %(by)s, heartbeat_at = heartbeat_at - %(by)s
            WHERE run_id = %(id)s AND finished_at IS NULL
        )
        UPDATE agent_runs
        SET lease_expires_at = lease_expires_at - %(by)s, heartbeat_at = heartbeat_at - %(by)s
        WHERE id = %(id)s
    """,
    lock="SELECT id FROM agent_runs WHERE id = %(id)s FOR NO KEY UPDATE",
    plant={
        "conversation": ["INSERT INTO conversations (id, uid) VALUES (%(id)s, %(uid)s)"],
        "relation": [
            """
            INSERT INTO agent_subagent_relations (id, parent_conversation_id, child_conversation_id, uid, name)
            VALUES (%(id)s, %(parent_conversation_id)s, %(child_conversation_id)s, %(uid)s, %(name)s)
            """
        ],
        "run": [
            """
            INSERT INTO agent_runs (
                id, uid, run_type, status, conversation_id, scope_conversation_id, created_by_run_id,
                subagent_relation_id, workdir, worker_id, owner_token, lease_expires_at, heartbeat_at, retry_count,
                created_at, started_at, finished_at, result, error_type, error_message
            ) VALUES (
                %(id)s, %(uid)s, %(run_type)s, %(status)s, %(conversation_id)s, %(scope_conversation_id)s,
                %(created_by_run_id)s, %(subagent_relation_id)s, %(workdir)s, %(worker_id)s, %(owner_token)s,
                %(lease_expires_at)s, %(heartbeat_at)s, coalesce(%(retry_count)s::integer, 0),
                coalesce(%(created_at)s::timestamptz, clock_timestamp()), %(started_at)s, %(finished_at)s,
                %(result)s::jsonb, %(error_type)s, %(error_message)s
            )
            """
        ],
        "attempt": [
            """
            INSERT INTO agent_run_attempts (
                run_id, attempt_no, owner_token, started_at, heartbeat_at, lease_expires_at
            ) VALUES (
                %(run_id)s, %(attempt_no)s, %(owner_token)s, coalesce(%(started_at)s::timestamptz, clock_timestamp()),
                %(heartbeat_at)s, %(lease_expires_at)s
            )
            """,
            """
            UPDATE agent_run_attempts
            SET finished_at = %(finished_at)s, outcome = %(outcome)s,
                error_type = %(error_type)s, error_message = %(error_message)s
            WHERE run_id = %(run_id)s AND attempt_no = %(attempt_no)s
            """,
        ],
    },
    tables=("conversations", "agent_subagent_relations", "agent_runs", "agent_run_attempts"),
    run_table=RunTable("agent_runs", {name: name for name in RUN_FIELDS}),
    attempt_table="agent_run_attempts",
)


class ReferenceOperations(Operations):
    """One transaction's operations, in the kit's words."""

    def __init__(self, service: AgentRunService) -> None:
        self._service = service
        self._runs = service.repository
        self._connection = service.connection

    async def mark_running(
        self, run_id: str, *, owner_token: str, worker_id: str, lease: timedelta
    ) -> Claimed | Ended | Refused:
        with translated():
            answer = await self._runs.mark_running(run_id, owner_token=owner_token, worker_id=worker_id, lease=lease)
        if isinstance(answer, outcomes.Claimed):
            return Claimed(answer.owner_token, answer.attempt_no)
        return _ended(answer)

    async def renew_lease(self, run_id: str, *, owner_token: str, lease: timedelta) -> Renewed | Refused:
        with translated():
            answer = await self._runs.renew_lease(run_id, owner_token=owner_token, lease=lease)
        if isinstance(answer, outcomes.Renewed):
            return Renewed(answer.cancel_requested)
        return Refused(answer.reason)

    async def release_lease_for_retry(
        self, run_id: str, *, owner_token: str, error_type: str | None = None, error_message: str | None = None
    ) -> Ended | Refused:
        with translated():
            return _ended(
                await self._runs.release_lease_for_retry(
                    run_id, owner_token=owner_token, error_type=error_type, error_message=error_message
                )
            )

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
        with translated():
            return _ended(
                await self._runs.set_terminal_status(
                    run_id,
                    owner_token=owner_token,
                    status=status,
                    result=result,
                    error_type=error_type,
                    error_message=error_message,
                )
            )

    async def reconcile_expired_leases(self, *, limit: int | None = None) -> Swept:
        with translated():
            answer = await self._runs.reconcile_expired_leases(limit=limit)
        return Swept(_changes(answer.runs), answer.ended_illegal)

    async def request_cancel_execution_tree(self, root_id: str) -> CancelAnswer:
        with translated():
            answer = await self._service.cancel(root_id)
        return CancelAnswer(answer.to_signal, _changes(answer.runs), answer.ended_illegal)

    async def fetch_next(self, *, limit: int = 1) -> tuple[str, ...]:
        with translated():
            return await self._runs.fetch_next(limit=limit)

    async def attempts(self, run_id: str) -> AttemptsRead:
        with translated():
            attempts = await self._runs.attempts(run_id)
        if attempts is None:
            return AttemptsRead(known=False)
        return AttemptsRead(known=True, numbers=tuple(attempt.attempt_no for attempt in attempts))

    async def create_run(self, new: NewRun) -> Created | Refused:
        with translated():
            try:
                return Created(await self._create(new))
            except outcomes.CreationRefused as refusal:
                return Refused(refusal.reason)

    async def _create(self, new: NewRun) -> str:
        match new.run_type:
            case "chat":
                return await self._service.create_chat(
                    uid=new.uid, conversation_id=new.conversation_id or "", workdir=new.workdir
                )
            case "resume":
                return await self._service.create_resume(
                    uid=new.uid, created_by_run_id=new.created_by_run_id or "", conversation_id=new.conversation_id
                )
            case "subagent":
                return await self._service.create_subagent(
                    uid=new.uid,
                    created_by_run_id=new.created_by_run_id or "",
                    owner_token=new.owner_token or "",
                    subagent_relation_id=new.subagent_relation_id or "",
                    conversation_id=new.conversation_id or "",
                    scope_conversation_id=new.scope_conversation_id or "",
                    workdir=new.workdir,
                )
            case _:
                raise outcomes.CreationRefused("run_type", f"there are no runs of type {new.run_type!r}")

    async def orm_write(self, fields: Mapping[str, Any]) -> None:
        session = AsyncSession(self._connection, join_transaction_mode="rollback_only")
        session.add(AgentRun(**fields))
        try:
            await session.flush()
        except DBAPIError as error:
            raise IllegalShape("PostgreSQL refused the run", sqlstate=_sqlstate(error)) from error
        finally:
            session.expunge_all()

    async def purge(self, *, older_than: timedelta, limit: int) -> Purged:
        purged = func.purge_agent_runs(older_than, limit).table_valued("runs", "attempts")
        with translated():
            runs, attempts = (await self._connection.execute(select(purged.c.runs, purged.c.attempts))).one()
        return Purged(runs, attempts)

    def savepoint(self) -> AbstractAsyncContextManager[None]:
        return self._service.savepoint()


class ReferenceActor:
    """One participant: an engine with one connection, opened when it is first needed."""

    def __init__(
        self, engine: AsyncEngine, repository: type[AgentRunRepository], service: type[AgentRunService]
    ) -> None:
        self._engine = engine
        self._repository = repository
        self._service = service

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Operations]:
        with translated():
            async with unit_of_work(
                self._engine, _not_published, repository=self._repository, service=self._service
            ) as work:
                yield ReferenceOperations(work)

    async def close(self) -> None:
        await self._engine.dispose()


class ReferenceSystem(System):
    """The reference. `repository` and `service` replace its parts; `after_install` is SQL that the owner runs on the
    current release's schema, installed or upgraded to, which then is another template.
    """

    name = "agentrun-reference"
    version = __version__
    not_promised = {  # noqa: RUF012  # the port's declaration
        Cap.signals: LATER,
        Cap.worker: LATER,
        Cap.workspace: LATER,
        Cap.sandbox_inventory: LATER,
    }
    capabilities = frozenset(Cap) - frozenset(not_promised)
    facts = FACTS
    owners = {  # noqa: RUF012  # the port's declaration
        "run repository": "agentrun_reference.repository:AgentRunRepository",
        "attempts": "agentrun_reference.attempts:Attempts",
        "run shape": "agentrun_reference.shape:ACTIVE_SHAPE",
        "creation service": "agentrun_reference.service:AgentRunService",
    }
    releases = tuple(RELEASES)

    def __init__(
        self,
        *,
        repository: type[AgentRunRepository] = AgentRunRepository,
        service: type[AgentRunService] = AgentRunService,
        after_install: LiteralString = "",
    ) -> None:
        self._repository = repository
        self._service = service
        self._after_install = after_install
        self.schema = self.name
        if after_install:
            self.schema += "+" + sha256(after_install.encode()).hexdigest()[:12]

    async def install(self, database: Database, release: str) -> None:
        await asyncio.to_thread(self._manager(database).install, release)
        if release == CURRENT:
            await self._change_schema(database)

    async def upgrade(self, database: Database, from_release: str) -> None:
        await asyncio.to_thread(self._manager(database).upgrade, from_release)
        await self._change_schema(database)

    async def _change_schema(self, database: Database) -> None:
        if self._after_install:
            async with await psycopg.AsyncConnection.connect(database.owner_dsn) as connection:
                await connection.execute(self._after_install)

    def actor(self, dsn: str, *, statement_timeout: float | None = None) -> ReferenceActor:
        seconds = STATEMENT_TIMEOUT if statement_timeout is None else statement_timeout
        return ReferenceActor(connect(dsn, seconds), self._repository, self._service)

    def _manager(self, database: Database) -> SchemaManager:
        return SchemaManager(
            database.owner_dsn,
            application_role=database.app_role,
            maintenance_role=database.maintenance_role,
        )


def connect(dsn: str, statement_timeout: float) -> AsyncEngine:
    """An engine of one connection on a libpq DSN, at READ COMMITTED; `statement_timeout` in seconds."""
    given = conninfo_to_dict(dsn).get("options", "")
    conninfo = make_conninfo(dsn, options=f"{given} -c statement_timeout={round(statement_timeout * 1000)}".strip())
    return create_async_engine(
        "postgresql+psycopg://",
        async_creator=lambda: psycopg.AsyncConnection.connect(conninfo),
        isolation_level="READ COMMITTED",
        pool_size=1,
        max_overflow=0,
        use_native_hstore=False,
    )


@contextmanager
def translated() -> Iterator[None]:
    """The reference's errors as the port's faults; any other passes as it is."""
    try:
        yield
    except outcomes.IllegalRunShape as error:
        raise IllegalShape(str(error)) from error
    except outcomes.OperationTimedOut as error:
        raise TimedOut(str(error)) from error
    except DBAPIError as error:
        fault = _fault(_sqlstate(error))
        if fault is None:
            raise
        raise fault(str(error.orig), sqlstate=_sqlstate(error)) from error


def _fault(sqlstate: str | None) -> type[Fault] | None:
    match sqlstate:
        case "57014" | "55P03":
            return TimedOut
        case "40P01":
            return Deadlocked
        case None:
            return Unavailable
        case _ if sqlstate.startswith(("08", "57P")):
            return Unavailable
    return None


def _sqlstate(error: DBAPIError) -> str | None:
    return error.orig.sqlstate if isinstance(error.orig, psycopg.Error) else None


def _ended(answer: outcomes.Ended | outcomes.Refused) -> Ended | Refused:
    if isinstance(answer, outcomes.Ended):
        return Ended(answer.status, answer.illegal)
    return Refused(answer.reason)


def _changes(runs: Mapping[str, outcomes.Change]) -> dict[str, tuple[str, str]]:
    return {run_id: (str(before), str(after)) for run_id, (before, after) in runs.items()}


async def _not_published(run_id: str) -> None:
    """Signals come in a later release; owners learn of a cancel at their next renewal."""


system = ReferenceSystem()
