"""LOCK-2 where trees are large: wide levels, deep chains, and ids that sort otherwise in a locale."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import timedelta
from typing import Final

from psycopg import sql

from leaseproof.checks import claim, expect_equal
from leaseproof.world.facts import RUN_FIELDS, Run
from leaseproof.world.plant import EPOCH
from leaseproof.world.trees import uniform
from leaseproof.world.waits import PATIENCE
from leaseproof.world.world import World

WIDTH: Final = 130
DEPTH: Final = 10


@claim("LOCK-2")
async def test_wide_level_is_locked_in_one_order(world: World) -> None:
    """A level of more than a hundred runs whose ids run against their age: all of it is locked, by age alone."""
    root = await world.run("running")
    first = await world.run("pending", creator=root)
    level = [replace(first, id=f"wide-{n:03d}", created_at=EPOCH - timedelta(seconds=n)) for n in range(WIDTH)]
    rows = await world.row_writer("INSERT", RUN_FIELDS)
    expect_equal(set((await rows.inserts([asdict(run) for run in level])).values()), {None}, "not_planted", "the level")
    await _are_awaited_in_turn(world, root, [*reversed(level), first], awaited=(0, WIDTH // 2, WIDTH), probe_each=13)
    seen = {status for identity, status in (await world.snapshot()).statuses().items() if identity != root.id}
    expect_equal(seen, {"cancelled"}, "not_cancelled", "statuses of the level after the cancel")


@claim("LOCK-2")
async def test_deep_chain_is_locked_to_its_end(world: World) -> None:
    """Below the root lie ten levels: the cancel waits for the last, and holds all above it."""
    tree = await world.tree("running", [uniform(DEPTH - 1, 1)])
    await _are_awaited_in_turn(world, tree.root, tree.descendants, awaited=(DEPTH - 1,), probe_each=1)
    seen = set((await world.snapshot()).statuses().values())
    expect_equal(seen, {"cancel_requested"}, "not_cancelled", "statuses after the cancel")


@claim("LOCK-2")
async def test_ids_of_mixed_case_are_locked_as_the_database_sorts_them(world: World) -> None:
    """Of runs of equal age the id decides, compared as the table's column compares it."""
    root = await world.run("running")
    letters = ("b", "A", "a", "C", "B")
    runs = {
        (run := await world.run("running", creator=root, id=f"run-{letter}", created_at=EPOCH)).id: run
        for letter in letters
    }
    columns = {field: sql.Identifier(column) for field, column in world.run_table.columns.items()}
    query = sql.SQL("SELECT {id} AS id FROM {table} WHERE {creator} = %(root)s ORDER BY {id}").format(
        id=columns["id"],
        table=sql.Identifier(*world.run_table.name.split(".")),
        creator=columns["created_by_run_id"],
    )
    reader = await world.session("reader")
    order = [runs[str(row["id"])] for row in await reader.fetch(query, {"root": root.id})]
    await reader.release()
    await _are_awaited_in_turn(world, root, order, awaited=range(len(order)), probe_each=1)
    seen = set((await world.snapshot()).statuses().values())
    expect_equal(seen, {"cancel_requested"}, "not_cancelled", "statuses after the cancel")


async def _are_awaited_in_turn(
    world: World, root: Run, order: Sequence[Run], *, awaited: Sequence[int], probe_each: int
) -> None:
    """Hold the runs at these places one after another: while one is awaited, those before it are locked and those
    behind it are free, of which one in so many is probed.
    """
    prober, holder, relief = [await world.session(name) for name in ("prober", "holder", "relief")]
    canceller = world.actor("canceller", statement_timeout=PATIENCE)
    await holder.lock(order[awaited[0]].id)
    async with canceller.running(canceller.request_cancel_execution_tree(root.id)) as cancel:
        for place, following in zip(awaited, [*awaited[1:], None], strict=True):
            await cancel.until_blocked_by(holder.pid)
            for run in order[:place:probe_each]:
                await prober.expect_locked(run.id, f"while {order[place].id} is awaited, run before it")
            for run in order[place + 1 :: probe_each]:
                await prober.expect_free(run.id, f"while {order[place].id} is awaited, run behind it")
            if following is not None:
                await relief.hold_free(order[following].id, "next run")
            await holder.release()
            holder, relief = relief, holder
        await cancel.result()
