"""What a system can promise. Owns the names; the catalogue's claims say which of them they require."""

from enum import StrEnum


class Cap(StrEnum):
    """A promise that a system makes, or lists in `not_promised` with its reason.

    Each comment completes the sentence "The system under test ...".
    """

    lease = "lease"  # owns a run through a lease that is claimed, renewed and ended
    owner_token = "owner_token"  # fences its operations by a token, new for each claim
    retry_release = "retry_release"  # lets an owner give a run back for another try
    reconcile = "reconcile"  # sweeps runs whose lease has expired
    fifo_fetch = "fifo_fetch"  # offers pending runs first in, first out
    attempt_history = "attempt_history"  # keeps a row for each ownership of a run
    attempt_immutability = "attempt_immutability"  # lets its own role change no closed attempt
    retention = "retention"  # purges old runs with their attempts through a maintenance role
    database_clock = "database_clock"  # decides leases by the database's clock, read under the row's lock
    execution_tree_cancel = "execution_tree_cancel"  # cancels a run and all that it started, in one transaction
    cancel_outcome = "cancel_outcome"  # answers a cancel with what was done to each run
    statement_timeout = "statement_timeout"  # bounds how long an operation waits for a lock
    caller_transaction = "caller_transaction"  # runs its operations inside the caller's transaction
    run_shape = "run_shape"  # has PostgreSQL itself refuse active runs of an illegal shape
    orm_write = "orm_write"  # writes runs through an object-relational mapper too
    upgrade = "upgrade"  # upgrades the schema of an earlier release in place
    rolling_upgrade = "rolling_upgrade"  # lets two releases run side by side while it upgrades
    creation_service = "creation_service"  # creates chat, resume and subagent runs through a service that checks them
    signals = "signals"  # announces cancels through Redis
    worker = "worker"  # has a worker that claims, checks and executes runs
    workspace = "workspace"  # projects skills and materialises working directories
    sandbox_inventory = "sandbox_inventory"  # lists, creates and deletes Kubernetes sandboxes
