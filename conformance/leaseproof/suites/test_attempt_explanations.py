"""ATTEMPT-16: the attempts explain the run, at every step of every history.

What a transition makes of a run is judged elsewhere; here only whether the attempts account for it.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from leaseproof.capabilities import Cap
from leaseproof.checks import Refuted, claim, expect, expect_equal
from leaseproof.suites.attempt_model import explained
from leaseproof.world.actors import Participant
from leaseproof.world.facts import TERMINAL, Run
from leaseproof.world.world import World

HISTORIES: Final[Sequence[Sequence[str]]] = (
    ("cancel",),
    ("claim", "claim again"),
    ("claim", "completed", "cancel", "sweep"),
    ("claim", "failed", "completed"),
    ("claim", "cancelled"),
    ("claim", "interrupted"),
    ("claim", "cancel", "completed"),
    ("claim", "cancel", "failed"),
    ("claim", "cancel", "interrupted"),
    ("claim", "cancel", "release"),
    ("claim", "release", "cancel"),
    ("claim", "release", "claim", "completed"),
    ("claim", "release", "claim", "release", "claim", "failed"),
    ("claim", "expire", "completed", "claim", "interrupted"),
    ("claim", "expire", "sweep"),
    ("claim", "expire", "cancel", "sweep"),
    ("claim", "cancel", "expire", "sweep"),
    ("claim", "release", "claim", "expire", "sweep"),
    ("claim", "expire", "claim", "cancel", "completed"),
)

OUTCOMES: Final = frozenset({*TERMINAL, "retry_released", "lease_expired"})


class Driver:
    """Takes the steps of a history, as one worker after another."""

    def __init__(self, world: World, worker: Participant, run: Run) -> None:
        self._world = world
        self._worker = worker
        self._run = run
        self._claims = 0

    async def take(self, step: str) -> None:
        """One step, by the present owner where it needs one."""
        run_id, token = self._run.id, f"{self._run.id}-{self._claims}"
        match step:
            case "claim":
                self._claims += 1
                await self._worker.mark_running(run_id, owner_token=f"{run_id}-{self._claims}")
            case "claim again":
                await self._worker.mark_running(run_id, owner_token=token)
            case "release":
                await self._worker.release_lease_for_retry(run_id, owner_token=token)
            case "expire":
                await self._world.age(run_id)
            case "sweep":
                await self._worker.reconcile_expired_leases()
            case "cancel":
                await self._worker.request_cancel_execution_tree(run_id)
            case status:
                error = "tool_error" if status == "failed" else None
                await self._worker.set_terminal_status(run_id, owner_token=token, status=status, error_type=error)


async def expect_explained(world: World, run: Run, after: str) -> None:
    """The run's attempts account for its status."""
    seen = await world.snapshot()
    row, attempts = seen.runs[run.id], seen.attempts_of(run.id)
    what = f"{run.id} is {row.status} ({row.error_type}) by {[a.outcome for a in attempts]} after {after}"
    expect(explained(row, attempts, world.system.policy), "unexplained", what)


@claim("ATTEMPT-16", slow=True)
async def test_last_attempt_explains_how_the_run_stands(world: World) -> None:
    """Each history is explained at every step; together they meet every outcome that there is."""
    worker = world.actor("worker")
    for steps in HISTORIES:
        run = await world.run("pending")
        driver = Driver(world, worker, run)
        for place, step in enumerate(steps, start=1):
            await driver.take(step)
            await expect_explained(world, run, ", ".join(steps[:place]))
    met = {attempt.outcome for attempt in (await world.snapshot()).attempts.values()}
    expect_equal(met - {None}, OUTCOMES, "outcome_never_met", "outcomes")


@claim("ATTEMPT-16")
async def test_retries_alone_end_no_run(world: World) -> None:
    """A run that was released more often than the worker would is still explained: pending, or by declared policy."""
    worker, run = world.actor("worker"), await world.run("pending")
    driver = Driver(world, worker, run)
    for number in range(world.system.policy.max_retries + 1):
        await driver.take("claim")
        await driver.take("release")
        await expect_explained(world, run, f"{number + 1} releases")
    seen = await world.snapshot()
    outcomes = {attempt.outcome for attempt in seen.attempts_of(run.id)}
    expect_equal(outcomes, {"retry_released"}, "unexplained", "outcomes")


@claim("ATTEMPT-16")
async def test_ended_illegal_run_is_explained_too(world: World) -> None:
    """Whatever an operation makes of an illegal active run, its attempts account for what it is afterwards."""
    worker = world.actor("worker")

    async def meet(run: Run, operation: str) -> None:
        token = f"{run.id}-owner"
        calls = {
            "claim": lambda tx: tx.mark_running(run.id, owner_token="new", worker_id="worker", lease=worker.lease),
            "release": lambda tx: tx.release_lease_for_retry(run.id, owner_token=token),
            "end": lambda tx: tx.set_terminal_status(run.id, owner_token=token, status="completed"),
            "cancel": lambda tx: tx.request_cancel_execution_tree(run.id),
            "sweep": lambda tx: tx.reconcile_expired_leases(),
        }
        with suppress(Refuted):  # whether the operation copes is for SHAPE to say
            await worker.outcome(calls[operation])
        await expect_explained(world, run, f"{operation} of an illegal {run.status} run")

    shaped = world.promises(Cap.run_shape)
    for operation in ("claim", "cancel") if shaped else ():
        await meet(await world.plant.illegal_run("pending"), operation)
    for status in ("running", "cancel_requested") if shaped else ():
        for operation in ("release", "end", "cancel"):
            await meet(await world.plant.illegal_run(status), operation)
        for operation in ("claim", "cancel", "sweep"):
            unleased = {"scope_conversation_id": None, "lease_expires_at": None}
            await meet(await world.plant.illegal_run(status, **unleased), operation)
    lawful = await world.run("running")
    await worker.set_terminal_status(lawful.id, owner_token=f"{lawful.id}-owner", status="completed")
    await expect_explained(world, lawful, "its end")
    expect_equal((await world.snapshot()).runs[lawful.id].status, "completed", "not_ended", "a lawful run")
