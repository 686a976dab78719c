"""LOCK-1 and LOCK-4 at the root: it stays locked, and is passed through, whatever its status."""

from leaseproof.checks import claim, expect_equal
from leaseproof.world.facts import STATUSES, TERMINAL
from leaseproof.world.waits import PATIENCE
from leaseproof.world.world import World


@claim("LOCK-1")
async def test_root_of_any_status_is_locked_while_a_descendant_is_awaited(world: World) -> None:
    """The cancel that waits for a subagent holds the root, be it asked to stop before, or ended in any way."""
    holder, prober = await world.session("holder"), await world.session("prober")
    canceller = world.actor("canceller", statement_timeout=PATIENCE)
    for status in STATUSES:
        root = await world.run(status)
        child = await world.run("running", creator=root)
        await holder.lock(child.id)
        async with canceller.running(canceller.request_cancel_execution_tree(root.id)) as cancel:
            await cancel.until_blocked_by(holder.pid)
            await prober.expect_locked(root.id, f"while a subagent is awaited, {status} root")
            await holder.release()
            await cancel.result()
        seen = (await world.snapshot()).statuses()[child.id]
        expect_equal(seen, "cancel_requested", "not_cancelled", f"the subagent's status below a {status} root")


@claim("LOCK-4")
async def test_active_runs_below_a_root_that_has_ended_are_reached(world: World) -> None:
    """However the root has ended, its row stays, and the runs below it are cancelled."""
    canceller = world.actor("canceller")
    for status in sorted(TERMINAL):
        tree = await world.tree(status, ["running", ("completed", ["pending"])])
        before = await world.raw_runs()
        await canceller.request_cancel_execution_tree(tree.root.id)
        statuses = (await world.snapshot()).statuses()
        wanted = {run.id: "cancelled" if run.status == "pending" else "cancel_requested" for run in tree.active}
        seen = {run.id: statuses[run.id] for run in tree.active}
        expect_equal(seen, wanted, "not_reached", f"statuses below a {status} root")
        after = await world.raw_runs()
        expect_equal(after[tree.root.id], before[tree.root.id], "terminal_changed", f"the row of a {status} root")
