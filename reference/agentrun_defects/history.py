"""Defects of ATTEMPT-8, 10, 11 and 18: a history that can be rewritten, invented, broken or lost."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, LiteralString

import psycopg
from sqlalchemy import Row, insert, select, update

from agentrun_defects._control import defect, schema_defect, system_defect
from agentrun_reference.attempts import Attempts, History, among
from agentrun_reference.conformance import ReferenceSystem
from agentrun_reference.repository import AgentRunRepository, HeldRun
from agentrun_reference.schema import ATTEMPTS, RUNS
from leaseproof.system import Database

OPERATIONS: Final = "test_no_operation_rewrites_a_closed_attempt"
CLOSED: Final = "test_application_role_can_not_change_a_closed_attempt"
OPEN: Final = "test_application_role_can_not_change_whose_an_open_attempt_is"
INSERTED: Final = "test_attempts_are_inserted_open"
INVENTED: Final = "test_no_history_is_invented_for_runs_from_before_attempts"
FIRST: Final = "test_first_claim_after_the_upgrade_is_number_one"
NUMBERS: Final = "test_database_holds_the_numbers_of_attempts"
CLAIMS: Final = "test_claims_number_without_holes"
ONE_OPEN: Final = "test_database_holds_one_open_attempt_of_a_run"
BATCHES: Final = "test_purge_removes_old_runs_with_their_attempts_in_batches"
ALONE: Final = "test_nothing_but_the_purge_removes_runs_or_attempts"

NO_GUARD: Final = "DROP TRIGGER agent_run_attempts_guard ON agent_run_attempts;"


def guard(condition: LiteralString) -> LiteralString:
    """The trigger, for these events and under this condition alone."""
    return f"""{NO_GUARD}
        CREATE TRIGGER agent_run_attempts_guard BEFORE {condition} EXECUTE FUNCTION guard_agent_run_attempt();
    """


class EveryAttempt(Attempts):
    """Closes all attempts of the runs, closed ones too."""

    def closing(self, run_ids: Sequence[str], outcome: str, **values: Any) -> Any:
        values["finished_at"] = values.pop("now")
        return update(ATTEMPTS).where(among(ATTEMPTS.c.run_id, run_ids)).values(outcome=outcome, **values)


class ClosesEveryAttempt(AgentRunRepository):
    """Ends a run with all its attempts, whether they are open or not."""

    def __init__(self, connection: Any) -> None:
        super().__init__(connection)
        self._attempts = EveryAttempt()


system_defect(
    "closes_every_attempt",
    "Closes all attempts of a run with the last one, and nothing in the database stops it.",
    lambda: ReferenceSystem(repository=ClosesEveryAttempt, after_install=NO_GUARD),
    refutes="ATTEMPT-8",
    caught_by=OPERATIONS,
    because="history_rewritten",
    also=["ATTEMPT-5", "ATTEMPT-7", "ATTEMPT-16"],
)
schema_defect(
    "guards_the_outcome_alone",
    "Refuses an update of a closed attempt only where its outcome changes: errors and times can be rewritten.",
    guard("UPDATE ON agent_run_attempts FOR EACH ROW WHEN (OLD.outcome IS DISTINCT FROM NEW.outcome)"),
    refutes="ATTEMPT-8",
    caught_by=CLOSED,
    because="closed_attempt_changed",
)
schema_defect(
    "lets_everybody_delete",
    "Guards updates and inserts, and grants the application what its framework asks for: DELETE.",
    guard("INSERT OR UPDATE ON agent_run_attempts FOR EACH ROW") + "GRANT DELETE ON agent_run_attempts TO PUBLIC",
    refutes="ATTEMPT-8",
    caught_by=CLOSED,
    because="closed_attempt_changed",
    also=["ATTEMPT-18"],
)
schema_defect(
    "guards_closed_attempts_alone",
    "Lets an open attempt be made another owner's, by a grant on the whole table.",
    guard("UPDATE ON agent_run_attempts FOR EACH ROW WHEN (OLD.finished_at IS NOT NULL)")
    + "GRANT UPDATE ON agent_run_attempts TO PUBLIC",
    refutes="ATTEMPT-8",
    caught_by=OPEN,
    because="open_identity_changed",
)
schema_defect(
    "inserts_ended_attempts",
    "Lets an attempt be written that has ended already, by a grant on the whole table.",
    guard("UPDATE OR DELETE ON agent_run_attempts FOR EACH ROW") + "GRANT INSERT ON agent_run_attempts TO PUBLIC",
    refutes="ATTEMPT-8",
    caught_by=INSERTED,
    because="inserted_closed",
)


class BackfillsAttempts(ReferenceSystem):
    """Gives each run that is owned at the upgrade an attempt, as if it had been recorded."""

    async def upgrade(self, database: Database, from_release: str) -> None:
        await super().upgrade(database, from_release)
        async with await psycopg.AsyncConnection.connect(database.owner_dsn) as connection:
            await connection.execute("""
                INSERT INTO agent_run_attempts (run_id, attempt_no, owner_token, started_at, lease_expires_at)
                SELECT id, 1, owner_token, coalesce(started_at, created_at), lease_expires_at
                FROM agent_runs WHERE status IN ('running', 'cancel_requested') AND owner_token IS NOT NULL
            """)


system_defect(
    "backfills_attempts",
    BackfillsAttempts.__doc__ or "",
    BackfillsAttempts,
    refutes="ATTEMPT-10",
    caught_by=INVENTED,
    because="invented_by_upgrade",
)


@defect("records_what_it_sweeps", refutes="ATTEMPT-10", caught_by=INVENTED, because="invented_by_reconcile")
class RecordsWhatItSweeps(AgentRunRepository):
    """Writes an attempt for a swept run that has none, so that its failure shows."""

    async def _lock_expired(self, limit: int | None) -> list[HeldRun]:
        runs = await super()._lock_expired(limit)
        for run in runs:
            recorded = select(ATTEMPTS.c.run_id).where(ATTEMPTS.c.run_id == run.id)
            if (await self._connection.execute(recorded)).first() is None:
                values = {
                    "run_id": run.id,
                    "attempt_no": 1,
                    "owner_token": run.owner_token or "",
                    "started_at": run.now,
                }
                await self._connection.execute(insert(ATTEMPTS).values(values))
        return runs


@defect("says_that_legacy_runs_had_no_attempts", refutes="ATTEMPT-10", caught_by=INVENTED, because="said_known")
class SaysThatLegacyRunsHadNoAttempts(AgentRunRepository):
    """Reads a history that nobody knows as an empty one."""

    async def attempts(self, run_id: str) -> Sequence[Row[Any]] | None:
        return (await self._connection.execute(self._attempts.listing(run_id))).all()


@defect("counts_on_from_the_retries", refutes="ATTEMPT-10", caught_by=FIRST, because="23503")
class CountsOnFromTheRetries(AgentRunRepository):
    """Numbers the first attempt of a run from before attempts after its retries, as if those were recorded."""

    async def _history(self, run_id: str, owner_token: str) -> History:
        history = await super()._history(run_id, owner_token)
        retries = await self._connection.scalar(select(RUNS.c.retry_count).where(RUNS.c.id == run_id))
        return history if history.next_no > 1 or retries is None else replace(history, next_no=retries + 1)


schema_defect(
    "has_no_key_of_attempts",
    "The number of an attempt is unique by the code that counts it, and by nothing else.",
    "ALTER TABLE agent_run_attempts DROP CONSTRAINT agent_run_attempts_pkey CASCADE",
    refutes="ATTEMPT-11",
    caught_by=NUMBERS,
    because="duplicate_accepted",
)


class LetsNumbersHaveHoles(AgentRunRepository):
    """Uses two numbers up in a takeover, one of them for what it closes, and nothing in the database stops it."""

    async def _history(self, run_id: str, owner_token: str) -> History:
        history = await super()._history(run_id, owner_token)
        return replace(history, next_no=history.next_no + 1) if history.has_open else history


system_defect(
    "lets_numbers_have_holes",
    LetsNumbersHaveHoles.__doc__ or "",
    lambda: ReferenceSystem(
        repository=LetsNumbersHaveHoles,
        after_install="ALTER TABLE agent_run_attempts DROP CONSTRAINT agent_run_attempts_contiguous",
    ),
    refutes="ATTEMPT-11",
    caught_by=CLAIMS,
    because="hole_left",
    also=["ATTEMPT-1", "ATTEMPT-2", "ATTEMPT-3"],
)
schema_defect(
    "lets_attempts_have_no_run",
    "The history lies in a table that refers to no run, so that it can be kept for longer.",
    "ALTER TABLE agent_run_attempts DROP CONSTRAINT agent_run_attempts_run_id_fkey",
    refutes="ATTEMPT-11",
    caught_by=NUMBERS,
    because="orphan_accepted",
)
schema_defect(
    "lets_two_attempts_be_open",
    "That one attempt of a run is open is held by the code of the claim alone.",
    "DROP INDEX agent_run_attempts_one_open",
    refutes="ATTEMPT-11",
    caught_by=ONE_OPEN,
    because="second_open_accepted",
)

schema_defect(
    "lets_everybody_purge",
    "Leaves the purge executable by PUBLIC, as a new function is.",
    "GRANT EXECUTE ON FUNCTION purge_agent_runs(interval, integer) TO PUBLIC",
    refutes="ATTEMPT-18",
    caught_by=ALONE,
    because="app_purges",
)


SAME_RIGHTS: Final = """
    REVOKE ALL ON FUNCTION purge_agent_runs(interval, integer) FROM PUBLIC;
    DO $$ DECLARE janitor regrole; BEGIN
        FOR janitor IN
            SELECT grantee FROM pg_proc, aclexplode(proacl) WHERE proname = 'purge_rightly' AND grantee <> proowner
        LOOP
            EXECUTE format('GRANT EXECUTE ON FUNCTION purge_agent_runs(interval, integer) TO %s', janitor);
        END LOOP;
    END $$
"""


def purge(body: LiteralString) -> LiteralString:
    """The purge, by another function's body, which can call the right one; whoever may run that one may run it."""
    return (
        f"""
        ALTER FUNCTION purge_agent_runs(interval, integer) RENAME TO purge_rightly;
        CREATE FUNCTION purge_agent_runs(older_than interval, max_runs integer, OUT runs bigint, OUT attempts bigint)
            LANGUAGE sql SECURITY DEFINER AS $$ {body} $$;
    """
        + SAME_RIGHTS
    )


schema_defect(
    "purges_all_at_once",
    "Does not look at the bound of a batch: one transaction removes, and locks, everything that is old.",
    purge("SELECT * FROM purge_rightly(older_than, 1000000)"),
    refutes="ATTEMPT-18",
    caught_by=BATCHES,
    because="unbounded",
)
schema_defect(
    "trims_histories_of_kept_runs",
    "Removes old attempts of whatever run, and the run stays without its history.",
    purge("""
        SELECT set_config('agentrun.purging', 'on', true);
        WITH trimmed AS (
            DELETE FROM agent_run_attempts WHERE finished_at < clock_timestamp() - older_than AND max_runs > 0
            RETURNING run_id
        ) SELECT 0::bigint, count(*) FROM trimmed
    """),
    refutes="ATTEMPT-18",
    caught_by=BATCHES,
    because="not_together",
)
