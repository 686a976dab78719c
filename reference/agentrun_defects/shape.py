"""Defects of SHAPE: rules that look right and are not, and operations that stumble over rows from before the rule."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final, LiteralString

from agentrun_defects._control import defect, schema_defect
from agentrun_reference.outcomes import Change, Claimed, Ended, IllegalRunShape, ReconcileResult, Refused, Renewed
from agentrun_reference.repository import AgentRunRepository, HeldRun
from agentrun_reference.shape import FAILED, PENDING

INSERT: Final = "test_insert_accepts_exactly_the_legal_shapes"
UPDATE: Final = "test_update_accepts_exactly_the_legal_shapes"
NULLS: Final = "test_null_in_a_column_that_the_constraint_reads_is_judged"
STATUSES: Final = "test_status_that_is_null_or_unknown_is_refused"
TERMINAL: Final = "test_new_terminal_rows_of_any_shape_are_accepted_and_read_back"
UPGRADE: Final = "test_upgrade_changes_no_row"
OWNER: Final = "test_owner_ends_a_run_of_odd_shape"
MAINTENANCE: Final = "test_illegal_active_run_can_be_ended_by_maintenance_and_written_in_no_other_way"
TYPED: Final = "test_operations_on_an_illegal_run_answer_with_a_typed_error_or_end_it"
CLAIM: Final = "test_claim_ends_illegal_runs_and_reports_them"
FETCH: Final = "test_fetch_next_goes_on_behind_illegal_runs"
SWEEP: Final = "test_reconcile_ends_illegal_runs_and_the_rest_of_the_sweep"
BATCHES: Final = "test_reconcile_in_batches_goes_on_behind_illegal_runs"
TREE: Final = "test_cancel_ends_illegal_runs_of_a_tree_and_the_rest"

ENDED: Final = "status IN ('completed', 'failed', 'cancelled', 'interrupted')"
ACTIVE: Final = "status IN ('pending', 'running', 'cancel_requested')"
PLACED: Final = "conversation_id IS NOT NULL AND scope_conversation_id IS NOT NULL"
OWN: Final = "scope_conversation_id = conversation_id"
SAME: Final = "scope_conversation_id IS NOT DISTINCT FROM conversation_id"
ALONE: Final = "created_by_run_id IS NULL AND subagent_relation_id IS NULL"
CREATED: Final = "created_by_run_id IS NOT NULL AND subagent_relation_id IS NULL"
RELATED: Final = "created_by_run_id IS NOT NULL AND subagent_relation_id IS NOT NULL"
CHAT: Final = f"run_type = 'chat' AND {OWN} AND {ALONE}"
RESUME: Final = f"run_type = 'resume' AND {OWN} AND {CREATED}"
SUBAGENT: Final = f"run_type = 'subagent' AND {RELATED}"
LEGAL: Final = f"{PLACED} AND ({CHAT} OR {RESUME} OR {SUBAGENT})"

CHECK_VIOLATION: Final = "23514"

A_LEGAL_CHAT: Final[dict[str, Any]] = {
    "run_type": "chat",
    "conversation_id": "conversation",
    "scope_conversation_id": "conversation",
    "created_by_run_id": None,
    "subagent_relation_id": None,
}
"""What an operation takes a run for when it does not look at its shape."""

NO_RULE: Final = "ALTER TABLE agent_runs DROP CONSTRAINT IF EXISTS agent_runs_active_shape;"


def rule(condition: LiteralString) -> LiteralString:
    """The constraint with another condition."""
    return f"{NO_RULE} ALTER TABLE agent_runs ADD CONSTRAINT agent_runs_active_shape CHECK ({condition}) NOT VALID"


def trigger(event: LiteralString) -> LiteralString:
    """The right rule, by a trigger in the constraint's place."""
    return f"""
        {NO_RULE}
        CREATE OR REPLACE FUNCTION judge_shape() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            IF NOT EXISTS (SELECT FROM (SELECT NEW.*) AS run WHERE {ENDED} OR {ACTIVE} AND {LEGAL}) THEN
                RAISE check_violation;
            END IF;
            RETURN NEW;
        END $$;
        CREATE OR REPLACE TRIGGER judge_shape BEFORE {event} ON agent_runs
            FOR EACH ROW EXECUTE FUNCTION judge_shape()
    """


schema_defect(
    "no_rule_in_the_database",
    "The shape is checked where runs are created, and by nothing else.",
    NO_RULE,
    refutes="SHAPE-1",
    caught_by=INSERT,
    because="illegal_accepted",
    also=["SHAPE-2", "SHAPE-5"],
)
schema_defect(
    "shape_judged_on_insert_alone",
    "A trigger judges new rows; an update goes unseen.",
    trigger("INSERT"),
    refutes="SHAPE-1",
    caught_by=UPDATE,
    because="illegal_accepted",
    also=["SHAPE-2", "SHAPE-5"],
)
schema_defect(
    "subagents_not_judged",
    "The rule is written for the runs that users start; those that runs start pass as they are.",
    rule(f"({ENDED} OR {ACTIVE} AND ({PLACED} AND ({CHAT} OR {RESUME}) OR run_type = 'subagent')) IS TRUE"),
    refutes="SHAPE-1",
    caught_by="test_nonterminal_run_shape_constraint_preserves_terminal_legacy_rows",
    because="illegal_accepted",
    also=["SHAPE-2", "SHAPE-5"],
)
schema_defect(
    "resume_in_a_foreign_scope",
    "The rule forgets that a resume keeps to its own conversation.",
    rule(f"({ENDED} OR {ACTIVE} AND {PLACED} AND ({CHAT} OR run_type = 'resume' AND {CREATED} OR {SUBAGENT})) IS TRUE"),
    refutes="SHAPE-1",
    caught_by="test_copy_accepts_exactly_the_legal_shapes",
    because="illegal_accepted",
)
schema_defect(
    "subagent_never_in_its_own_scope",
    "The rule asks more of a subagent than the specification: a scope that is not its own conversation.",
    rule(f"({ENDED} OR {ACTIVE} AND {PLACED} AND ({CHAT} OR {RESUME} OR {SUBAGENT} AND NOT {OWN})) IS TRUE"),
    refutes="SHAPE-1",
    caught_by="test_orm_flush_accepts_exactly_the_legal_shapes",
    because="legal_refused",
    also=["SHAPE-2"],
)

schema_defect(
    "null_makes_the_rule_unknown",
    "No IS TRUE around the rule: CHECK passes what is unknown.",
    rule(f"{ENDED} OR {ACTIVE} AND {LEGAL}"),
    refutes="SHAPE-2",
    caught_by=NULLS,
    because="null_accepted",
    also=["SHAPE-1"],
)
schema_defect(
    "null_is_nulls_own_scope",
    "IS NOT DISTINCT FROM in place of = and NOT NULL: a chat without conversation and scope is in its own scope.",
    rule(f"({ENDED} OR {ACTIVE} AND ({LEGAL.replace(PLACED, 'TRUE').replace(OWN, SAME)})) IS TRUE"),
    refutes="SHAPE-2",
    caught_by=NULLS,
    because="null_accepted",
    also=["SHAPE-1"],
)
schema_defect(
    "unknown_status_counts_as_ended",
    "The rule says NOT IN (active) where it means IN (terminal).",
    rule(f"(NOT {ACTIVE} OR {LEGAL}) IS TRUE"),
    refutes="SHAPE-2",
    caught_by=STATUSES,
    because="unknown_status_accepted",
    also=["SHAPE-1"],
)
schema_defect(
    "each_type_excused_from_the_others_rule",
    "A rule a type, each of the form type <> x OR ...: a null type is excused from all of them.",
    rule(
        f"{ENDED} OR {ACTIVE} AND {PLACED} AND (run_type <> 'chat' OR {OWN} AND {ALONE})"
        f" AND (run_type <> 'resume' OR {OWN} AND {CREATED}) AND (run_type <> 'subagent' OR {RELATED})"
    ),
    refutes="SHAPE-2",
    caught_by=NULLS,
    because="null_accepted",
    also=["SHAPE-1"],
)

schema_defect(
    "history_judged_as_active",
    "The rule holds for every status: history of an odd shape can't be written any more, and nothing odd be ended.",
    rule(f"(({ENDED} OR {ACTIVE}) AND {LEGAL}) IS TRUE"),
    refutes="SHAPE-4",
    caught_by=TERMINAL,
    because="terminal_refused",
    also=["SHAPE-1", "SHAPE-2", "SHAPE-5", "SHAPE-6", "LOCK-5", "CANCEL-3"],
)
schema_defect(
    "history_of_known_types_alone",
    "A row that has ended still needs one of the three types.",
    rule(f"({ENDED} AND run_type IN ('chat', 'resume', 'subagent') OR {ACTIVE} AND {LEGAL}) IS TRUE"),
    refutes="SHAPE-4",
    caught_by=TERMINAL,
    because="terminal_refused",
    also=["SHAPE-1", "SHAPE-2", "SHAPE-5", "SHAPE-6"],
)
schema_defect(
    "upgrade_mends_history",
    "The upgrade fills in the scope of runs that have ended without one.",
    """
        UPDATE agent_runs SET scope_conversation_id = conversation_id
        WHERE scope_conversation_id IS NULL AND finished_at IS NOT NULL
    """,
    refutes="SHAPE-4",
    caught_by=UPGRADE,
    because="rows_changed",
)


@defect("owner_cannot_end_an_odd_run", refutes="SHAPE-4", caught_by=OWNER, because="IllegalShape")
class OwnerCannotEndAnOddRun(AgentRunRepository):
    """A run whose shape is illegal can't be ended by its owner, although a terminal status is open to any shape."""

    async def set_terminal_status(self, run_id: str, **arguments: Any) -> Ended | Refused:
        run = await self.lock_run(run_id)
        if run is not None and not run.is_legal:
            raise IllegalRunShape(run.id, run.run_type)
        return await super().set_terminal_status(run_id, **arguments)


@defect(
    "renewal_meets_the_constraint",
    refutes="SHAPE-5",
    caught_by=TYPED,
    because=CHECK_VIOLATION,
    also=["LOCK-10"],
)
class RenewalMeetsTheConstraint(AgentRunRepository):
    """A renewal writes without a look at the shape, and its caller gets PostgreSQL's own error."""

    async def renew_lease(self, run_id: str, *, owner_token: str, lease: timedelta) -> Renewed | Refused:
        run = await self.lock_run(run_id)
        if run is None or not run.is_owned_by(owner_token):
            return Refused("not_the_owner")
        until, _ = await self._renew(replace(run, **A_LEGAL_CHAT), owner_token, lease)
        return Renewed(until, run.status == "cancel_requested")


@defect("illegal_run_called_unowned", refutes="SHAPE-5", caught_by=TYPED, because="no_typed_error")
class IllegalRunCalledUnowned(AgentRunRepository):
    """A renewal of an illegal run says that its live owner does not own it."""

    async def renew_lease(self, run_id: str, *, owner_token: str, lease: timedelta) -> Renewed | Refused:
        try:
            return await super().renew_lease(run_id, owner_token=owner_token, lease=lease)
        except IllegalRunShape:
            return Refused("not_the_owner")


schema_defect(
    "illegal_run_written_in_other_columns",
    "A trigger judges the columns of the shape when they are written; an illegal row lives on as long as they are not.",
    trigger(
        "INSERT OR UPDATE OF run_type, status, conversation_id, scope_conversation_id, created_by_run_id,"
        " subagent_relation_id"
    ),
    refutes="SHAPE-5",
    caught_by=MAINTENANCE,
    because="illegal_written",
)


@defect("claim_of_an_illegal_run_raises", refutes="SHAPE-6", caught_by=FETCH, because="IllegalShape")
class ClaimOfAnIllegalRunRaises(AgentRunRepository):
    """A claim raises where it should end the run, which stays at the head of the queue."""

    async def _end_illegal(self, run: HeldRun, *, outcome: str) -> Ended:
        raise IllegalRunShape(run.id, run.run_type)


@defect("claim_passes_illegal_runs_by", refutes="SHAPE-6", caught_by=FETCH, because="starved", also=["SHAPE-5"])
class ClaimPassesIllegalRunsBy(AgentRunRepository):
    """A claim refuses an illegal run and leaves it pending: five of them are the next five for ever."""

    async def mark_running(self, run_id: str, **arguments: Any) -> Claimed | Ended | Refused:
        run = await self.lock_run(run_id)
        if run is not None and not run.is_legal:
            return Refused("illegal_shape")
        return await super().mark_running(run_id, **arguments)


@defect("reconcile_passes_illegal_runs_by", refutes="SHAPE-6", caught_by=BATCHES, because="starved")
class ReconcilePassesIllegalRunsBy(AgentRunRepository):
    """A sweep takes its batch and leaves the illegal ones in it, which are the next batch again."""

    async def _lock_expired(self, limit: int | None) -> list[HeldRun]:
        return [run for run in await super()._lock_expired(limit) if run.is_legal]


@defect("reconcile_fails_as_a_whole", refutes="SHAPE-6", caught_by=SWEEP, because=CHECK_VIOLATION)
class ReconcileFailsAsAWhole(AgentRunRepository):
    """A sweep first notes on its batch that it was seen, which the constraint refuses for an illegal run."""

    async def _lock_expired(self, limit: int | None) -> list[HeldRun]:
        runs = await super()._lock_expired(limit)
        if runs:
            await self._write([run.id for run in runs], {"worker_id": "reconciler"})
        return runs


@defect(
    "cancel_asks_illegal_runs_to_stop",
    refutes="SHAPE-6",
    caught_by=TREE,
    because=CHECK_VIOLATION,
    also=["LOCK-5", "CANCEL-3"],
)
class CancelAsksIllegalRunsToStop(AgentRunRepository):
    """A cancel asks every holder, and falls over one that can't become cancel_requested: the tree runs on."""

    async def _cancel(self, runs: Sequence[HeldRun]) -> dict[str, Change]:
        return await super()._cancel([replace(run, **A_LEGAL_CHAT) for run in runs])


@defect("illegal_end_not_reported", refutes="SHAPE-6", caught_by=SWEEP, because="not_reported")
class IllegalEndNotReported(AgentRunRepository):
    """A sweep ends illegal runs without a word about why."""

    async def reconcile_expired_leases(self, *, limit: int | None = None) -> ReconcileResult:
        return replace(await super().reconcile_expired_leases(limit=limit), ended_illegal=frozenset())


@defect("illegal_pending_run_keeps_its_attempt_open", refutes="SHAPE-6", caught_by=CLAIM, because="open_attempt")
class IllegalPendingRunKeepsItsAttemptOpen(AgentRunRepository):
    """A claim that ends an illegal run takes it that a pending one has no attempt to close."""

    async def _end_illegal(self, run: HeldRun, *, outcome: str) -> Ended:
        if run.status != PENDING:
            return await super()._end_illegal(run, outcome=outcome)
        ending = {"status": FAILED, "finished_at": run.now, "error_type": "invalid_runtime_scope"}
        await self._write([run.id], ending)
        return Ended(FAILED, illegal=True)
