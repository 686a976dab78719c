"""Rows in the kit's terms. Owns the fields that an adapter's views give; must not touch a connection."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final

ACTIVE: Final = frozenset({"pending", "running", "cancel_requested"})
TERMINAL: Final = frozenset({"completed", "failed", "cancelled", "interrupted"})
STATUSES: Final = ("pending", "running", "cancel_requested", "completed", "failed", "cancelled", "interrupted")
RUN_TYPES: Final = ("chat", "resume", "subagent")


@dataclass(frozen=True)
class Run:
    """A row of the view `runs`; None where the system does not keep the field."""

    id: str
    uid: str | None
    run_type: str | None
    status: str | None
    conversation_id: str | None
    scope_conversation_id: str | None
    created_by_run_id: str | None
    subagent_relation_id: str | None
    workdir: str | None
    worker_id: str | None
    owner_token: str | None
    lease_expires_at: datetime | None
    heartbeat_at: datetime | None
    retry_count: int | None
    created_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None
    result: object
    error_type: str | None
    error_message: str | None


@dataclass(frozen=True)
class Attempt:
    """A row of the view `attempts`; open while `finished_at` is None."""

    run_id: str
    attempt_no: int
    owner_token: str | None
    started_at: datetime | None
    heartbeat_at: datetime | None
    lease_expires_at: datetime | None
    finished_at: datetime | None
    outcome: str | None
    error_type: str | None
    error_message: str | None


RUN_FIELDS: Final = tuple(Run.__dataclass_fields__)
ATTEMPT_FIELDS: Final = tuple(Attempt.__dataclass_fields__)
CONVERSATION_FIELDS: Final = ("id", "uid")
RELATION_FIELDS: Final = ("id", "parent_conversation_id", "child_conversation_id", "uid", "name")
