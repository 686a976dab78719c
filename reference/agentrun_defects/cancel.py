"""Defects of CANCEL: facts that a cancel does not write, or not in its transaction, and answers that are not so."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from sqlalchemy import func, select, text

from agentrun_defects._control import defect
from agentrun_reference.attempts import among
from agentrun_reference.outcomes import CancelResult, Change
from agentrun_reference.repository import AgentRunRepository, HeldRun
from agentrun_reference.schema import RUNS
from agentrun_reference.shape import CANCEL_REQUESTED, CANCELLED

READ_BACK: Final = "test_cancel_facts_are_read_back_once_the_transaction_has_committed"
TABLE: Final = "test_cancel_writes_the_facts_of_the_table"
WITHIN: Final = "test_cancel_stays_within_its_tree"
ANSWER: Final = "test_cancel_answers_what_it_did_to_each_run"
AWAITED_ANSWER: Final = "test_cancel_answers_for_a_run_that_changed_while_it_was_awaited"


@defect("commits_by_itself", refutes="CANCEL-1", caught_by=READ_BACK, because="survived_rollback", also=["LOCK-10"])
class CommitsByItself(AgentRunRepository):
    """Commits the cancel before it answers, whatever the caller's transaction comes to."""

    async def request_cancel_execution_tree(self, root_id: str) -> CancelResult:
        result = await super().request_cancel_execution_tree(root_id)
        await self._connection.execute(text("COMMIT"))
        return result


@defect("keeps_the_lease_of_a_cancelled_run", refutes="CANCEL-1", caught_by=TABLE, because="owner_kept")
class KeepsTheLeaseOfACancelledRun(AgentRunRepository):
    """Changes the status of a legacy run that nobody holds, and leaves its lease."""

    async def _cancel(self, runs: Sequence[HeldRun]) -> dict[str, Change]:
        nobodys = [run for run in runs if not run.has_holder]
        await self._write([run.id for run in nobodys], {"status": CANCELLED, "finished_at": func.clock_timestamp()})
        changes = await super()._cancel([run for run in runs if run.has_holder])
        return changes | {run.id: (run.status, CANCELLED) for run in nobodys}


@defect("lets_the_owner_look_alive", refutes="CANCEL-1", caught_by=TABLE, because="ownership_changed")
class LetsTheOwnerLookAlive(AgentRunRepository):
    """Sets the heartbeat whenever it writes a row: who is asked to stop seems to have just answered."""

    async def _request_cancel(self, runs: Sequence[HeldRun]) -> None:
        values = {"status": CANCEL_REQUESTED, "heartbeat_at": func.clock_timestamp()}
        await self._write([run.id for run in runs], values)


@defect(
    "closes_the_attempt_of_an_owner_it_asks",
    refutes="CANCEL-1",
    caught_by=TABLE,
    because="attempt_changed",
    also=["ATTEMPT-16"],
)
class ClosesTheAttemptOfAnOwnerItAsks(AgentRunRepository):
    """Takes the request for the end: the attempt is closed while its owner still works."""

    async def _request_cancel(self, runs: Sequence[HeldRun]) -> None:
        await super()._request_cancel(runs)
        for run in runs:
            await self._connection.execute(self._attempts.closing([run.id], CANCELLED, now=run.now))


@defect(
    "cancels_what_resumes_a_run",
    refutes="CANCEL-1",
    caught_by=WITHIN,
    because="outsider_changed",
    also=["LOCK-5", "SHAPE-6"],
)
class CancelsWhatResumesARun(AgentRunRepository):
    """Follows every creator, and so walks from a run into the one that continues it, which is a tree of its own."""

    async def _children(self, ids: Iterable[str]) -> set[str]:
        query = select(RUNS.c.id).where(among(RUNS.c.created_by_run_id, sorted(ids)))
        return set((await self._connection.scalars(query)).all())


@defect("answers_for_the_root_alone", refutes="CANCEL-3", caught_by=ANSWER, because="untold_change")
class AnswersForTheRootAlone(AgentRunRepository):
    """Says nothing of the descendants."""

    async def request_cancel_execution_tree(self, root_id: str) -> CancelResult:
        result = await super().request_cancel_execution_tree(root_id)
        return replace(result, runs={run: change for run, change in result.runs.items() if run == root_id})


@defect("answers_cancelled_for_all", refutes="CANCEL-3", caught_by=ANSWER, because="wrong_answer")
class AnswersCancelledForAll(AgentRunRepository):
    """Says "cancelled" of a run that goes on until its owner stops it, or that had completed."""

    async def request_cancel_execution_tree(self, root_id: str) -> CancelResult:
        result = await super().request_cancel_execution_tree(root_id)
        return replace(result, runs={run: (before, CANCELLED) for run, (before, _) in result.runs.items()})


@defect("answers_by_what_it_saw_first", refutes="CANCEL-3", caught_by=AWAITED_ANSWER, because="wrong_answer")
class AnswersByWhatItSawFirst(AgentRunRepository):
    """Decides under the locks, and answers with the statuses that it had read before it waited for them."""

    async def _lock_level(self, ids: Iterable[str]) -> list[HeldRun]:
        self._first = {**getattr(self, "_first", {}), **await self._statuses(ids)}
        return await super()._lock_level(ids)

    async def request_cancel_execution_tree(self, root_id: str) -> CancelResult:
        result = await super().request_cancel_execution_tree(root_id)
        first = getattr(self, "_first", {})
        return replace(
            result, runs={run: (first.get(run, change)[0], change[1]) for run, change in result.runs.items()}
        )
