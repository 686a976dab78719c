"""A correct queue that promises little: leases, tokens, retries, a sweep, an order and a history.

Knows the port alone. Owns two plain tables with few of the fields that runs can have. It cancels nothing, has no
trees, shapes or conversations, names no `run_table`, and locks its rows FOR UPDATE.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, Final, LiteralString

import psycopg
from psycopg import AsyncConnection, sql
from psycopg.rows import TupleRow

from leaseproof.system import (
    Cap,
    Claimed,
    Database,
    Ended,
    Facts,
    Operations,
    Refused,
    Renewed,
    Swept,
    System,
)

SCHEMA: Final = """
    CREATE TABLE jobs (
        id text COLLATE "C" PRIMARY KEY, state text NOT NULL, worker text, token text, leased_until timestamptz,
        queued_at timestamptz NOT NULL, error text
    );
    CREATE TABLE tries (
        job text COLLATE "C" NOT NULL REFERENCES jobs, no integer NOT NULL, token text NOT NULL,
        began_at timestamptz NOT NULL DEFAULT clock_timestamp(), leased_until timestamptz, ended_at timestamptz,
        outcome text, error text, PRIMARY KEY (job, no)
    );
    CREATE UNIQUE INDEX one_open ON tries (job) WHERE ended_at IS NULL;
"""
FACTS: Final = Facts(
    runs="""
        SELECT id, NULL::text AS uid, NULL::text AS run_type, state AS status, NULL::text AS conversation_id,
               NULL::text AS scope_conversation_id, NULL::text AS created_by_run_id,
               NULL::text AS subagent_relation_id, NULL::text AS workdir, worker AS worker_id, token AS owner_token,
               leased_until AS lease_expires_at, NULL::timestamptz AS heartbeat_at, NULL::integer AS retry_count,
               queued_at AS created_at, NULL::timestamptz AS started_at, NULL::timestamptz AS finished_at,
               NULL::jsonb AS result, error AS error_type, NULL::text AS error_message
        FROM jobs
    """,
    attempts="""
        SELECT job AS run_id, no AS attempt_no, token AS owner_token, began_at AS started_at,
               NULL::timestamptz AS heartbeat_at, leased_until AS lease_expires_at, ended_at AS finished_at, outcome,
               error AS error_type, NULL::text AS error_message
        FROM tries
    """,
    age="""
        WITH attempt AS (
            UPDATE tries SET leased_until = leased_until - %(by)s WHERE job = %(id)s AND ended_at IS NULL
        )
        UPDATE jobs SET leased_until = leased_until - %(by)s WHERE id = %(id)s
    """,
    lock="SELECT 1 FROM jobs WHERE id = %(id)s FOR UPDATE",
    plant={
        "run": [
            """
            INSERT INTO jobs VALUES (
                %(id)s, %(status)s, %(worker_id)s, %(owner_token)s, %(lease_expires_at)s, %(created_at)s,
                %(error_type)s
            )
            """
        ],
        "attempt": [
            """
            INSERT INTO tries VALUES (
                %(run_id)s, %(attempt_no)s, %(owner_token)s, coalesce(%(started_at)s::timestamptz, clock_timestamp()),
                %(lease_expires_at)s, %(finished_at)s, %(outcome)s, %(error_type)s
            )
            """
        ],
    },
    tables=("jobs", "tries"),
    attempt_table="tries",
)
PROMISED: Final = frozenset(
    {Cap.lease, Cap.owner_token, Cap.retry_release, Cap.reconcile, Cap.fifo_fetch, Cap.attempt_history}
)


class Queue(Operations):
    """The operations, each on one job, on the connection of an open transaction."""

    def __init__(self, connection: AsyncConnection[TupleRow]) -> None:
        self._connection = connection

    async def _rows(self, text: LiteralString, **values: Any) -> list[TupleRow]:
        cursor = await self._connection.execute(text, values)
        return await cursor.fetchall() if cursor.description else []

    async def _locked(self, job: str) -> tuple[str | None, str | None, bool]:
        """State, token, and whether the lease is live, with the row locked."""
        rows = await self._rows("SELECT state, token, leased_until FROM jobs WHERE id = %(job)s FOR UPDATE", job=job)
        if not rows:
            return None, None, False
        state, token, until = rows[0]
        [(live,)] = await self._rows("SELECT coalesce(%(until)s::timestamptz > clock_timestamp(), false)", until=until)
        return state, token, live

    async def _owns(self, job: str, owner: str) -> bool:
        state, token, live = await self._locked(job)
        return state == "running" and token == owner and live

    async def _lend(self, job: str, lease: timedelta) -> None:
        await self._rows(
            """
            WITH lent AS (
                UPDATE jobs SET leased_until = greatest(leased_until, clock_timestamp() + %(lease)s)
                WHERE id = %(job)s RETURNING id, leased_until
            )
            UPDATE tries SET leased_until = lent.leased_until FROM lent WHERE job = lent.id AND ended_at IS NULL
            """,
            job=job,
            lease=lease,
        )

    async def _end_try(self, job: str, outcome: str, error: str | None = None) -> None:
        await self._rows(
            """
            UPDATE tries SET ended_at = clock_timestamp(), outcome = %(outcome)s, error = %(error)s
            WHERE job = %(job)s AND ended_at IS NULL
            """,
            job=job,
            outcome=outcome,
            error=error,
        )

    async def _leave(self, job: str, state: str, outcome: str, error: str | None) -> None:
        await self._rows(
            """
            UPDATE jobs SET state = %(state)s, token = NULL, leased_until = NULL, error = %(error)s
            WHERE id = %(job)s
            """,
            job=job,
            state=state,
            error=error,
        )
        await self._end_try(job, outcome, error)

    async def mark_running(
        self, run_id: str, *, owner_token: str, worker_id: str, lease: timedelta
    ) -> Claimed | Refused:
        state, token, live = await self._locked(run_id)
        if state == "running" and live and token == owner_token:
            await self._lend(run_id, lease)
            [(number,)] = await self._rows("SELECT max(no) FROM tries WHERE job = %(job)s", job=run_id)
            return Claimed(owner_token, number)
        if state not in ("pending", "running") or live or token == owner_token:
            return Refused("not free")
        if await self._rows(
            "SELECT 1 FROM tries WHERE job = %(job)s AND token = %(token)s", job=run_id, token=owner_token
        ):
            return Refused("spent token")
        await self._end_try(run_id, "lease_expired")
        await self._rows(
            """
            UPDATE jobs SET state = 'running', worker = %(worker)s, token = %(token)s, leased_until = NULL
            WHERE id = %(job)s
            """,
            job=run_id,
            worker=worker_id,
            token=owner_token,
        )
        [(number,)] = await self._rows(
            """
            INSERT INTO tries (job, no, token)
            SELECT %(job)s, 1 + coalesce(max(no), 0), %(token)s FROM tries WHERE job = %(job)s RETURNING no
            """,
            job=run_id,
            token=owner_token,
        )
        await self._lend(run_id, lease)
        return Claimed(owner_token, number)

    async def renew_lease(self, run_id: str, *, owner_token: str, lease: timedelta) -> Renewed | Refused:
        if not await self._owns(run_id, owner_token):
            return Refused("not the owner")
        await self._lend(run_id, lease)
        return Renewed(cancel_requested=False)

    async def release_lease_for_retry(
        self, run_id: str, *, owner_token: str, error_type: str | None = None, error_message: str | None = None
    ) -> Ended | Refused:
        if not await self._owns(run_id, owner_token):
            return Refused("not the owner")
        await self._leave(run_id, "pending", "retry_released", error_type)
        return Ended("pending")

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
        if not await self._owns(run_id, owner_token):
            return Refused("not the owner")
        await self._leave(run_id, status, status, error_type)
        return Ended(status)

    async def reconcile_expired_leases(self, *, limit: int | None = None) -> Swept:
        dead = await self._rows(
            """
            SELECT id FROM jobs
            WHERE state = 'running' AND coalesce(leased_until <= clock_timestamp(), true)
            ORDER BY id LIMIT %(limit)s FOR UPDATE SKIP LOCKED
            """,
            limit=limit,
        )
        for (job,) in dead:
            await self._leave(job, "failed", "lease_expired", "worker_lease_expired")
        return Swept({job: ("running", "failed") for (job,) in dead})

    async def fetch_next(self, *, limit: int = 1) -> tuple[str, ...]:
        rows = await self._rows(
            "SELECT id FROM jobs WHERE state = 'pending' ORDER BY queued_at, id LIMIT %(limit)s", limit=limit
        )
        return tuple(job for (job,) in rows)


class Connected:
    """An actor with one connection."""

    def __init__(self, dsn: str, timeout: float) -> None:
        self._dsn = dsn
        self._timeout = timeout
        self._connection: AsyncConnection[TupleRow] | None = None

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Queue]:
        if self._connection is None:
            self._connection = await AsyncConnection.connect(
                self._dsn, autocommit=True, options=f"-c statement_timeout={int(1000 * self._timeout)}"
            )
        async with self._connection.transaction():
            yield Queue(self._connection)

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()


class Modest(System):
    """The adapter."""

    name = "modest"
    version = "1"
    schema = "modest"
    capabilities = PROMISED
    not_promised = {cap: "a queue without it" for cap in Cap if cap not in PROMISED}  # noqa: RUF012
    facts = FACTS
    owners = {"run repository": "modest:Queue", "attempts": "modest:Queue"}  # noqa: RUF012

    async def install(self, database: Database, release: str) -> None:
        async with await psycopg.AsyncConnection.connect(database.owner_dsn) as connection:
            await connection.execute(SCHEMA)
            grant = sql.SQL("GRANT SELECT, INSERT, UPDATE ON jobs, tries TO {}")
            await connection.execute(grant.format(sql.Identifier(database.app_role)))

    def actor(self, dsn: str, *, statement_timeout: float | None = None) -> Connected:
        return Connected(dsn, statement_timeout or self.timeouts.statement)


system = Modest()
