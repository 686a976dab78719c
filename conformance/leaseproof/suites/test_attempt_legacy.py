"""ATTEMPT-10: runs from before attempts, whose history nobody knows."""

from datetime import timedelta
from typing import Final

from leaseproof.capabilities import Cap
from leaseproof.checks import claim, expect, expect_equal
from leaseproof.system import AttemptsRead, Claimed, System
from leaseproof.world.plugin import OpenWorld

AGE: Final = timedelta(days=30)


@claim("ATTEMPT-10")
async def test_no_history_is_invented_for_runs_from_before_attempts(
    system_under_test: System, worlds: OpenWorld
) -> None:
    """Upgrade, claims of other runs, what the old owner still does, and reconcile write none; reads say so."""
    world = await worlds(system_under_test.releases[0])
    then = await world.plant.now()
    stopping_status = "cancel_requested" if Cap.execution_tree_cancel in system_under_test.capabilities else "running"
    live, expired, stopping, retried, done = [
        await world.run(status, attempt=False, worker_id="old", started_at=then)
        for status in ("running", "running", stopping_status, "pending", "completed")
    ]
    nameless = await world.run("running", attempt=False, owner_token=None, lease_expires_at=None)
    legacy = (live, expired, stopping, retried, done, nameless)
    await world.upgrade(system_under_test.releases[0])
    new, worker = await world.run("pending"), world.actor("worker")

    async def expect_none(because: str) -> None:
        invented = [key for key in (await world.snapshot()).attempts if key[0] != new.id]
        expect(not invented, because, f"attempts of runs that had none: {invented}")

    await expect_none("invented_by_upgrade")
    await worker.mark_running(new.id, owner_token="new")
    await worker.renew_lease(live.id, owner_token=f"{live.id}-owner")
    await worker.set_terminal_status(live.id, owner_token=f"{live.id}-owner", result="done")
    await expect_none("invented_by_owner")
    await world.age(expired)
    await world.age(stopping)
    await worker.reconcile_expired_leases()
    await expect_none("invented_by_reconcile")
    statuses = (await world.snapshot()).statuses()
    wanted = {live.id: "completed", expired.id: "failed"}
    expect_equal({key: statuses[key] for key in wanted}, wanted, "not_ended", "statuses of the legacy runs")
    for run in legacy:
        expect_equal(await worker.attempts(run.id), AttemptsRead(known=False), "said_known", f"history of {run.id}")
    expect_equal(await worker.attempts(new.id), AttemptsRead(known=True, numbers=(1,)), "said_unknown", "a new run")


@claim("ATTEMPT-10")
async def test_first_claim_after_the_upgrade_is_number_one(system_under_test: System, worlds: OpenWorld) -> None:
    """A retried run and two whose leases have expired: each one's first claim on this release opens number 1."""
    world = await worlds(system_under_test.releases[0])
    then = await world.plant.now()
    retried = await world.run("pending", attempt=False, worker_id="old", started_at=then, retry_count=2)
    expired = await world.run("running", attempt=False, lease_expires_at=then - AGE)
    nameless = await world.run("running", attempt=False, owner_token=None, lease_expires_at=None)
    await world.upgrade(system_under_test.releases[0])
    worker = world.actor("worker")
    for run in (retried, expired, nameless):
        answer = await worker.mark_running(run.id, owner_token=f"{run.id}-new")

        expect_equal(answer, Claimed(f"{run.id}-new", 1), "not_number_one", f"the first claim of {run.id}")
        attempts = (await world.snapshot()).attempts_of(run.id)
        seen = [(attempt.attempt_no, attempt.owner_token, attempt.outcome) for attempt in attempts]
        expect_equal(seen, [(1, f"{run.id}-new", None)], "not_number_one", f"attempts of {run.id}")
        read = await worker.attempts(run.id)
        expect_equal(read.numbers, (1,), "not_number_one", f"the system's own reading of {run.id}")
