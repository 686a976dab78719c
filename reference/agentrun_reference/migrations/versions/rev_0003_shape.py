"""Release 1.0, after its code: PostgreSQL itself refuses active runs of an illegal shape.

NOT VALID: no existing row is read or rejected; ACCESS EXCLUSIVE on agent_runs for an instant.
"""

from alembic import op

revision = "0003"
down_revision = "0002"
phase = "post"

STATEMENTS = (
    """
    ALTER TABLE agent_runs ADD CONSTRAINT agent_runs_active_shape CHECK ((
        status IN ('completed', 'failed', 'cancelled', 'interrupted')
        OR status IN ('pending', 'running', 'cancel_requested')
        AND conversation_id IS NOT NULL
        AND scope_conversation_id IS NOT NULL
        AND (
            run_type = 'chat' AND scope_conversation_id = conversation_id
            AND created_by_run_id IS NULL AND subagent_relation_id IS NULL
            OR run_type = 'resume' AND scope_conversation_id = conversation_id
            AND created_by_run_id IS NOT NULL AND subagent_relation_id IS NULL
            OR run_type = 'subagent'
            AND created_by_run_id IS NOT NULL AND subagent_relation_id IS NOT NULL
        )
    ) IS TRUE) NOT VALID
    """,
)


def upgrade() -> None:
    for statement in STATEMENTS:
        op.execute(statement)
