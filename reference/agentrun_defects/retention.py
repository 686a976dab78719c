"""Defects of ATTEMPT-18 beside those of the history: what a purge takes, and what else its role may do."""

from typing import Final

from agentrun_defects._control import schema_defect
from agentrun_defects.history import purge

GIVEN_AGE: Final = "test_purge_goes_by_the_age_that_it_is_given"
BY_PURGE: Final = "test_maintenance_removes_runs_by_the_purge_alone"

schema_defect(
    "purges_at_an_age_of_its_own",
    "Does not look at the age that is asked for: whatever ended thirty days ago goes.",
    purge("SELECT * FROM purge_rightly(interval '30 days', max_runs)"),
    refutes="ATTEMPT-18",
    caught_by=GIVEN_AGE,
    because="left_behind",
)
schema_defect(
    "lets_maintenance_delete_runs",
    "Grants the role that may purge the right to delete runs as well, by any age and in any number.",
    """
    DO $$
    DECLARE
        janitor regrole;
    BEGIN
        FOR janitor IN
            SELECT acl.grantee FROM pg_proc, aclexplode(proacl) AS acl
            WHERE proname = 'purge_agent_runs' AND acl.grantee NOT IN (0, proowner)
        LOOP
            EXECUTE format('GRANT SELECT, DELETE ON agent_runs TO %s', janitor);
        END LOOP;
    END $$
    """,
    refutes="ATTEMPT-18",
    caught_by=BY_PURGE,
    because="maintenance_deletes",
)
