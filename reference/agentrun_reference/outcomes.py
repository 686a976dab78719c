"""What the operations on a run answer: owns refusals, outcomes and typed errors; must not touch a connection.

A refusal is a value: nothing was changed, and the caller is told why. An error is raised.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

Change = tuple[str | None, str | None]
"""A run's status before and after the transaction."""


@dataclass(frozen=True)
class Refused:
    """Nothing was changed, for this reason: a word."""

    reason: str


@dataclass(frozen=True)
class Claimed:
    """The caller owns the run; no number for a run that is owned since before attempts were kept."""

    owner_token: str
    attempt_no: int | None
    lease_expires_at: datetime


@dataclass(frozen=True)
class Renewed:
    """The lease ends then; `cancel_requested` asks the owner to stop (CANCEL-5)."""

    lease_expires_at: datetime
    cancel_requested: bool


@dataclass(frozen=True)
class Ended:
    """The run is in this status now; `illegal` where its shape left no other way (SHAPE-6)."""

    status: str
    illegal: bool = False


@dataclass(frozen=True)
class ReconcileResult:
    """What a sweep did to each run that it took, and which of them it ended for their shape (SHAPE-6)."""

    runs: Mapping[str, Change] = field(default_factory=dict)
    ended_illegal: frozenset[str] = frozenset()


@dataclass(frozen=True)
class CancelResult:
    """What a cancel did to each run of the tree (CANCEL-3), and whom to signal after the commit (LOCK-5), in order."""

    to_signal: tuple[str, ...] = ()
    runs: Mapping[str, Change] = field(default_factory=dict)
    ended_illegal: frozenset[str] = frozenset()


class IllegalRunShape(Exception):
    """The run can't stay active in its shape (SHAPE-5)."""

    def __init__(self, run_id: str, run_type: str | None) -> None:
        super().__init__(
            f"run {run_id} has a shape that no active {run_type} run may have, and can't be renewed; end it, then look "
            "at its conversation, scope, creator and relation"
        )
        self.run_id = run_id


class OperationTimedOut(Exception):
    """The operation's statements took longer, together, than one may (LOCK-7); nothing was written."""

    def __init__(self, statement_timeout: str) -> None:
        super().__init__(f"the time-out of {statement_timeout} passed between two waits; roll back and repeat")


class CreationRefused(Exception):
    """The creation service made no run; `reason` is a word for the check that failed (CREATE-1, 2)."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
