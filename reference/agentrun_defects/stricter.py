"""Correct variants whose database holds more than it has to: triggers that number and close, tokens that are unique."""

from typing import Final, LiteralString

from agentrun_defects._control import variant
from agentrun_reference.conformance import ReferenceSystem

NUMBERING: Final = """
    CREATE FUNCTION number_attempt() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        PERFORM FROM agent_runs WHERE id = NEW.run_id FOR NO KEY UPDATE;
        SELECT coalesce(max(attempt_no), 0) + 1 INTO NEW.attempt_no FROM agent_run_attempts WHERE run_id = NEW.run_id;
        RETURN NEW;
    END $$;
    CREATE TRIGGER a_number_attempt BEFORE INSERT ON agent_run_attempts
        FOR EACH ROW EXECUTE FUNCTION number_attempt()
"""
CLOSING: Final = """
    CREATE FUNCTION close_attempt_before() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        UPDATE agent_run_attempts SET finished_at = clock_timestamp(), outcome = 'lease_expired'
        WHERE run_id = NEW.run_id AND finished_at IS NULL AND attempt_no < NEW.attempt_no;
        RETURN NEW;
    END $$;
    CREATE TRIGGER a_close_attempt_before BEFORE INSERT ON agent_run_attempts
        FOR EACH ROW EXECUTE FUNCTION close_attempt_before()
"""
UNIQUE_TOKENS: Final = "CREATE UNIQUE INDEX agent_run_attempts_token ON agent_run_attempts (owner_token)"
IN_TIME: Final = """
    ALTER TABLE agent_run_attempts ADD CONSTRAINT agent_run_attempts_in_time CHECK (finished_at >= started_at);
    ALTER TABLE agent_runs ADD CONSTRAINT agent_runs_in_time CHECK (finished_at >= started_at) NOT VALID
"""


def stricter(identity: str, says: str, after_install: LiteralString) -> None:
    """The reference with this in its schema."""
    variant(identity, says, lambda: ReferenceSystem(after_install=after_install))


stricter(
    "trigger_numbers", "A trigger gives an attempt the next number, whatever number it is inserted with.", NUMBERING
)
stricter("trigger_closes_before", "A trigger closes the open attempt when the next is inserted.", CLOSING)
stricter("tokens_unique_everywhere", "A token is unique in the whole history, not in its run's alone.", UNIQUE_TOKENS)
stricter("ends_in_time", "Nothing ends before it started: the database refuses such a run or attempt.", IN_TIME)
