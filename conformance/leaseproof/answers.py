"""What operations answer. Owns the shapes of answers, refusals and faults; must not touch a system or a database.

A refusal is a returned value: the operation looked at the run and said no. A fault is raised: the operation could
not say. An adapter translates its system's own errors into these; any other exception that leaves an operation is
taken as a defect of the system (`unexpected_error`), unless its SQLSTATE tells of trouble in the infrastructure.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

Change = tuple[str, str]
"""(status before, status after) of one run in the transaction that answers."""


@dataclass(frozen=True)
class Refused:
    """Nothing was changed, and the caller is told why (`reason`: a short word of the system's own)."""

    reason: str


@dataclass(frozen=True)
class Claimed:
    """The caller owns the run by `owner_token`; `attempt_no` is None where no history is kept."""

    owner_token: str
    attempt_no: int | None = None


@dataclass(frozen=True)
class Renewed:
    """The lease is longer; `cancel_requested` tells the owner to stop (CANCEL-5)."""

    cancel_requested: bool


@dataclass(frozen=True)
class Ended:
    """The operation moved the run to `status`; `illegal` where it did so because of the run's shape (SHAPE-6)."""

    status: str
    illegal: bool = False


@dataclass(frozen=True)
class Swept:
    """What reconcile did: run id to (before, after), and the ids that it ended for their shape (SHAPE-6)."""

    runs: Mapping[str, Change] = field(default_factory=dict)
    ended_illegal: frozenset[str] = frozenset()


@dataclass(frozen=True)
class CancelAnswer:
    """What a cancel did (CANCEL-3) and whose owners are to be signalled after the commit (LOCK-5), in its order."""

    to_signal: tuple[str, ...] = ()
    runs: Mapping[str, Change] = field(default_factory=dict)
    ended_illegal: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Created:
    """A run was created, pending."""

    run_id: str


@dataclass(frozen=True)
class AttemptsRead:
    """The system's own reading of a run's history; `known` is False for "unknown (legacy)" (ATTEMPT-10)."""

    known: bool
    numbers: tuple[int, ...] = ()


@dataclass(frozen=True)
class Purged:
    """How many rows a purge removed (ATTEMPT-18)."""

    runs: int
    attempts: int


class Fault(Exception):
    """An operation could not answer. `sqlstate` where the database gave one."""

    def __init__(self, message: str, *, sqlstate: str | None = None) -> None:
        super().__init__(message)
        self.sqlstate = sqlstate


class IllegalShape(Fault):
    """The run's shape is illegal, and the operation would have had to keep it active (SHAPE-5)."""


class TimedOut(Fault):
    """The operation waited longer than its statement or lock time-out (LOCK-7)."""


class Deadlocked(Fault):
    """PostgreSQL chose the operation as a deadlock's victim (40P01)."""


class Unavailable(Fault):
    """The database or the connection was lost: trouble of the infrastructure, never a verdict on the system."""


class NotPromised(Fault):
    """The adapter does not offer this operation; a claim that needs it is not tried."""
