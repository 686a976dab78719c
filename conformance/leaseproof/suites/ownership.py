"""What the checks of ATTEMPT share: how an ownership reads, and what a refusal is. Must not call operations itself."""

from collections.abc import Awaitable, Mapping
from datetime import timedelta
from typing import Any, Final

from leaseproof.capabilities import Cap
from leaseproof.checks import expect, expect_equal
from leaseproof.system import Refused
from leaseproof.world.facts import Attempt, Run
from leaseproof.world.observe import Snapshot
from leaseproof.world.sessions import Session
from leaseproof.world.world import World

LONG: Final = timedelta(hours=1)
SHORT: Final = timedelta(seconds=1)


def held_statuses(world: World) -> tuple[str, ...]:
    """The statuses in which a run of this system has a holder."""
    return ("running", "cancel_requested") if world.promises(Cap.execution_tree_cancel) else ("running",)


def token_of(run: Run) -> str:
    """The token of a planted run's holder."""
    return f"{run.id}-owner"


def numbers(seen: Snapshot, run: Run) -> list[int]:
    """The numbers of the run's attempts, in their order."""
    return [attempt.attempt_no for attempt in seen.attempts_of(run.id)]


def outcomes(seen: Snapshot, run: Run) -> list[str | None]:
    """The outcomes of the run's attempts; None for an open one."""
    return [attempt.outcome for attempt in seen.attempts_of(run.id)]


def expect_owned(seen: Snapshot, run: Run, token: str, number: int) -> Attempt:
    """The run is running by this token, and its last attempt is this one, open, by the same token."""
    row = seen.runs[run.id]
    expect_equal((row.status, row.owner_token), ("running", token), "not_owned", f"{run.id} (status, token)")
    expect(bool(seen.attempts_of(run.id)), "unrecorded", f"{run.id} is owned by {token}, and has no attempt")
    last = seen.attempts_of(run.id)[-1]
    expect_equal(last.attempt_no, number, "wrong_number", f"last attempt of {run.id}")
    expect_equal((last.owner_token, last.finished_at), (token, None), "not_open", f"{run.id} no. {number}")
    return last


async def expect_refused(world: World, call: Awaitable[Any], because: str, what: str) -> None:
    """The call is refused and changes no row of the system's tables, byte for byte."""
    before = await world.digest()
    answer = await call
    expect(isinstance(answer, Refused), because, f"{what} was answered {answer!r}")
    await expect_unchanged(world, before, "refusal_changed_rows", what)


async def expect_unchanged(world: World, before: Mapping[str, list[str]], because: str, what: str) -> None:
    """The rows of all the system's tables are as they were, byte for byte."""
    after = await world.digest()
    changed = {table: sorted({*rows} ^ {*after[table]}) for table, rows in before.items() if rows != after[table]}
    expect(not changed, because, f"{what}; rows that are new or gone: {changed}")


async def past(world: World, run: Run, number: int, outcome: str, *, within: Session | None = None) -> Attempt:
    """A closed attempt of the run's past, planted; `within` the transaction of a session where given."""
    token = f"{run.id}-past-{number}"
    when = run.created_at
    return await world.plant.attempt(
        run,
        within=within,
        attempt_no=number,
        owner_token=token,
        started_at=when,
        finished_at=when,
        outcome=outcome,
    )
