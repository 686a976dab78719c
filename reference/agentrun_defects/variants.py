"""Correct variants of the reference: what another good implementation does otherwise. Every claim has to pass."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from psycopg.errors import UniqueViolation
from psycopg.types.json import Jsonb
from sqlalchemy import func, select, text
from sqlalchemy.exc import IntegrityError

from agentrun_defects._control import assembled, variant
from agentrun_defects.shape import ACTIVE, CHAT, ENDED, LEGAL, NO_RULE, PLACED, RESUME, SUBAGENT
from agentrun_reference.conformance import ReferenceSystem
from agentrun_reference.outcomes import Claimed, CreationRefused, Ended, Refused
from agentrun_reference.repository import HELD_COLUMNS, AgentRunRepository, HeldRun
from agentrun_reference.schema import ATTEMPTS, RUNS
from agentrun_reference.service import AgentRunService
from leaseproof.system import Cap


class CreatorUnderForShare(AgentRunService):
    """The creator of a run is locked FOR SHARE, which conflicts with its updates as well."""

    async def _lock_creator(self, run_id: str, uid: str) -> HeldRun:
        held = select(*HELD_COLUMNS).where(RUNS.c.id == run_id).with_for_update(read=True).cte("held")
        row = (await self.connection.execute(select(held, func.clock_timestamp()))).one_or_none()
        if row is None:
            raise CreationRefused("creator", f"there is no run {run_id}")
        creator = HeldRun(*row)
        if creator.uid != uid:
            raise CreationRefused("uid", f"run {run_id} is another user's")
        return creator


class ReconcileWithoutLimit(AgentRunRepository):
    """A sweep takes every expired run, however small a batch was asked for."""

    async def _lock_expired(self, limit: int | None) -> list[HeldRun]:
        return await super()._lock_expired(None)


class RenewalInTwoStatements(AgentRunRepository):
    """A renewal writes the run, and then its attempt, by a statement each."""

    async def _renew(self, run: HeldRun, owner_token: str, lease: timedelta) -> tuple[datetime, int | None]:
        if not run.is_legal:
            return await super()._renew(run, owner_token, lease)
        until = max(run.lease_expires_at or run.now, run.now + lease)
        await self._write([run.id], {"lease_expires_at": until, "heartbeat_at": run.now})
        renewing = self._attempts.renewing(run.id, owner_token=owner_token, now=run.now, lease_expires_at=until)
        return until, (await self._connection.execute(renewing.returning(ATTEMPTS.c.attempt_no))).scalar()


class FinishInOneStatement(AgentRunRepository):
    """The owner's end is one statement of hand-written SQL: a part that locks, and parts that write."""

    FINISH = text("""
        WITH held AS MATERIALIZED (
            SELECT id, status, owner_token, lease_expires_at FROM agent_runs WHERE id = :run_id FOR NO KEY UPDATE
        ), ended AS (
            UPDATE agent_runs AS run
            SET status = CASE held.status WHEN 'cancel_requested' THEN 'cancelled' ELSE :status END,
                owner_token = NULL, lease_expires_at = NULL, finished_at = clock_timestamp(),
                result = :result, error_type = :error_type, error_message = :error_message
            FROM held
            WHERE run.id = held.id AND held.status IN ('running', 'cancel_requested')
            AND held.owner_token = :owner_token AND held.lease_expires_at > clock_timestamp()
            RETURNING run.id, run.status, run.finished_at
        ), closed AS (
            UPDATE agent_run_attempts AS attempt
            SET finished_at = ended.finished_at, outcome = ended.status,
                error_type = :error_type, error_message = :error_message
            FROM ended WHERE attempt.run_id = ended.id AND attempt.finished_at IS NULL
        )
        SELECT status FROM ended
    """)

    async def set_terminal_status(self, run_id: str, *, result: Any = None, **ending: Any) -> Ended | Refused:
        absent = {"error_type": None, "error_message": None}
        values = absent | ending | {"run_id": run_id, "result": None if result is None else Jsonb(result)}
        status = (await self._connection.execute(self.FINISH, values)).scalar()
        return Refused("not_the_owner") if status is None else Ended(status)


class ClaimInOneStatement(AgentRunRepository):
    """A claim is one statement; one that loses a race for the next number (23505) looks again."""

    CLAIM = text(f"""
        WITH held AS MATERIALIZED (
            SELECT * FROM agent_runs WHERE id = :run_id FOR NO KEY UPDATE
        ), claimable AS MATERIALIZED (
            SELECT id, clock_timestamp() AS now FROM held
            WHERE {LEGAL} AND owner_token IS DISTINCT FROM :owner_token
            AND (status = 'pending' OR status = 'running' AND coalesce(lease_expires_at <= clock_timestamp(), true))
            AND NOT EXISTS (SELECT FROM agent_run_attempts WHERE run_id = held.id AND owner_token = :owner_token)
        ), closed AS (
            UPDATE agent_run_attempts SET finished_at = now, outcome = 'lease_expired'
            FROM claimable WHERE run_id = id AND finished_at IS NULL RETURNING attempt_no
        ), taken AS (
            UPDATE agent_runs AS run
            SET status = 'running', worker_id = :worker_id, owner_token = :owner_token, heartbeat_at = now,
                lease_expires_at = now + :lease, started_at = coalesce(run.started_at, now)
            FROM claimable WHERE run.id = claimable.id RETURNING run.id, run.lease_expires_at, now
        )
        INSERT INTO agent_run_attempts (run_id, attempt_no, owner_token, started_at, heartbeat_at, lease_expires_at)
        SELECT id, greatest((SELECT max(attempt_no) FROM closed),
                            (SELECT max(attempt_no) FROM agent_run_attempts WHERE run_id = id), 0) + 1,
               :owner_token, now, now, lease_expires_at
        FROM taken RETURNING attempt_no, lease_expires_at
    """)  # noqa: S608  # constants alone

    async def mark_running(
        self, run_id: str, *, owner_token: str, worker_id: str, lease: timedelta
    ) -> Claimed | Ended | Refused:
        claim = {"run_id": run_id, "owner_token": owner_token, "worker_id": worker_id, "lease": lease}
        try:
            async with self._connection.begin_nested():
                taken = (await self._connection.execute(self.CLAIM, claim)).one_or_none()
        except IntegrityError as error:
            if not isinstance(error.orig, UniqueViolation):
                raise
            return await self.mark_running(run_id, owner_token=owner_token, worker_id=worker_id, lease=lease)
        if taken is not None:
            return Claimed(owner_token, *taken)
        return await super().mark_running(run_id, owner_token=owner_token, worker_id=worker_id, lease=lease)


class HostClock(AgentRunRepository):
    """Leases are decided by the clock of this host, read after the lock."""

    async def _lock(self, *conditions: Any, **how: Any) -> list[HeldRun]:
        return [replace(run, now=datetime.now(UTC)) for run in await super()._lock(*conditions, **how)]


class HostClockSystem(ReferenceSystem):
    """Does not promise the database's clock."""

    capabilities = ReferenceSystem.capabilities - {Cap.database_clock}
    not_promised = {**ReferenceSystem.not_promised, Cap.database_clock: "leases are decided by the host's clock"}  # noqa: RUF012  # the port's declaration


RULE_IN_PARTS: Final = f"""
    {NO_RULE}
    ALTER TABLE agent_runs
        DROP CONSTRAINT IF EXISTS agent_runs_status,
        DROP CONSTRAINT IF EXISTS agent_runs_placed,
        DROP CONSTRAINT IF EXISTS agent_runs_types;
    ALTER TABLE agent_runs
        ADD CONSTRAINT agent_runs_status CHECK (({ENDED} OR {ACTIVE}) IS TRUE) NOT VALID,
        ADD CONSTRAINT agent_runs_placed CHECK (({ENDED} OR {PLACED}) IS TRUE) NOT VALID,
        ADD CONSTRAINT agent_runs_types CHECK (({ENDED} OR {CHAT} OR {RESUME} OR {SUBAGENT}) IS TRUE) NOT VALID
"""


def replacing(identity: str, part: type[AgentRunRepository] | type[AgentRunService]) -> None:
    """The variant that is the reference with this part replaced."""
    variant(identity, str(part.__doc__), lambda: assembled(part))


replacing("creator_under_for_share", CreatorUnderForShare)
replacing("reconcile_without_limit", ReconcileWithoutLimit)
replacing("renewal_in_two_statements", RenewalInTwoStatements)
replacing("finish_in_one_statement", FinishInOneStatement)
replacing("claim_in_one_statement", ClaimInOneStatement)
variant("host_clock", str(HostClock.__doc__), lambda: HostClockSystem(repository=HostClock))
variant(
    "rule_in_parts",
    "The shape is held by three constraints, each on a part of the rule.",
    lambda: ReferenceSystem(after_install=RULE_IN_PARTS),
)
