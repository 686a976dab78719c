"""The history of a run's ownerships: owns every statement on agent_run_attempts; must not decide about runs.

Each statement runs in its run's transaction, with the run's row locked: no attempt is ever locked before its run.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from sqlalchemy import ARRAY, ColumnElement, Insert, Select, Text, Update, any_, bindparam, func, insert, select, update

from agentrun_reference.schema import ATTEMPTS

LEASE_EXPIRED: Final = "lease_expired"
RETRY_RELEASED: Final = "retry_released"


def among(column: ColumnElement[str], ids: Sequence[str]) -> ColumnElement[bool]:
    """`column = ANY (ids)`: one parameter however many ids."""
    return column == any_(bindparam(None, list(ids), type_=ARRAY(Text)))


@dataclass(frozen=True)
class History:
    """What a claim has to know of the attempts before it."""

    next_no: int
    has_open: bool
    token_spent: bool


class Attempts:
    """Builds the statements; the repository runs them, most often together with the write of the run itself."""

    def history(self, run_id: str, owner_token: str) -> Select[int, bool, bool]:
        """The next number, whether an attempt is open, and whether the token had one of its own (ATTEMPT-1, 3)."""
        return select(
            self.next_no(),
            func.coalesce(func.bool_or(ATTEMPTS.c.finished_at.is_(None)), False),
            func.coalesce(func.bool_or(ATTEMPTS.c.owner_token == owner_token), False),
        ).where(ATTEMPTS.c.run_id == run_id)

    def next_no(self) -> ColumnElement[int]:
        """One more than the last attempt of the run; numbers start at 1 (ATTEMPT-11)."""
        return func.coalesce(func.max(ATTEMPTS.c.attempt_no), 0) + 1

    def opening(
        self, run_id: str, attempt_no: int, *, owner_token: str, now: datetime, lease_expires_at: datetime
    ) -> Insert:
        """A new owner's attempt (ATTEMPT-1)."""
        return insert(ATTEMPTS).values(
            run_id=run_id,
            attempt_no=attempt_no,
            owner_token=owner_token,
            started_at=now,
            heartbeat_at=now,
            lease_expires_at=lease_expires_at,
        )

    def renewing(self, run_id: str, *, owner_token: str, now: datetime, lease_expires_at: datetime) -> Update:
        """The owner's open attempt lives as long as its run's lease (ATTEMPT-4)."""
        return (
            update(ATTEMPTS)
            .where(ATTEMPTS.c.run_id == run_id, ATTEMPTS.c.owner_token == owner_token, ATTEMPTS.c.finished_at.is_(None))
            .values(heartbeat_at=now, lease_expires_at=lease_expires_at)
        )

    def closing(
        self,
        run_ids: Sequence[str],
        outcome: str,
        *,
        now: datetime,
        error_type: str | None = None,
        error_message: str | None = None,
    ) -> Update:
        """The open attempts of these runs end; closed ones stay as they are (ATTEMPT-2, 5, 6, 7, 8)."""
        return (
            update(ATTEMPTS)
            .where(among(ATTEMPTS.c.run_id, run_ids), ATTEMPTS.c.finished_at.is_(None))
            .values(finished_at=now, outcome=outcome, error_type=error_type, error_message=error_message)
        )

    def listing(self, run_id: str) -> Select[*tuple[Any, ...]]:
        """All attempts of the run, oldest first."""
        return select(ATTEMPTS).where(ATTEMPTS.c.run_id == run_id).order_by(ATTEMPTS.c.attempt_no)
