"""ATTEMPT-16: the attempts explain the run: histories as data, each with the end that its last attempt accounts for."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from leaseproof.checks import Refuted, claim, expect, expect_equal
from leaseproof.suites.attempt_model import explained
from leaseproof.world.actors import Participant
from leaseproof.world.facts import Run
from leaseproof.world.world import World


@dataclass(frozen=True)
class Told:
    """A history of one run, and how it ends: its status, its error type, and the outcomes of its attempts."""

    steps: Sequence[str]
    status: str
    outcomes: Sequence[str | None]
    error_type: str | None = None


HISTORIES = (
    Told((), "pending", ()),
    Told(("cancel",), "cancelled", ()),
    Told(("claim",), "running", (None,)),
    Told(("claim", "claim again"), "running", (None,)),
    Told(("claim", "cancel"), "cancel_requested", (None,)),
    Told(("claim", "completed"), "completed", ("completed",)),
    Told(("claim", "failed"), "failed", ("failed",), "tool_error"),
    Told(("claim", "cancelled"), "cancelled", ("cancelled",)),
    Told(("claim", "interrupted"), "interrupted", ("interrupted",)),
    Told(("claim", "cancel", "completed"), "cancelled", ("cancelled",)),
    Told(("claim", "cancel", "failed"), "cancelled", ("cancelled",), "tool_error"),
    Told(("claim", "release"), "pending", ("retry_released",)),
    Told(("claim", "release", "cancel"), "cancelled", ("retry_released",)),
    Told(("claim", "cancel", "release"), "cancelled", ("cancelled",)),
    Told(("claim", "release", "claim", "completed"), "completed", ("retry_released", "completed")),
    Told(("claim", "expire"), "running", (None,)),
    Told(("claim", "expire", "claim"), "running", ("lease_expired", None)),
    Told(("claim", "expire", "claim", "interrupted"), "interrupted", ("lease_expired", "interrupted")),
    Told(("claim", "expire", "sweep"), "failed", ("lease_expired",), "worker_lease_expired"),
    Told(("claim", "cancel", "expire", "sweep"), "cancelled", ("lease_expired",)),
    Told(
        ("claim", "release", "claim", "expire", "sweep"),
        "failed",
        ("retry_released", "lease_expired"),
        "worker_lease_expired",
    ),
    Told(("claim", "completed", "cancel", "sweep"), "completed", ("completed",)),
)


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


@claim("ATTEMPT-16")
async def test_last_attempt_explains_how_the_run_stands(world: World) -> None:
    """Each history, explained at every step, ends in the status, the error and the outcomes that are written here."""
    worker = world.actor("worker")
    beats = world.system.policy.completion_beats_cancel
    for told in HISTORIES:
        run = await world.run("pending")
        driver = Driver(world, worker, run)
        for place, step in enumerate(told.steps, start=1):
            await driver.take(step)
            await expect_explained(world, run, ", ".join(told.steps[:place]))
        if beats and told.steps[-2:] == ("cancel", "completed"):
            continue
        seen = await world.snapshot()
        row, attempts = seen.runs[run.id], seen.attempts_of(run.id)
        ended = (row.status, row.error_type, tuple(attempt.outcome for attempt in attempts))
        expect_equal(ended, (told.status, told.error_type, told.outcomes), "other_end", ", ".join(told.steps))


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
    expect_equal(outcomes, {"retry_released"}, "other_end", "outcomes")


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

    for operation in ("claim", "cancel"):
        await meet(await world.plant.illegal_run("pending"), operation)
    for status in ("running", "cancel_requested"):
        for operation in ("release", "end", "cancel"):
            await meet(await world.plant.illegal_run(status), operation)
        for operation in ("claim", "cancel", "sweep"):
            unleased = {"scope_conversation_id": None, "lease_expires_at": None}
            await meet(await world.plant.illegal_run(status, **unleased), operation)
    lawful = await world.run("running")
    await worker.set_terminal_status(lawful.id, owner_token=f"{lawful.id}-owner", status="completed")
    await expect_explained(world, lawful, "its end")
    expect_equal((await world.snapshot()).runs[lawful.id].status, "completed", "other_end", "a lawful run")
