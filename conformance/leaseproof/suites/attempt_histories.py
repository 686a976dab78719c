"""Random histories of three runs: Hypothesis draws the steps, and after each the database is compared with the model.

Owns the drawing, the steps and the comparison; which claim a step is about, the model says. A history judges one
claim: after a step that is about another one it takes over what the database says. A broken history is shortened
before it is told.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any, Final, NoReturn

from anyio import from_thread, to_thread
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from leaseproof.capabilities import Cap
from leaseproof.checks import Refuted
from leaseproof.servers.cluster import Cluster
from leaseproof.suites.attempt_model import UNJUDGED, Row, State, declared_otherwise, explained, row_for, swept
from leaseproof.system import Operations, System
from leaseproof.world.facts import TERMINAL, Run
from leaseproof.world.observe import Snapshot
from leaseproof.world.world import World

HISTORIES: Final = 4
STEPS: Final = 16

LAWFUL: Final = ("pending", "running", "cancel_requested", "pending, attempt left open", "running, no lease")
ODD: Final = ("illegal pending", "illegal running", "illegal running, no lease", "legacy running", "completed")

ON_ONE_RUN: Final = ("mark_running", "renew_lease", "release_lease_for_retry", "set_terminal_status")
EVERY: Final = (*ON_ONE_RUN, "expire", "reconcile_expired_leases", "request_cancel_execution_tree")
NEEDS: Final = {
    "release_lease_for_retry": Cap.retry_release,
    "reconcile_expired_leases": Cap.reconcile,
    "request_cancel_execution_tree": Cap.execution_tree_cancel,
    "cancel_requested": Cap.execution_tree_cancel,
    "illegal pending": Cap.run_shape,
    "illegal running": Cap.run_shape,
    "illegal running, no lease": Cap.run_shape,
}
"""The steps and the runs that a history has only where the system promises this."""

FOCUS: Final[Mapping[str, tuple[str, ...]]] = {
    "ATTEMPT-1": ("mark_running", "mark_running", "expire"),
    "ATTEMPT-2": ("mark_running", "mark_running", "expire"),
    "ATTEMPT-3": ("mark_running",),
    "ATTEMPT-4": ("renew_lease", "renew_lease", "mark_running"),
    "ATTEMPT-5": ("release_lease_for_retry", "mark_running"),
    "ATTEMPT-6": ("set_terminal_status", "mark_running"),
    "ATTEMPT-7": ("reconcile_expired_leases", "expire", "mark_running"),
    "ATTEMPT-8": ("mark_running", "expire"),
    "ATTEMPT-16": ("mark_running", "expire"),
}
"""The steps that the histories of a claim have more of."""


@dataclass(frozen=True)
class Step:
    """One step, on one of the three runs where it is about one.

    lease: how long a renewal's is, as a multiple of the system's own. keep: committed, not rolled back.
    """

    operation: str
    run: int
    token: str
    status: str
    lease: float
    keep: bool

    def __str__(self) -> str:
        what = self.operation
        if self.operation != "reconcile_expired_leases":
            what += f" of run {self.run}"
        if self.operation in ON_ONE_RUN:
            what += f" by the {self.token} token"
        if self.operation == "set_terminal_status":
            what += f" as {self.status}"
        return what if self.keep or self.operation == "expire" else f"{what}, rolled back"


def promised(system: System, names: tuple[str, ...]) -> tuple[str, ...]:
    """Those of the steps, or of the runs, that the system's promises allow."""
    return tuple(name for name in names if name not in NEEDS or NEEDS[name] in system.capabilities)


def steps_for(judged: str, system: System) -> st.SearchStrategy[list[Step]]:
    """Steps of all kinds that the system promises, more of them of the kinds that the claim is about."""
    step = st.builds(
        Step,
        operation=st.sampled_from(promised(system, EVERY + 4 * FOCUS[judged])),
        run=st.integers(0, 2),
        token=st.sampled_from(["current", "new", "current", "former"]),
        status=st.sampled_from(sorted(TERMINAL)),
        lease=st.sampled_from([2.0, 0.1]),
        keep=st.sampled_from([True, True, True, True, False]),
    )
    return st.lists(step, min_size=STEPS, max_size=STEPS)


class History:
    """A database of its own, three runs in it, and the model of them."""

    def __init__(self, world: World, judged: str) -> None:
        self.world = world
        self.judged = judged
        self.worker = world.actor("worker")
        self.told: list[str] = []
        self._runs: list[Run] = []
        self._illegal: set[str] = set()
        self._aside: dict[str, Any] = {}
        self._tokens = count(1)
        self._seen: Snapshot
        self._states: dict[str, State]

    async def plant(self, root: str, child: str, other: str) -> None:
        """A run, a subagent of it where the system has trees, and another, which may be an illegal or a legacy one."""
        has_trees = self.world.promises(Cap.execution_tree_cancel)
        await self._plant(root, None)
        await self._plant(child, self._runs[0] if has_trees else None)
        await self._plant(other, None)
        self.told.append(f"run 0 {root}; run 1{' below it' if has_trees else ''} {child}; run 2 {other}")
        await self._look()
        self._aside = {run_id: self._states[run_id].attempts for run_id in self._unexplained()}

    async def _plant(self, kind: str, creator: Run | None) -> None:
        world, status = self.world, kind.partition(",")[0]
        unleased: dict[str, Any] = {"lease_expires_at": None} if kind.endswith("no lease") else {}
        if status == "legacy running":
            run = await world.run("running", owner_token=None, lease_expires_at=None, attempt=False)
        elif status.startswith("illegal "):
            lawless = {"scope_conversation_id": None, **unleased}
            run = await world.plant.illegal_run(status.removeprefix("illegal "), **lawless)
            self._illegal.add(run.id)
        else:
            run = await world.run(status, creator=creator, **unleased)
        if kind.endswith("left open"):
            await world.plant.attempt(run, owner_token=f"{run.id}-gone", started_at=await world.plant.now())
        self._runs.append(run)

    async def take(self, step: Step) -> None:
        """Take the step, look, and judge what is this check's claim."""
        self.told.append(str(step))
        run = self._runs[step.run]
        if step.operation == "expire":
            if run.id not in self._illegal:  # an illegal row can't be written, not even to age it
                await self.world.age(run)
            await self._look()
            return
        whose, row, wanted, token = self._expected(step, self._states[run.id])
        before, keep = self._seen, step.keep or not self.world.promises(Cap.caller_transaction)
        answer: Any = None
        try:
            answer = await self._call(step, run.id, token, keep)
        except Refuted as refusal:
            if whose == self.judged:
                self._break(refusal.because, refusal.detail)
        unchanged = self._states
        await self._look()
        self._judge_history(before)
        if whose == self.judged:
            self._judge(row, answer, wanted if keep else unchanged)
            if whose == "ATTEMPT-4":
                self._judge_leases(before)

    def _expected(self, step: Step, state: State) -> tuple[str, Row | None, Mapping[str, State], str]:
        """Whose claim the step is, the row of the table, the states after it, and the token to present."""
        if step.operation == "request_cancel_execution_tree":
            return UNJUDGED, None, self._states, ""
        if step.operation == "reconcile_expired_leases":
            after = {run_id: swept(each) for run_id, each in self._states.items()}
            lawful = all(each.lawful or after[run_id] == each for run_id, each in self._states.items())
            return ("ATTEMPT-7" if lawful else UNJUDGED), None, after, ""
        token = self._token(step.token, state)
        row = row_for(step.operation, state, token)
        own_way = declared_otherwise(self.world.system.policy, step.operation, state, step.status)
        after = {**self._states, state.run_id: row.then(state, token, step.status)}
        return (UNJUDGED if own_way else row.claim), row, after, token

    def _token(self, kind: str, state: State) -> str:
        if kind == "current" and state.token is not None:
            return state.token
        former = [token for _, token, outcome in state.attempts if outcome is not None and token is not None]
        return former[-1] if kind == "former" and former else f"token-{next(self._tokens)}"

    async def _call(self, step: Step, run_id: str, token: str, keep: bool) -> Any:
        """The answer, a fault as a value; in a transaction that is rolled back unless `keep`."""
        call = partial(self._invoke, step, run_id, token)
        if keep:
            return await self.worker.outcome(call)
        answer = None
        async with self.worker.transaction() as transaction:
            answer = await transaction.outcome(call)
            transaction.rollback()
        return answer

    async def _invoke(self, step: Step, run_id: str, token: str, tx: Operations) -> Any:
        match step.operation:
            case "mark_running":
                return await tx.mark_running(run_id, owner_token=token, worker_id="worker", lease=self.worker.lease)
            case "renew_lease":
                return await tx.renew_lease(run_id, owner_token=token, lease=self.worker.lease * step.lease)
            case "release_lease_for_retry":
                return await tx.release_lease_for_retry(run_id, owner_token=token)
            case "set_terminal_status":
                return await tx.set_terminal_status(run_id, owner_token=token, status=step.status)
            case "reconcile_expired_leases":
                return await tx.reconcile_expired_leases()
            case _:
                return await tx.request_cancel_execution_tree(run_id)

    async def _look(self) -> None:
        """Read the database, and take it over."""
        self._seen, now = await self.world.snapshot(), await self.world.plant.now()
        self._states = {
            run.id: State.of(run, self._seen.attempts_of(run.id), now, lawful=run.id not in self._illegal)
            for run in self._seen.runs.values()
        }

    def _judge(self, row: Row | None, answer: Any, wanted: Mapping[str, State]) -> None:
        """The answer is of the row's kind, and every run is as the model has it."""
        if row is not None and not isinstance(answer, row.answer):
            self._break("other_answer", f"answered {answer!r}, not {row.answer.__name__}")
        for run_id, state in wanted.items():
            if self._states[run_id] != state:
                self._break("other_state", f"{self._states[run_id]}, not {state}")

    def _judge_leases(self, before: Snapshot) -> None:
        """No renewal, whoever asked for it, made a lease shorter (ATTEMPT-4)."""
        for run_id, run in self._seen.runs.items():
            earlier, later = before.runs[run_id].lease_expires_at, run.lease_expires_at
            if earlier is not None and (later is None or later < earlier):
                self._break("shortened", f"the lease of {run_id} ended {earlier}, and now {later}")

    def _judge_history(self, before: Snapshot) -> None:
        """ATTEMPT-8 and 16, whichever step it was. What was planted unexplained may stay so."""
        if self.judged == "ATTEMPT-8":
            for key, attempt in before.attempts.items():
                if attempt.finished_at is not None and self._seen.attempts.get(key) != attempt:
                    self._break("history_rewritten", f"{attempt} is now {self._seen.attempts.get(key)}")
        if self.judged == "ATTEMPT-16":
            for run_id in self._unexplained():
                if self._states[run_id].attempts != self._aside.get(run_id):
                    run, last = self._seen.runs[run_id], self._seen.attempts_of(run_id)[-1:]
                    self._break("unexplained", f"{run_id} is {run.status} ({run.error_type}) by {last}")

    def _unexplained(self) -> list[str]:
        """The runs whose attempts don't account for their status."""
        runs, policy = self._seen.runs.values(), self.world.system.policy
        return [run.id for run in runs if not explained(run, self._seen.attempts_of(run.id), policy)]

    def _break(self, because: str, what: str) -> NoReturn:
        """The history is broken; what went wrong stands behind the steps that led there."""
        raise Refuted(because, f"{what}; after: {'; '.join(self.told)}")


class Leave(BaseException):
    """Leaves Hypothesis at once, since the harness failed."""


@dataclass(frozen=True)
class Broken:
    """A history that broke the claim: what was planted, the steps up to the one that did it, and what that was."""

    kinds: tuple[str, str, str]
    steps: list[Step]
    refusal: Refuted


class Exploration:
    """Random histories that judge one claim of one system."""

    def __init__(self, system: System, cluster: Cluster, judged: str) -> None:
        self._system = system
        self._cluster = cluster
        self._judged = judged
        self._broken: Broken | None = None

    async def explore(self) -> None:
        """Refute the claim with the first broken history, shortened."""
        kinds = [promised(self._system, names) for names in (LAWFUL, LAWFUL, LAWFUL + ODD)]
        drawn = given(st.tuples(*map(st.sampled_from, kinds)), steps_for(self._judged, self._system))
        bounded = settings(max_examples=HISTORIES, phases=[Phase.generate], report_multiple_bugs=False)
        try:
            await to_thread.run_sync(bounded(drawn(self._one)))
        except Leave as leave:
            raise leave.__cause__ or leave from None
        except Refuted:
            pass  # told below, by fewer steps
        if self._broken is not None:
            raise (await self._shortened(self._broken)).refusal

    def _one(self, kinds: tuple[str, str, str], steps: list[Step]) -> None:
        """One history, from the thread in which Hypothesis runs."""
        try:
            self._broken = from_thread.run(self._play, kinds, steps)
        except Exception as error:
            raise Leave from error
        if self._broken is not None:
            raise self._broken.refusal

    async def _shortened(self, broken: Broken) -> Broken:
        """The history without each step that it takes not to break in the same way; Hypothesis would be slower."""
        for place in reversed(range(len(broken.steps) - 1)):
            again = await self._play(broken.kinds, broken.steps[:place] + broken.steps[place + 1 :])
            if again is not None and again.refusal.because == broken.refusal.because:
                broken = again
        return broken

    async def _play(self, kinds: tuple[str, str, str], steps: list[Step]) -> Broken | None:
        """Plant three runs in a database of their own and take the steps, up to one that breaks the claim."""
        world = await World.open(self._system, self._cluster)
        history = History(world, self._judged)
        try:
            await history.plant(*kinds)
            for step in steps:
                await history.take(step)
        except Refuted as refusal:
            return Broken(kinds, steps[: len(history.told) - 1], refusal)
        finally:
            await world.close()
        return None
