"""Defects of an upgrade that sets to rights what it was not asked about."""

from typing import Final, LiteralString

from agentrun_defects._control import schema_defect

ODD: Final = "test_upgrade_leaves_odd_columns_as_they_are"


def mending(identity: str, says: str, update: LiteralString) -> None:
    """An upgrade that runs this update too."""
    schema_defect(identity, says, update, refutes="SHAPE-4", caught_by=ODD, because="rows_changed")


mending(
    "upgrade_fills_the_ends_in",
    "Ended runs without an end get one, so that the column can be relied on.",
    """
        UPDATE agent_runs SET finished_at = coalesce(started_at, created_at)
        WHERE status IN ('completed', 'failed', 'cancelled', 'interrupted') AND finished_at IS NULL
    """,
)
mending(
    "upgrade_clears_old_labels",
    "Runs that nobody works on lose the label of the worker that did.",
    "UPDATE agent_runs SET worker_id = NULL WHERE status = 'pending'",
)
