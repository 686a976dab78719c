"""ATTEMPT-18: runs and attempts are purged together, by age, by the maintenance role, and in no other way."""

from datetime import timedelta
from typing import Any, Final

from psycopg import sql

from leaseproof.checks import Refuted, claim, expect, expect_equal
from leaseproof.suites.ownership import expect_unchanged, held_statuses
from leaseproof.world.facts import TERMINAL, Run
from leaseproof.world.world import World

AGE: Final = timedelta(days=30)
WEEK: Final = timedelta(days=7)
MINUTE: Final = timedelta(minutes=1)


async def old(world: World, status: str, **fields: Any) -> Run:
    """A run that ended two ages ago."""
    ended = await world.plant.now() - 2 * AGE
    return await world.run(status, **{"created_at": ended, "started_at": ended, "finished_at": ended, **fields})


@claim("ATTEMPT-18")
async def test_purge_removes_old_runs_with_their_attempts_in_batches(world: World) -> None:
    """Old ended runs of all statuses go, attempts and all, two at most in a batch; young and active ones stay."""
    janitor = world.actor("janitor", role="maintenance")
    ended = [await old(world, status) for status in sorted(TERMINAL) for _ in range(2)]
    retried = await old(world, "failed", attempt=False)
    for number in (1, 2, 3):
        token, when = f"{retried.id}-{number}", retried.finished_at
        await world.plant.attempt(
            retried, attempt_no=number, owner_token=token, finished_at=when, outcome="retry_released"
        )
    gone = {run.id for run in (*ended, retried)}
    kept = [await world.run(status) for status in (*held_statuses(world), "pending", *sorted(TERMINAL))]
    kept += [await old(world, status, finished_at=None) for status in (*held_statuses(world), "pending")]
    kept.append(await old(world, "completed", finished_at=await world.plant.now()))
    rows = await world.raw_runs()
    before = await world.snapshot()
    for _ in range(len(gone)):
        purged = await janitor.purge(older_than=AGE, limit=2)

        seen = await world.snapshot()
        removed = (len(before.runs) - len(seen.runs), len(before.attempts) - len(seen.attempts))
        expect_equal((purged.runs, purged.attempts), removed, "answer", "runs and attempts said to be removed")
        expect(removed[0] <= 2, "unbounded", f"{removed[0]} runs went in a batch of two")
        orphans = [key for key in seen.attempts if key[0] not in seen.runs]
        expect(not orphans, "not_together", f"attempts whose run is gone: {orphans}")
        for run_id in seen.runs:
            same = seen.attempts_of(run_id) == before.attempts_of(run_id)
            expect(same, "not_together", f"the run {run_id} is there, and its attempts are others")
        before = seen
        if not purged.runs:
            break
    left = await world.raw_runs()
    expect_equal(left, {run.id: rows[run.id] for run in kept if run.id in left}, "left_behind", "runs after the purge")
    missing = [f"{run.status} {run.id}" for run in kept if run.id not in left]
    expect(not missing, "purged_too_much", f"purged although active or young: {missing}")


@claim("ATTEMPT-18")
async def test_purge_of_trees_leaves_nothing_dangling_and_ends(world: World) -> None:
    """In batches of one, an old tree and a chain of resumes go whole; what a younger run refers to stays, and holds
    nothing else up."""
    janitor = world.actor("janitor", role="maintenance")
    oldest = await world.plant.now() - 3 * AGE
    referred = await old(world, "interrupted", created_at=oldest, started_at=oldest, finished_at=oldest)
    young = await world.run("pending", creator=referred, run_type="resume")
    root = await old(world, "completed")
    child = await old(world, "failed", creator=root)
    gone = {root.id, child.id, (await old(world, "cancelled", creator=child)).id}
    first = await old(world, "interrupted")
    gone |= {first.id, (await old(world, "completed", creator=first, run_type="resume")).id}
    rows = await world.raw_runs()
    for _ in range(len(gone) + 1):
        await janitor.purge(older_than=AGE, limit=1)
        runs = (await world.snapshot()).runs
        dangling = [run.id for run in runs.values() if run.created_by_run_id not in {None, *runs}]
        expect(not dangling, "dangling", f"runs whose creator is gone: {dangling}")
    left = await world.raw_runs()
    expect_equal(gone & set(left), set(), "left_behind", "old runs after as many batches of one, and one more")
    expect_equal(left.get(young.id), rows[young.id], "purged_too_much", "the young run")


@claim("ATTEMPT-18")
async def test_purge_goes_by_the_age_that_it_is_given(world: World) -> None:
    """Of runs that ended a minute before and a minute after two ages ago, each age takes what is older than itself."""
    janitor, now = world.actor("janitor", role="maintenance"), await world.plant.now()
    ages = (WEEK - MINUTE, WEEK + MINUTE, AGE - MINUTE, AGE + MINUTE)
    ended = [now - age for age in ages]
    runs = [
        await world.run("completed", created_at=when - 2 * MINUTE, started_at=when - 2 * MINUTE, finished_at=when)
        for when in ended
    ]
    for older_than, left in ((AGE, runs[:3]), (WEEK, runs[:1])):
        await janitor.purge(older_than=older_than, limit=10)

        seen = set((await world.snapshot()).runs)
        too_much = [str(ages[runs.index(run)]) for run in left if run.id not in seen]
        expect(not too_much, "purged_too_young", f"ages of runs that a purge of {older_than} removed: {too_much}")
        expect_equal(seen, {run.id for run in left}, "left_behind", f"runs after a purge of {older_than}")


@claim("ATTEMPT-18")
async def test_maintenance_removes_runs_by_the_purge_alone(world: World) -> None:
    """Plain DELETE and TRUNCATE by the maintenance role remove no run, one that was never owned and one that was."""
    table = world.run_table
    name, identity = sql.Identifier(*table.name.split(".")), sql.Identifier(table.columns["id"])
    session = await world.session("janitor", role="maintenance")
    for attempt in (False, True):
        run = await old(world, "completed", attempt=attempt)
        before = await world.digest()
        for text in (
            sql.SQL("DELETE FROM {} WHERE {} = {}").format(name, identity, sql.Literal(run.id)),
            sql.SQL("DELETE FROM {}").format(name),
            sql.SQL("TRUNCATE {} CASCADE").format(name),
        ):
            refusal = await session.sqlstate_of(text, keep=True)
            await expect_unchanged(world, before, "maintenance_deletes", f"{text.as_string()} ended with {refusal}")
    await world.actor("janitor", role="maintenance").purge(older_than=AGE, limit=10)
    expect_equal((await world.snapshot()).runs, {}, "left_behind", "runs after the maintenance role's purge")


@claim("ATTEMPT-18")
async def test_nothing_but_the_purge_removes_runs_or_attempts(world: World) -> None:
    """The application's role can neither purge nor delete, and the maintenance role deletes no attempts by itself."""
    run, bare = await old(world, "completed"), await old(world, "completed", attempt=False)
    attempts = sql.Identifier(*(world.system.facts.attempt_table or "").split("."))
    statements = [sql.SQL("DELETE FROM {}").format(attempts), sql.SQL("TRUNCATE {}").format(attempts)]
    deletions = [*statements]
    table = world.system.facts.run_table
    if table is not None:
        name, identity = sql.Identifier(*table.name.split(".")), sql.Identifier(table.columns["id"])
        delete = sql.SQL("DELETE FROM {} WHERE {} = {}")
        deletions += [delete.format(name, identity, sql.Literal(one.id)) for one in (run, bare)]
    before = await world.digest()
    app, janitor = await world.session("app", role="app"), await world.session("janitor", role="maintenance")
    for because, session, texts in (("app_deletes", app, deletions), ("attempts_alone", janitor, statements)):
        for text in texts:
            refusal = await session.sqlstate_of(text, keep=True)
            await expect_unchanged(world, before, because, f"{text.as_string()} ended with {refusal}")

    answer = await refused_purge(world)
    await expect_unchanged(world, before, "app_purges", f"a purge was answered {answer}")
    purged = await world.actor("janitor", role="maintenance").purge(older_than=AGE, limit=10)
    expect_equal((purged.runs, purged.attempts), (2, 1), "answer", "the maintenance role's purge")
    expect_equal((await world.snapshot()).runs, {}, "left_behind", "runs after the maintenance role's purge")


async def refused_purge(world: World) -> str:
    """What a purge by the application's role is answered, by whatever way a system says no."""
    try:
        return repr(await world.actor("worker").outcome(lambda tx: tx.purge(older_than=AGE, limit=10)))
    except Refuted as refusal:
        return refusal.because
