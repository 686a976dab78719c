"""The tables of the current release, as SQLAlchemy maps them: owns the one definition that queries and the mapper use.

Must not create anything: databases are made by the migrations, which also hold what a mapper does not see (triggers,
functions). A test compares the two.
"""

from datetime import datetime
from typing import Annotated, Any, Final, cast

from sqlalchemy import CheckConstraint, Computed, DateTime, ForeignKey, ForeignKeyConstraint, Index, Table, Text, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from agentrun_reference.shape import ACTIVE_SHAPE

Id = Annotated[str, mapped_column(Text(collation="C"))]
"""Ids compare by bytes, so that the order of locks does not follow a server's locale (LOCK-9)."""

PENDING_RUNS: Final = "status = 'pending'"
HELD_RUNS: Final = "status IN ('running', 'cancel_requested')"
ENDED_RUNS: Final = "status IN ('completed', 'failed', 'cancelled', 'interrupted')"

LEASE_ORDER: Final = "coalesce(lease_expires_at, '-infinity'::timestamptz)"
"""When a lease ends; a run without one counts as expired for ever."""

RETENTION_ORDER: Final = "coalesce(finished_at, created_at)"
"""How old a terminal run is; rows from before finished_at was kept count from their creation."""


class Base(DeclarativeBase):
    """Texts are `text`, times carry their zone."""

    type_annotation_map = {str: Text(), datetime: DateTime(timezone=True)}  # noqa: RUF012  # SQLAlchemy's declaration


class Conversation(Base):
    """A user's conversation."""

    __tablename__ = "conversations"

    id: Mapped[Id] = mapped_column(primary_key=True)
    uid: Mapped[Id]


class SubagentRelation(Base):
    """Which conversation a subagent of another one's runs talks in."""

    __tablename__ = "agent_subagent_relations"

    id: Mapped[Id] = mapped_column(primary_key=True)
    parent_conversation_id: Mapped[Id] = mapped_column(ForeignKey("conversations.id"))
    child_conversation_id: Mapped[Id] = mapped_column(ForeignKey("conversations.id"))
    uid: Mapped[Id]
    name: Mapped[str | None]


class AgentRun(Base):
    """The current state of a run. Status and type are text: the constraint judges null and unknown words alike."""

    __tablename__ = "agent_runs"
    __table_args__ = (
        CheckConstraint(ACTIVE_SHAPE, name="agent_runs_active_shape", postgresql_not_valid=True),
        Index("agent_runs_fetch_next", "created_at", "id", postgresql_where=text(PENDING_RUNS)),
        Index("agent_runs_children", "created_by_run_id"),
        Index(
            "agent_runs_leases",
            text(LEASE_ORDER),
            "id",
            postgresql_where=text(HELD_RUNS),
        ),
        Index(
            "agent_runs_retention",
            text(RETENTION_ORDER),
            "id",
            postgresql_where=text(ENDED_RUNS),
        ),
    )

    id: Mapped[Id] = mapped_column(primary_key=True)
    uid: Mapped[Id]
    run_type: Mapped[str | None]
    status: Mapped[str | None]
    conversation_id: Mapped[Id | None] = mapped_column(ForeignKey("conversations.id"))
    scope_conversation_id: Mapped[Id | None] = mapped_column(ForeignKey("conversations.id"))
    created_by_run_id: Mapped[Id | None] = mapped_column(ForeignKey("agent_runs.id"))
    subagent_relation_id: Mapped[Id | None] = mapped_column(ForeignKey("agent_subagent_relations.id"))
    workdir: Mapped[str | None]
    worker_id: Mapped[str | None]
    owner_token: Mapped[str | None]
    lease_expires_at: Mapped[datetime | None]
    heartbeat_at: Mapped[datetime | None]
    retry_count: Mapped[int] = mapped_column(server_default=text("0"))
    created_at: Mapped[datetime] = mapped_column(server_default=text("clock_timestamp()"))
    started_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]
    result: Mapped[Any | None] = mapped_column(JSONB(none_as_null=True))
    error_type: Mapped[str | None]
    error_message: Mapped[str | None]


class AgentRunAttempt(Base):
    """One ownership of a run; open until finished_at and outcome are set, together and for good."""

    __tablename__ = "agent_run_attempts"
    __table_args__ = (
        CheckConstraint("attempt_no >= 1", name="agent_run_attempts_from_one"),
        CheckConstraint(
            """(
    finished_at IS NULL AND outcome IS NULL
    OR finished_at IS NOT NULL
    AND outcome IN ('completed', 'failed', 'cancelled', 'interrupted', 'retry_released', 'lease_expired')
) IS TRUE""",
            name="agent_run_attempts_outcome",
        ),
        ForeignKeyConstraint(
            ["run_id", "previous_attempt_no"],
            ["agent_run_attempts.run_id", "agent_run_attempts.attempt_no"],
            name="agent_run_attempts_contiguous",
        ),
        Index("agent_run_attempts_one_open", "run_id", unique=True, postgresql_where=text("finished_at IS NULL")),
    )

    run_id: Mapped[Id] = mapped_column(ForeignKey("agent_runs.id"), primary_key=True)
    attempt_no: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    previous_attempt_no: Mapped[int | None] = mapped_column(Computed("nullif(attempt_no - 1, 0)", persisted=True))
    owner_token: Mapped[str]
    started_at: Mapped[datetime]
    heartbeat_at: Mapped[datetime | None]
    lease_expires_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]
    outcome: Mapped[str | None]
    error_type: Mapped[str | None]
    error_message: Mapped[str | None]


CONVERSATIONS: Final = cast("Table", Conversation.__table__)
RELATIONS: Final = cast("Table", SubagentRelation.__table__)
RUNS: Final = cast("Table", AgentRun.__table__)
ATTEMPTS: Final = cast("Table", AgentRunAttempt.__table__)
