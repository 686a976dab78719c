"""SHAPE 1, 2 and 4: which rows PostgreSQL itself accepts as runs."""

from itertools import cycle

from leaseproof.checks import claim, expect, expect_equal
from leaseproof.suites.constraints import shape_constraints
from leaseproof.suites.illegal_runs import Surroundings, plant_every_kind
from leaseproof.suites.shapes import (
    ILLEGAL,
    LEGAL,
    SHAPE_FIELDS,
    SHAPES,
    TERMINAL_SHAPES,
    UNKNOWN_STATUS,
    UNKNOWN_TYPE,
    Anchors,
    Shape,
    judge,
    named,
    shape_fields,
    some,
)
from leaseproof.system import Ended, Fault, System
from leaseproof.world.facts import ACTIVE, RUN_FIELDS, RUN_TYPES, TERMINAL
from leaseproof.world.plugin import OpenWorld
from leaseproof.world.world import World

MUTABLE = tuple(field for field in RUN_FIELDS if field not in ("id", "created_at"))


async def expect_stored(world: World, shapes: dict[str, Shape], anchors: Anchors) -> None:
    """Exactly the legal ones of these shapes are in the table, as they were written."""
    stored = (await world.snapshot()).runs
    for run, shape in shapes.items():
        if not shape.legal:
            expect(run not in stored, "illegal_stored", f"{shape} is in the table")
        else:
            expect(run in stored, "legal_lost", f"{shape} was accepted, and is not in the table")
            expect_equal(
                shape_fields(stored[run]), shape_fields(anchors.row(shape, run)), "stored_otherwise", str(shape)
            )


@claim("SHAPE-1", slow=True)
async def test_nonterminal_run_shape_constraint_preserves_terminal_legacy_rows(
    worlds: OpenWorld, system_under_test: System
) -> None:
    """After the upgrade an insert is judged by its shape, while terminal rows of any shape stay and can be kept up."""
    earlier = system_under_test.releases[0]
    world = await worlds(earlier)
    anchors = await Anchors.plant(world)
    legacy = named(world, TERMINAL_SHAPES)
    older = await world.row_writer("INSERT", RUN_FIELDS)
    held = await older.inserts([anchors.row(shape, run) for run, shape in legacy.items()])
    kept = [run for run in legacy if held[run] is None]

    await world.upgrade(earlier)

    shapes = named(world, SHAPES)
    writer = await world.row_writer("INSERT", RUN_FIELDS)
    judge(shapes, await writer.inserts([anchors.row(shape, run) for run, shape in shapes.items()]), "INSERT")
    after = (await world.snapshot()).runs
    lost = [legacy[run] for run in kept if run not in after or after[run].status != legacy[run].status]
    expect(bool(kept) and not lost, "legacy_lost", some(lost))
    owner = await world.row_writer("UPDATE", MUTABLE)
    noted = [anchors.row(legacy[run], run) | {"error_message": "archived"} for run in kept]
    refused = {legacy[run]: code for run, code in (await owner.updates(noted, ["error_message"])).items() if code}
    expect(not refused, "legal_refused", f"an update of legacy rows was refused: {some(refused)}")


@claim("SHAPE-1")
async def test_insert_accepts_exactly_the_legal_shapes(world: World) -> None:
    """INSERT, by the application's role where it may."""
    anchors = await Anchors.plant(world)
    shapes = named(world, SHAPES)
    writer = await world.row_writer("INSERT", RUN_FIELDS)
    judge(shapes, await writer.inserts([anchors.row(shape, run) for run, shape in shapes.items()]), "INSERT")
    await expect_stored(world, shapes, anchors)


@claim("SHAPE-1", slow=True)
async def test_update_accepts_exactly_the_legal_shapes(world: World) -> None:
    """UPDATE of a pending chat into each shape; a refused one leaves the row as it was."""
    anchors = await Anchors.plant(world)
    chat = Shape("chat", "pending", "own", creator=False, relation=False, conversation=True)
    shapes = named(world, SHAPES)
    writer = await world.row_writer("UPDATE", MUTABLE)
    inserter = await world.row_writer("INSERT", RUN_FIELDS)
    start = await inserter.inserts([anchors.row(chat, run) for run in shapes])
    expect(not any(start.values()), "legal_refused", f"pending chats were refused: {set(start.values())}")
    before = await world.raw_runs()

    judge(shapes, await writer.updates([anchors.row(shape, run) for run, shape in shapes.items()], MUTABLE), "UPDATE")

    after, stored = await world.raw_runs(), (await world.snapshot()).runs
    for run, shape in shapes.items():
        if shape.legal:
            expect_equal(
                shape_fields(stored[run]), shape_fields(anchors.row(shape, run)), "stored_otherwise", str(shape)
            )
        else:
            expect_equal(after[run], before[run], "illegal_stored", str(shape))


@claim("SHAPE-1")
async def test_terminal_rows_are_not_revived_into_an_illegal_shape(world: World) -> None:
    """UPDATE of a completed row of any shape: it can't become active in a shape that is illegal."""
    anchors = await Anchors.plant(world)
    shapes = named(world, ILLEGAL)
    inserter = await world.row_writer("INSERT", RUN_FIELDS)
    ended = {run: anchors.row(shape, run) | {"status": "completed"} for run, shape in shapes.items()}
    start = await inserter.inserts(list(ended.values()))
    planted = {run: shape for run, shape in shapes.items() if start[run] is None}
    writer = await world.row_writer("UPDATE", MUTABLE)
    refusals = await writer.updates([anchors.row(shape, run) for run, shape in planted.items()], MUTABLE)
    accepted = [shape for run, shape in planted.items() if refusals[run] is None]
    expect(not accepted, "illegal_accepted", f"UPDATE of completed rows accepted {some(accepted)}")
    stored = (await world.snapshot()).runs
    statuses = {stored[run].status for run in planted}
    expect_equal(statuses, {"completed"}, "illegal_stored", "statuses of the completed rows")


@claim("SHAPE-1", slow=True)
async def test_copy_accepts_exactly_the_legal_shapes(world: World) -> None:
    """COPY of all legal rows at once, and of each illegal one alone."""
    anchors = await Anchors.plant(world)
    legal, illegal = named(world, LEGAL), named(world, ILLEGAL)
    writer = await world.row_writer("INSERT", RUN_FIELDS)
    refusal = await writer.copy([anchors.row(shape, run) for run, shape in legal.items()])
    expect(refusal is None, "legal_refused", f"COPY of {len(legal)} legal rows was refused with {refusal}")
    judge(illegal, await writer.copies([anchors.row(shape, run) for run, shape in illegal.items()]), "COPY")
    await expect_stored(world, legal | illegal, anchors)


@claim("SHAPE-1", slow=True)
async def test_orm_flush_accepts_exactly_the_legal_shapes(world: World) -> None:
    """A flush of the system's own mapper, each row in a transaction of its own."""
    anchors = await Anchors.plant(world)
    shapes = named(world, SHAPES)
    mapper = world.actor("mapper")

    async def flush(run: str, shape: Shape) -> str | None:
        outcome = await mapper.outcome(lambda tx: tx.orm_write(anchors.row(shape, run)))
        return outcome.sqlstate or type(outcome).__name__ if isinstance(outcome, Fault) else None

    judge(shapes, {run: await flush(run, shape) for run, shape in shapes.items()}, "ORM flush")
    await expect_stored(world, shapes, anchors)


@claim("SHAPE-2")
async def test_null_in_a_column_that_the_constraint_reads_is_judged(world: World) -> None:
    """Each column that a shape constraint reads, set to NULL in turn in every legal active row."""
    anchors = await Anchors.plant(world)
    writer = await world.row_writer("INSERT", RUN_FIELDS)
    active = named(world, tuple(shape for shape in LEGAL if shape.status in ACTIVE))
    refusals = await writer.inserts([anchors.row(shape, run) for run, shape in active.items()])
    expect(not any(refusals.values()), "legal_refused", f"legal active rows were refused: {set(refusals.values())}")

    holed = named(world, tuple(hole for shape in active.values() for hole in shape.with_nulls()))
    refusals = await writer.inserts([anchors.row(shape, run) for run, shape in holed.items()])
    passed = [shape for run, shape in holed.items() if refusals[run] is None and not shape.legal]
    expect(not passed, "null_accepted", some(passed))

    reader = await world.session("reader")
    constraints = await shape_constraints(reader, world.run_table)
    others = {field for constraint in constraints for field in constraint.fields} - set(SHAPE_FIELDS) - {"id"}
    rows = [
        anchors.row(shape, world.plant.name("run")) | {field: None} for shape in active.values() for field in others
    ]
    refusals = await writer.inserts(rows)
    accepted = [run for run, refusal in refusals.items() if refusal is None]
    for constraint in constraints:
        unknown = await constraint.unknown_for(reader, accepted)
        expect(not unknown, "null_accepted", f"{constraint.name} is unknown, and passed, for {len(unknown)} rows")


@claim("SHAPE-2")
async def test_status_that_is_null_or_unknown_is_refused(world: World) -> None:
    """Whatever the rest of the row, by INSERT and by UPDATE of a legal row."""
    anchors = await Anchors.plant(world)
    shapes = named(world, tuple(shape for shape in SHAPES if shape.status in (UNKNOWN_STATUS, None)))
    chat = Shape("chat", "pending", "own", creator=False, relation=False, conversation=True)
    writer = await world.row_writer("INSERT", RUN_FIELDS)
    inserted = await writer.inserts([anchors.row(shape, run) for run, shape in shapes.items()])
    passed = [shape for run, shape in shapes.items() if inserted[run] is None]
    expect(not passed, "unknown_status_accepted", f"INSERT: {some(passed)}")

    await writer.inserts([anchors.row(chat, run) for run in shapes])
    updater = await world.row_writer("UPDATE", ["status"])
    updated = await updater.updates([anchors.row(shape, run) for run, shape in shapes.items()], ["status"])
    passed = [shape for run, shape in shapes.items() if updated[run] is None]
    expect(not passed, "unknown_status_accepted", f"UPDATE: {some(passed)}")
    stored = (await world.snapshot()).runs
    statuses = {stored[run].status for run in shapes}
    expect_equal(statuses, {"pending"}, "unknown_status_accepted", "statuses of the pending chats")


@claim("SHAPE-2")
async def test_terminal_rows_pass_with_any_type(world: World) -> None:
    """A type that is unknown or null does not keep a run from having ended."""
    anchors = await Anchors.plant(world)
    writer = await world.row_writer("INSERT", RUN_FIELDS)
    shapes = named(
        world,
        tuple(
            Shape(run_type, status, "own", creator=False, relation=False, conversation=True)
            for run_type in (*RUN_TYPES, UNKNOWN_TYPE, None)
            for status in sorted(TERMINAL)
        ),
    )
    refusals = await writer.inserts([anchors.row(shape, run) for run, shape in shapes.items()])
    refused = {shape: refusals[run] for run, shape in shapes.items() if refusals[run] is not None}
    expect(not refused, "terminal_refused", f"{some(refused)} with {set(refused.values())}")
    await expect_stored(world, shapes, anchors)


@claim("SHAPE-4")
async def test_new_terminal_rows_of_any_shape_are_accepted_and_read_back(world: World) -> None:
    """Written as terminal, and ended by an update of a legal active row."""
    anchors = await Anchors.plant(world)
    shapes, ended = named(world, TERMINAL_SHAPES), named(world, TERMINAL_SHAPES)
    chat = Shape("chat", "running", "own", creator=False, relation=False, conversation=True)
    writer = await world.row_writer("INSERT", RUN_FIELDS)
    refusals = dict(await writer.inserts([anchors.row(shape, run) for run, shape in shapes.items()]))
    started = await writer.inserts([anchors.row(chat, run) for run in ended])
    expect(not any(started.values()), "legal_refused", f"running chats were refused: {set(started.values())}")
    updater = await world.row_writer("UPDATE", MUTABLE)
    refusals |= await updater.updates([anchors.row(shape, run) for run, shape in ended.items()], MUTABLE)
    refused = {shape: refusals[run] for run, shape in (shapes | ended).items() if refusals[run] is not None}
    expect(not refused, "terminal_refused", f"{some(refused)} with {set(refused.values())}")
    await expect_stored(world, shapes | ended, anchors)


@claim("SHAPE-4", slow=True)
async def test_upgrade_changes_no_row(worlds: OpenWorld, system_under_test: System) -> None:
    """Every shape that the earlier release could hold, active ones too, is there byte for byte after the upgrade."""
    earlier = system_under_test.releases[0]
    world = await worlds(earlier)
    anchors = await Anchors.plant(world)
    writer = await world.row_writer("INSERT", RUN_FIELDS)
    shapes = named(world, SHAPES)
    refusals = await writer.inserts([anchors.row(shape, run) for run, shape in shapes.items()])
    held = [run for run in shapes if refusals[run] is None]
    terminal_refused = [
        shape for run, shape in shapes.items() if shape.status in TERMINAL and refusals[run] is not None
    ]
    expect(not terminal_refused, "terminal_refused", f"the earlier release refused {some(terminal_refused)}")
    layout = await world.layout()
    before = await world.digest_of(layout)

    await world.upgrade(earlier)

    expect_equal(await world.digest_of(layout), before, "rows_changed", "rows after the upgrade")
    stored = (await world.snapshot()).runs
    for run in held:
        wanted = shape_fields(anchors.row(shapes[run], run))
        expect_equal(shape_fields(stored[run]), wanted, "rows_changed", str(shapes[run]))


@claim("SHAPE-4")
async def test_owner_ends_a_run_of_odd_shape(world: World) -> None:
    """A running run of a shape that may no longer be active is ended by its owner as any other."""
    around = await Surroundings.plant(world)
    owner = world.actor("owner")
    planted = await plant_every_kind(world, around, "running")
    expect(len(planted) >= len(TERMINAL), "legal_lost", f"of the odd shapes only {sorted(planted)} could be planted")
    ends = dict(zip(planted, cycle(sorted(TERMINAL)), strict=False))
    for kind, run in planted.items():
        answer = await owner.set_terminal_status(run.id, owner_token=str(run.owner_token), status=ends[kind])
        expect(isinstance(answer, Ended) and answer.status == ends[kind], "not_ended", f"{kind}: {answer!r}")
    stored = (await world.snapshot()).runs
    for kind, run in planted.items():
        expect_equal(stored[run.id].status, ends[kind], "not_ended", kind)
        ended = shape_fields(run) | {"status": ends[kind]}
        expect_equal(shape_fields(stored[run.id]), ended, "stored_otherwise", kind)
