"""Release 0.9: runs under leases, fenced by owner tokens; no history of attempts, no rule for shapes."""

from alembic import op

revision = "0001"
down_revision = None
phase = "pre"

STATEMENTS = (
    """
    CREATE TABLE conversations (
        id text COLLATE "C" PRIMARY KEY,
        uid text COLLATE "C" NOT NULL
    )
    """,
    """
    CREATE TABLE agent_subagent_relations (
        id text COLLATE "C" PRIMARY KEY,
        parent_conversation_id text COLLATE "C" NOT NULL REFERENCES conversations (id),
        child_conversation_id text COLLATE "C" NOT NULL REFERENCES conversations (id),
        uid text COLLATE "C" NOT NULL,
        name text
    )
    """,
    """
    CREATE TABLE agent_runs (
        id text COLLATE "C" PRIMARY KEY,
        uid text COLLATE "C" NOT NULL,
        run_type text,
        status text,
        conversation_id text COLLATE "C" REFERENCES conversations (id),
        scope_conversation_id text COLLATE "C" REFERENCES conversations (id),
        created_by_run_id text COLLATE "C" REFERENCES agent_runs (id),
        subagent_relation_id text COLLATE "C" REFERENCES agent_subagent_relations (id),
        workdir text,
        worker_id text,
        owner_token text,
        lease_expires_at timestamptz,
        heartbeat_at timestamptz,
        retry_count integer NOT NULL DEFAULT 0,
        created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
        started_at timestamptz,
        finished_at timestamptz,
        result jsonb,
        error_type text,
        error_message text
    )
    """,
    """
    CREATE INDEX agent_runs_fetch_next ON agent_runs (created_at, id) WHERE status = 'pending'
    """,
    """
    CREATE INDEX agent_runs_children ON agent_runs (created_by_run_id)
    """,
    """
    CREATE INDEX agent_runs_leases ON agent_runs (coalesce(lease_expires_at, '-infinity'::timestamptz), id)
        WHERE status IN ('running', 'cancel_requested')
    """,
    """
    CREATE INDEX agent_runs_retention ON agent_runs (coalesce(finished_at, created_at), id)
        WHERE status IN ('completed', 'failed', 'cancelled', 'interrupted')
    """,
)


def upgrade() -> None:
    for statement in STATEMENTS:
        op.execute(statement)
