"""ATTEMPT-8 and 11: the history that the attempts of a run are, and that the database keeps whole.

The database is asked by plain SQL here, as the application's or the owner's role. What counts is what the rows are
afterwards: a statement may be refused, or be accepted and change nothing.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, LiteralString

from psycopg import errors, sql

from leaseproof.capabilities import Cap
from leaseproof.checks import claim, expect, expect_equal, refute
from leaseproof.world.actors import Participant
from leaseproof.world.facts import Attempt, Run
from leaseproof.world.observe import Snapshot
from leaseproof.world.sessions import Session
from leaseproof.world.world import World

COLUMNS: LiteralString = """
    SELECT attname AS name, format_type(atttypid, NULL) AS type, attnotnull AS required FROM pg_attribute
    WHERE attrelid = %(table)s::regclass AND attnum > 0 AND NOT attisdropped AND attgenerated = '' ORDER BY attnum
"""

NULL: Final = sql.SQL("NULL")
WORDS: Final = (sql.Literal("tampered"), sql.Literal("failed"), sql.Literal("completed"))
TAMPERED: Final[Mapping[str, tuple[sql.Composable, ...]]] = {
    "text": WORDS,
    "character varying": WORDS,
    "integer": (sql.Literal(7),),
    "bigint": (sql.Literal(7),),
    "timestamp with time zone": (sql.SQL("clock_timestamp()"),),
}
"""What a column of this type is set to, beside NULL."""


@dataclass(frozen=True)
class Columns:
    """The columns of the table of attempts, as the catalogue has them."""

    table: sql.Identifier
    types: Mapping[str, str]
    nullable: Sequence[str]

    @classmethod
    async def read(cls, world: World, catalogue: Session) -> "Columns":
        """Read by a session of the owner's."""
        table = world.system.facts.attempt_table or ""
        rows = await catalogue.fetch(COLUMNS, {"table": table})
        await catalogue.release()
        types = {row["name"]: row["type"] for row in rows}
        return cls(sql.Identifier(*table.split(".")), types, [row["name"] for row in rows if not row["required"]])

    def updates(self) -> Iterator[sql.Composed]:
        """Each column alone set to other values, and all that may be NULL set to NULL at once."""
        for name, type_ in self.types.items():
            for value in (*TAMPERED.get(type_, ()), NULL):
                yield self._update({name: value})
        yield self._update(dict.fromkeys(self.nullable, NULL))

    def insert(self, values: Mapping[str, Any]) -> sql.Composed:
        """A row of these values, by column."""
        names, literals = map(sql.Identifier, values), map(sql.Literal, values.values())
        text = sql.SQL("INSERT INTO {} ({}) VALUES ({})")
        return text.format(self.table, sql.SQL(", ").join(names), sql.SQL(", ").join(literals))

    def _update(self, values: Mapping[str, sql.Composable]) -> sql.Composed:
        sets = [sql.SQL("{} = {}").format(sql.Identifier(name), value) for name, value in values.items()]
        return sql.SQL("UPDATE {} SET {}").format(self.table, sql.SQL(", ").join(sets))


def liftings(table: sql.Identifier) -> Iterator[sql.Composed]:
    """What would lift the guards of a table, if the role could."""
    yield sql.SQL("SET session_replication_role = replica").format()
    yield sql.SQL("ALTER TABLE {} DISABLE TRIGGER USER").format(table)


def closed(seen: Snapshot) -> dict[tuple[str, int], Attempt]:
    """The attempts that have ended."""
    return {key: attempt for key, attempt in seen.attempts.items() if attempt.finished_at is not None}


@dataclass(frozen=True)
class Offered:
    """The operations that not every system has; one that is not promised is left out."""

    world: World
    worker: Participant

    async def release(self, run: Run, token: str) -> None:
        """Give the run back."""
        if self.world.promises(Cap.retry_release):
            await self.worker.release_lease_for_retry(run.id, owner_token=token, error_type="given_back")

    async def cancel(self, run: Run) -> None:
        """Cancel the tree below the run."""
        if self.world.promises(Cap.execution_tree_cancel):
            await self.worker.request_cancel_execution_tree(run.id)

    async def sweep(self) -> None:
        """End the runs whose lease has expired."""
        if self.world.promises(Cap.reconcile):
            await self.worker.reconcile_expired_leases()


@claim("ATTEMPT-8")
async def test_no_operation_rewrites_a_closed_attempt(world: World) -> None:
    """Through a long history of every operation, allowed and refused, each closed attempt stays as it was closed."""
    worker, table = world.actor("worker"), world.system.facts.attempt_table or ""
    run, offered = await world.run("pending"), Offered(world, worker)
    child = await world.run("pending", creator=run if world.promises(Cap.execution_tree_cancel) else None)
    history: dict[tuple[str, int], Attempt] = {}

    async def kept(after: str) -> None:
        seen = await world.snapshot()
        changed = {key for key, attempt in history.items() if seen.attempts.get(key) != attempt}
        expect(not changed, "history_rewritten", f"{after} changed or removed the closed attempts {sorted(changed)}")
        history.update(closed(seen))

    for number in (1, 2, 3):
        for one in (run, child):
            token = f"{one.id}-{number}"
            await worker.mark_running(one.id, owner_token=token)
            await kept("a claim")
            await worker.mark_running(one.id, owner_token=token)
            await worker.renew_lease(one.id, owner_token=token)
            await kept("a renewal")
            if number == 1:
                await offered.release(one, token)
            else:
                await world.age(one)
            await kept("a release")
            for former in range(1, number):
                await worker.mark_running(one.id, owner_token=f"{one.id}-{former}")
                await worker.renew_lease(one.id, owner_token=f"{one.id}-{former}")
                await offered.release(one, f"{one.id}-{former}")
                await worker.set_terminal_status(one.id, owner_token=f"{one.id}-{former}", status="failed")
                await kept("a former owner's call")
    await worker.mark_running(run.id, owner_token="last")
    await offered.cancel(run)
    await kept("a cancel")
    await offered.sweep()
    await kept("a sweep")
    await worker.mark_running(child.id, owner_token="last")
    for one in (run, child):
        await worker.set_terminal_status(one.id, owner_token="last", result="done")
    await kept("an end")
    rows = await world.raw(table)
    for one in (run, child):
        await worker.mark_running(one.id, owner_token="later")
        await worker.set_terminal_status(one.id, owner_token="last", status="failed", error_type="later")
        await offered.release(one, "last")
    await offered.cancel(run)
    await offered.sweep()
    expect_equal(await world.raw(table), rows, "history_rewritten", "attempts after everything has ended")
    ended = {run_id for run_id, _ in history}
    expect_equal(ended, {run.id, child.id}, "history_lost", "runs that have closed attempts")


@claim("ATTEMPT-8")
async def test_application_role_can_not_change_a_closed_attempt(world: World) -> None:
    """UPDATE of each column, DELETE, TRUNCATE, and what cascades from the run: the closed attempts stay."""
    app, catalogue = await world.session("intruder", role="app"), await world.session("catalogue")
    columns = await Columns.read(world, catalogue)
    await world.run("completed")
    failed = await world.run("failed", attempt=False)
    await world.plant.attempt(
        failed, owner_token="first", outcome="retry_released", finished_at=failed.finished_at, error_type="lost"
    )
    await world.plant.attempt(
        failed, attempt_no=2, owner_token="second", outcome="failed", finished_at=failed.finished_at
    )
    table = world.system.facts.attempt_table or ""
    before = await world.raw(table)
    expect_equal(len(closed(await world.snapshot())), 3, "history_lost", "closed attempts before")
    runs = world.system.facts.run_table
    statements = [*liftings(columns.table), *columns.updates()]
    statements.append(sql.SQL("DELETE FROM {}").format(columns.table))
    statements.append(sql.SQL("TRUNCATE {}").format(columns.table))
    if runs is not None:
        run_table, run_id = sql.Identifier(*runs.name.split(".")), sql.Identifier(runs.columns["id"])
        statements.append(sql.SQL("DELETE FROM {}").format(run_table))
        statements.append(sql.SQL("UPDATE {} SET {} = 'moved-' || {}").format(run_table, run_id, run_id))
        statements.append(sql.SQL("TRUNCATE {} CASCADE").format(run_table))

    for text in statements:
        refusal = await app.sqlstate_of(text, keep=True)
        if await world.raw(table) != before:
            refute("closed_attempt_changed", f"{text.as_string()} ended with {refusal}, and changed closed attempts")


@claim("ATTEMPT-8")
async def test_application_role_can_not_change_whose_an_open_attempt_is(world: World) -> None:
    """Run, number, token and start of an open attempt are fixed, whatever column the application's role writes."""
    app, catalogue = await world.session("intruder", role="app"), await world.session("catalogue")
    columns = await Columns.read(world, catalogue)
    run = await world.run("pending")
    await world.actor("worker").mark_running(run.id, owner_token="owner")

    async def identity() -> list[tuple[Any, ...]]:
        attempts = (await world.snapshot()).attempts_of(run.id)
        return [(a.run_id, a.attempt_no, a.owner_token, a.started_at) for a in attempts]

    before = await identity()
    expect_equal([row[:3] for row in before], [(run.id, 1, "owner")], "unrecorded", "attempts after the claim")
    for text in (*liftings(columns.table), *columns.updates()):
        refusal = await app.sqlstate_of(text, keep=True)
        if await identity() != before:
            refute("open_identity_changed", f"{text.as_string()} ended with {refusal}, and made it another's attempt")


@claim("ATTEMPT-8")
async def test_attempts_are_inserted_open(world: World) -> None:
    """The application's role can't insert an attempt that has ended; its claims insert open ones."""
    app, catalogue = await world.session("intruder", role="app"), await world.session("catalogue")
    columns, ended = await Columns.read(world, catalogue), await world.run("completed")
    copied, planted = await world.run("pending"), await world.run("pending")
    rows = await catalogue.fetch(sql.SQL("SELECT * FROM {}").format(columns.table))
    await catalogue.release()
    values = {name: copied.id if rows[0][name] == ended.id else rows[0][name] for name in columns.types}
    now = await world.plant.now()
    invented = Attempt(planted.id, 1, "nobody", now, now, now, now, "completed", None, None)

    refusals = [await app.sqlstate_of(columns.insert(values), keep=True)]
    refusals.append(await app.sqlstate_of(world.system.facts.plant["attempt"][0], vars(invented), keep=True))

    written = [attempt for key, attempt in (await world.snapshot()).attempts.items() if key[0] != ended.id]
    false = [attempt for attempt in written if attempt.finished_at is not None]
    expect(not false, "inserted_closed", f"ended attempts were inserted, refusals {refusals}: {false}")
    free = await world.run("pending")
    await world.actor("worker").mark_running(free.id, owner_token="owner")
    seen = (await world.snapshot()).open_attempt(free.id)
    expect(seen is not None and seen.owner_token == "owner", "unrecorded", f"the open attempt of a claim: {seen}")


async def refusal_of(world: World, run: Run, **fields: Any) -> str | None:
    """The SQLSTATE that refuses an attempt which the owner's plain SQL inserts; None when it was accepted."""
    try:
        await world.plant.attempt(run, **fields)
    except errors.Error as error:
        if error.sqlstate is None:
            raise
        return error.sqlstate
    return None


@claim("ATTEMPT-11")
async def test_database_holds_the_numbers_of_attempts(world: World) -> None:
    """A number that is there already and an attempt of no run are not written; the next number is."""
    run = await world.run("pending")
    past: dict[str, Any] = {"started_at": run.created_at, "finished_at": run.created_at, "outcome": "retry_released"}
    for number in (1, 2):
        await world.plant.attempt(run, attempt_no=number, owner_token=f"owner-{number}", **past)
    before, table = await world.snapshot(), world.system.facts.attempt_table or ""
    for because, of, number in (
        ("duplicate_accepted", run, 1),
        ("duplicate_accepted", run, 2),
        ("orphan_accepted", replace(run, id="no-such-run"), 1),
    ):
        refusal = await refusal_of(world, of, attempt_no=number, owner_token=world.plant.name("inserted"), **past)
        seen, what = await world.snapshot(), f"attempts after no. {number} of {of.id}, refused by {refusal}"
        expect_equal({key: seen.attempts.get(key) for key in before.attempts}, before.attempts, because, what)
        numbered = [key for key in seen.attempts if key[0] in seen.runs]
        expect_equal(len(await world.raw(table)), len(numbered), because, f"{what}: rows, and numbers of runs")
    fresh = await world.run("pending")
    refusals = [
        await refusal_of(world, fresh, attempt_no=number, owner_token=f"next-{number}", **past) for number in (1, 2, 3)
    ]
    numbers = [attempt.attempt_no for attempt in (await world.snapshot()).attempts_of(fresh.id)]
    expect_equal(numbers, [1, 2, 3], "next_refused", f"numbers in their order, refused by {refusals}")


@claim("ATTEMPT-11")
async def test_database_holds_one_open_attempt_of_a_run(world: World) -> None:
    """A second open attempt of a run, whose number would be the next, is not written, or closes the first."""
    run = await world.run("running")
    before = (await world.snapshot()).attempts_of(run.id)

    refusal = await refusal_of(world, run, attempt_no=2, owner_token="second")

    attempts = (await world.snapshot()).attempts_of(run.id)
    are_open = [attempt.attempt_no for attempt in attempts if attempt.finished_at is None]
    expect(len(are_open) <= 1, "second_open_accepted", f"open attempts, no. 2 refused by {refusal}: {are_open}")
    expect_equal((len(before), len(are_open)), (1, 1), "unrecorded", "open attempts of the run, before and after")


@claim("ATTEMPT-11")
async def test_no_attempt_outlives_its_run(world: World) -> None:
    """Where a run is deleted by plain SQL, from whatever table, its attempts go with it, or the run stays."""
    owner, run = await world.session("owner"), await world.run("completed")
    expect_equal(len((await world.snapshot()).attempts_of(run.id)), 1, "unrecorded", "attempts of the run")
    facts = world.system.facts
    for table in [name for name in reversed(facts.tables) if name != facts.attempt_table]:
        delete = sql.SQL("DELETE FROM {}").format(sql.Identifier(*table.split(".")))

        refusal = await owner.sqlstate_of(delete, keep=True)

        seen = await world.snapshot()
        orphans = [key for key in seen.attempts if key[0] not in seen.runs]
        what = f"attempts without a run after the deletion of {table} ended with {refusal}: {orphans}"
        expect(not orphans, "orphaned", what)


@claim("ATTEMPT-11")
async def test_claims_number_without_holes(world: World) -> None:
    """Claims that are refused, rolled back or repeated use no number up."""
    worker, run = world.actor("worker"), await world.run("pending")
    for number in (1, 2, 3):
        if world.promises(Cap.caller_transaction):
            async with worker.transaction() as quitting:
                await quitting.mark_running(run.id, owner_token=f"quitter-{number}")
                quitting.rollback()
        await worker.mark_running(run.id, owner_token=f"owner-{number}")
        await worker.mark_running(run.id, owner_token=f"owner-{number}")
        await worker.mark_running(run.id, owner_token="somebody-else")
        attempts = (await world.snapshot()).attempts_of(run.id)
        expect(bool(attempts), "unrecorded", f"{run.id} has no attempt after claim {number}")
        expect_equal([a.attempt_no for a in attempts], list(range(1, len(attempts) + 1)), "hole_left", "numbers")
        await world.age(run)
