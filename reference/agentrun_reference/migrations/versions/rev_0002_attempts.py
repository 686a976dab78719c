"""Release 1.0, before its code: the history of attempts, closed for good, and the purge that keeps it bounded.

Adds a table and two functions; no existing row is read. The new foreign key takes SHARE ROW EXCLUSIVE on agent_runs
for an instant.
"""

from alembic import op

revision = "0002"
down_revision = "0001"
phase = "pre"

STATEMENTS = (
    """
    CREATE TABLE agent_run_attempts (
        run_id text COLLATE "C" NOT NULL REFERENCES agent_runs (id),
        attempt_no integer NOT NULL,
        previous_attempt_no integer GENERATED ALWAYS AS (nullif(attempt_no - 1, 0)) STORED,
        owner_token text NOT NULL,
        started_at timestamptz NOT NULL,
        heartbeat_at timestamptz,
        lease_expires_at timestamptz,
        finished_at timestamptz,
        outcome text,
        error_type text,
        error_message text,
        PRIMARY KEY (run_id, attempt_no),
        CONSTRAINT agent_run_attempts_from_one CHECK (attempt_no >= 1),
        CONSTRAINT agent_run_attempts_outcome CHECK ((
            finished_at IS NULL AND outcome IS NULL
            OR finished_at IS NOT NULL
            AND outcome IN ('completed', 'failed', 'cancelled', 'interrupted', 'retry_released', 'lease_expired')
        ) IS TRUE),
        CONSTRAINT agent_run_attempts_contiguous FOREIGN KEY (run_id, previous_attempt_no)
            REFERENCES agent_run_attempts (run_id, attempt_no)
    )
    """,
    """
    CREATE UNIQUE INDEX agent_run_attempts_one_open ON agent_run_attempts (run_id) WHERE finished_at IS NULL
    """,
    """
    CREATE FUNCTION guard_agent_run_attempt() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF TG_OP = 'INSERT' THEN
            IF NEW.finished_at IS NOT NULL OR NEW.outcome IS NOT NULL THEN
                RAISE EXCEPTION 'attempt % of run % must be inserted open', NEW.attempt_no, NEW.run_id
                    USING ERRCODE = 'integrity_constraint_violation';
            END IF;
        ELSIF TG_OP = 'UPDATE' THEN
            IF OLD.finished_at IS NOT NULL THEN
                RAISE EXCEPTION 'attempt % of run % is closed, and stays as it is', OLD.attempt_no, OLD.run_id
                    USING ERRCODE = 'integrity_constraint_violation';
            ELSIF (NEW.run_id, NEW.attempt_no, NEW.owner_token, NEW.started_at)
                IS DISTINCT FROM (OLD.run_id, OLD.attempt_no, OLD.owner_token, OLD.started_at) THEN
                RAISE EXCEPTION 'whose attempt % of run % is, and since when, can''t change', OLD.attempt_no, OLD.run_id
                    USING ERRCODE = 'integrity_constraint_violation';
            END IF;
        ELSIF current_setting('agentrun.purging', true) IS DISTINCT FROM 'on' THEN
            RAISE EXCEPTION 'attempts are removed by purge_agent_runs() alone'
                USING ERRCODE = 'integrity_constraint_violation';
        ELSIF TG_OP = 'DELETE' THEN
            RETURN OLD;
        END IF;
        RETURN NEW;
    END $$
    """,
    """
    CREATE TRIGGER agent_run_attempts_guard BEFORE INSERT OR UPDATE OR DELETE ON agent_run_attempts
        FOR EACH ROW EXECUTE FUNCTION guard_agent_run_attempt()
    """,
    """
    CREATE TRIGGER agent_run_attempts_keep BEFORE TRUNCATE ON agent_run_attempts
        FOR EACH STATEMENT EXECUTE FUNCTION guard_agent_run_attempt()
    """,
    """
    -- Removes at most max_runs terminal runs that ended longer ago than older_than, with their attempts, oldest first.
    -- A run goes when nothing refers to it any more. Each round takes runs without referrers, so that a tree, or a
    -- chain of resumes, goes from its leaves up, in this batch or in later ones, and nothing dangles.
    CREATE FUNCTION purge_agent_runs(older_than interval, max_runs integer, OUT runs bigint, OUT attempts bigint)
        LANGUAGE plpgsql SECURITY DEFINER
        SET search_path = pg_catalog, public, pg_temp
    AS $$
    DECLARE
        before timestamptz := clock_timestamp() - older_than;
        batch text[];
        removed bigint;
    BEGIN
        IF before IS NULL OR older_than < interval '0' OR max_runs IS NULL OR max_runs < 1 THEN
            RAISE EXCEPTION 'a purge needs an age and a batch of at least one run, got % and %', older_than, max_runs
                USING ERRCODE = 'invalid_parameter_value';
        END IF;
        runs := 0;
        attempts := 0;
        PERFORM set_config('agentrun.purging', 'on', true);
        LOOP
            batch := ARRAY(
                SELECT run.id FROM agent_runs AS run
                WHERE run.status IN ('completed', 'failed', 'cancelled', 'interrupted')
                AND coalesce(run.finished_at, run.created_at) < before
                AND NOT EXISTS (SELECT FROM agent_runs AS later WHERE later.created_by_run_id = run.id)
                ORDER BY coalesce(run.finished_at, run.created_at), run.id
                LIMIT max_runs - runs
                FOR UPDATE SKIP LOCKED
            );
            -- Once more with the rows locked: a resume may have been committed since the statement above began.
            batch := ARRAY(
                SELECT held.id FROM unnest(batch) AS held (id)
                WHERE NOT EXISTS (SELECT FROM agent_runs AS later WHERE later.created_by_run_id = held.id)
            );
            EXIT WHEN cardinality(batch) = 0;
            DELETE FROM agent_run_attempts WHERE run_id = ANY (batch);
            GET DIAGNOSTICS removed = ROW_COUNT;
            attempts := attempts + removed;
            DELETE FROM agent_runs WHERE id = ANY (batch);
            runs := runs + cardinality(batch);
        END LOOP;
        PERFORM set_config('agentrun.purging', 'off', true);
    END $$
    """,
    """
    REVOKE ALL ON FUNCTION purge_agent_runs(interval, integer) FROM PUBLIC
    """,
)


def upgrade() -> None:
    for statement in STATEMENTS:
        op.execute(statement)
