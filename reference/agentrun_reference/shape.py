"""The shape that an active run must have (SHAPE-1): owns the rule, as SQL for the constraint and as Python for the
operations; must not touch a connection. A test holds the two equal over every combination.
"""

from typing import Final, Protocol

CHAT: Final = "chat"
RESUME: Final = "resume"
SUBAGENT: Final = "subagent"

PENDING: Final = "pending"
RUNNING: Final = "running"
CANCEL_REQUESTED: Final = "cancel_requested"
COMPLETED: Final = "completed"
FAILED: Final = "failed"
CANCELLED: Final = "cancelled"
INTERRUPTED: Final = "interrupted"

ACTIVE: Final = (PENDING, RUNNING, CANCEL_REQUESTED)
TERMINAL: Final = (COMPLETED, FAILED, CANCELLED, INTERRUPTED)

ACTIVE_SHAPE: Final = """(
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
) IS TRUE"""
"""IS TRUE around the whole: a CHECK passes on NULL, and a NULL has to be judged here (SHAPE-2)."""


class Shape(Protocol):
    """The columns that the rule reads."""

    @property
    def run_type(self) -> str | None: ...
    @property
    def conversation_id(self) -> str | None: ...
    @property
    def scope_conversation_id(self) -> str | None: ...
    @property
    def created_by_run_id(self) -> str | None: ...
    @property
    def subagent_relation_id(self) -> str | None: ...


def may_be_active(run: Shape) -> bool:
    """Whether a run of this shape may have an active status."""
    if run.conversation_id is None or run.scope_conversation_id is None:
        return False
    own_scope = run.scope_conversation_id == run.conversation_id
    created, related = run.created_by_run_id is not None, run.subagent_relation_id is not None
    match run.run_type:
        case "chat":
            return own_scope and not created and not related
        case "resume":
            return own_scope and created and not related
        case "subagent":
            return created and related
        case _:
            return False
