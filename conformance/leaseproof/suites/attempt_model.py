"""What a run and its attempts are, and what each transition makes of them: the specification's table, in pure Python.

Owns the expected next state, and what explains a run; must not touch a database or a system. Each row of the table
names the claim that breaks where a system does otherwise. Rows about illegal shapes and about the cancel of a tree
belong to other suites, and are not predicted here.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from leaseproof.system import Claimed, Ended, Policy, Refused, Renewed
from leaseproof.world.facts import ACTIVE, TERMINAL, Attempt, Run

HELD: Final = frozenset({"running", "cancel_requested"})
SHAPE_RULES: Final = "invalid_runtime_scope"
EXPLAINED_BY: Final[Mapping[str, frozenset[str]]] = {
    **{ended: frozenset({ended}) for ended in TERMINAL},
    "retry_released": frozenset({"pending", "cancelled"}),
    "lease_expired": frozenset({"failed", "cancelled"}),
}
"""Last outcome to the statuses that it explains, where no illegal shape and no declared policy are in play."""


def explained(run: Run, attempts: Sequence[Attempt], policy: Policy) -> bool:
    """Whether the attempts account for the run's status (ATTEMPT-16). A run of the old days has to be left out."""
    ended_for_its_shape = run.status == "failed" and run.error_type == SHAPE_RULES
    if not attempts:
        return run.status in {"pending", "cancelled"} or ended_for_its_shape
    if any(attempt.outcome not in {"retry_released", "lease_expired"} for attempt in attempts[:-1]):
        return False
    last = attempts[-1].outcome
    if last is None:
        return run.status in HELD
    if last == "lease_expired" and run.status == "failed":
        return ended_for_its_shape or run.error_type == "worker_lease_expired"
    if last == "retry_released" and run.status == "failed":
        return ended_for_its_shape or policy.retry_exhaustion_in_repository
    return run.status in EXPLAINED_BY[last]


@dataclass(frozen=True)
class State:
    """A run with its history, as far as the table speaks of it.

    attempts: (number, token, outcome) of each, oldest first; outcome None while it is open.
    in_step:  an attempt is open if and only if the run is active and owned, by the same token with the same lease.
    """

    run_id: str
    status: str | None
    token: str | None
    live: bool
    retries: int | None
    attempts: tuple[tuple[int, str | None, str | None], ...]
    in_step: bool
    lawful: bool = True

    @classmethod
    def of(cls, run: Run, attempts: Sequence[Attempt], now: datetime, *, lawful: bool) -> "State":
        """The state that these rows are, `now` by the database's clock."""
        opened = [(a.owner_token, a.lease_expires_at) for a in attempts if a.finished_at is None]
        owned = [(run.owner_token, run.lease_expires_at)] if run.status in HELD and run.owner_token else []
        return cls(
            run.id,
            run.status,
            run.owner_token,
            run.lease_expires_at is not None and run.lease_expires_at > now,
            run.retry_count,
            tuple((a.attempt_no, a.owner_token, a.outcome) for a in attempts),
            opened == owned,
            lawful,
        )

    @property
    def is_open(self) -> bool:
        """Whether the last attempt has not ended."""
        return bool(self.attempts) and self.attempts[-1][2] is None

    def owned_by(self, token: str) -> bool:
        """Whether this is the token of the run's live owner."""
        return self.status in HELD and self.token == token and self.live

    def spent(self, token: str) -> bool:
        """Whether the token had its attempt of this run, or its lease."""
        return token == self.token or token in {owner for _, owner, _ in self.attempts}

    def closed(self, outcome: str) -> "State":
        """The open attempt ends."""
        if not self.is_open:
            return self
        number, owner, _ = self.attempts[-1]
        return replace(self, attempts=(*self.attempts[:-1], (number, owner, outcome)))

    def taken(self, token: str) -> "State":
        """A new owner, and its attempt; one that was left open ends first."""
        attempts = self.closed("lease_expired").attempts
        opened = (attempts[-1][0] + 1 if attempts else 1, token, None)
        return replace(self, status="running", token=token, live=True, attempts=(*attempts, opened), in_step=True)

    def left(self, status: str, outcome: str, *, retries: int = 0) -> "State":
        """Nobody owns the run any more."""
        counted = None if self.retries is None else self.retries + retries
        closed = self.closed(outcome)
        return replace(closed, status=status, token=None, live=False, retries=counted, in_step=True)


@dataclass(frozen=True)
class Row:
    """A row of the table. `then` gives the next state, for the token and the status that the caller named."""

    claim: str
    when: Callable[[State, str], bool]
    answer: type[object]
    then: Callable[[State, str, str], State] = lambda run, _token, _status: run


def refused(claim: str, when: Callable[[State, str], bool] = lambda _run, _token: True) -> Row:
    """Nothing changes, and the caller is told."""
    return Row(claim, when, Refused)


def owner_of(*statuses: str) -> Callable[[State, str], bool]:
    """The token is the live owner's of a run in one of these statuses."""
    return lambda run, token: run.status in statuses and run.owned_by(token)


UNJUDGED: Final = ""
"""The claim of a step that other suites judge: one on an illegal shape, or the cancel of a tree."""

ILLEGAL: Final = Row(UNJUDGED, lambda run, _: not run.lawful and run.status in ACTIVE, object)

TRANSITIONS: Final[Mapping[str, tuple[Row, ...]]] = {
    "mark_running": (
        ILLEGAL,
        Row("ATTEMPT-3", owner_of("running"), Claimed),
        refused("ATTEMPT-1", lambda run, _: run.status == "running" and run.live),
        refused("ATTEMPT-1", lambda run, _: run.status not in {"pending", "running"}),
        refused("ATTEMPT-3", lambda run, token: run.spent(token)),
        Row("ATTEMPT-2", lambda run, _: run.is_open, Claimed, lambda run, token, _: run.taken(token)),
        Row("ATTEMPT-1", lambda _run, _token: True, Claimed, lambda run, token, _: run.taken(token)),
    ),
    "renew_lease": (
        ILLEGAL,
        Row("ATTEMPT-4", owner_of("running", "cancel_requested"), Renewed),
        refused("ATTEMPT-4"),
    ),
    "release_lease_for_retry": (
        ILLEGAL,
        Row("ATTEMPT-5", owner_of("cancel_requested"), Ended, lambda run, *_: run.left("cancelled", "cancelled")),
        Row("ATTEMPT-5", owner_of("running"), Ended, lambda run, *_: run.left("pending", "retry_released", retries=1)),
        refused("ATTEMPT-5"),
    ),
    "set_terminal_status": (
        ILLEGAL,
        Row("ATTEMPT-6", owner_of("cancel_requested"), Ended, lambda run, *_: run.left("cancelled", "cancelled")),
        Row("ATTEMPT-6", owner_of("running"), Ended, lambda run, _, status: run.left(status, status)),
        refused("ATTEMPT-6"),
    ),
}
"""Of each operation on one run, the rows in the order in which they are tried: the first whose `when` holds applies."""


def row_for(operation: str, run: State, token: str) -> Row:
    """The row of the table that applies."""
    return next(row for row in TRANSITIONS[operation] if row.when(run, token))


def swept(run: State) -> State:
    """What reconcile makes of a run (ATTEMPT-7)."""
    if run.status not in HELD or run.live:
        return run
    return run.left("failed" if run.status == "running" else "cancelled", "lease_expired")


def declared_otherwise(policy: Policy, operation: str, run: State, status: str) -> bool:
    """Whether the system has declared a policy of its own for this step, so that the table does not hold."""
    if operation == "set_terminal_status":
        return policy.completion_beats_cancel and (run.status, status) == ("cancel_requested", "completed")
    spent = (run.retries or 0) >= policy.max_retries
    return operation == "release_lease_for_retry" and policy.retry_exhaustion_in_repository and spent
