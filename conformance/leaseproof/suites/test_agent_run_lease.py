"""LOCK and CANCEL: the order of row locks in an execution tree, and what a cancel means."""

from leaseproof.checks import claim, expect_equal
from leaseproof.world.world import World


@claim("LOCK-1")
async def test_cancel_execution_tree_locks_root_before_descendants(world: World) -> None:
    """While another session holds the root, the cancel waits for it and every descendant is free."""
    tree = await world.tree("running", ["running", ("running", ["pending"])])
    holder, prober = await world.session("holder"), await world.session("prober")
    canceller = world.actor("canceller")
    await holder.lock(tree.root.id)

    async with canceller.running(canceller.request_cancel_execution_tree(tree.root.id)) as cancel:
        waiting = await cancel.until_waiting()
        expect_equal(waiting.blocked_by, [holder.pid], "waits_for_another", "the cancel is blocked by")
        for run in tree.descendants:
            await prober.expect_free(run.id, "descendant")
        await holder.release()
        answer = await cancel.result()

    signalled = {run.id for run in tree.runs if run.status == "running"}
    expect_equal(set(answer.to_signal), signalled, "answer", "runs to signal")
    wanted = {run.id: "cancel_requested" if run.id in signalled else "cancelled" for run in tree.runs}
    expect_equal((await world.snapshot()).statuses(), wanted, "not_cancelled", "statuses after the cancel")
