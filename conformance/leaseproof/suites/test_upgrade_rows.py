"""SHAPE-4: what the upgrade leaves alone beside the shape: columns that nobody would write so today."""

from datetime import timedelta
from typing import Any, Final

from leaseproof.checks import claim, expect
from leaseproof.suites.shapes import Anchors, Shape
from leaseproof.system import System
from leaseproof.world.facts import ACTIVE, RUN_FIELDS, STATUSES, TERMINAL
from leaseproof.world.plugin import OpenWorld

HOUR: Final = timedelta(hours=1)


def oddities(anchors: Anchors) -> dict[str, dict[str, Any]]:
    """What is odd about a run's columns beside its shape, none of which an upgrade is there to mend."""
    return {
        "no end": {"finished_at": None},
        "no start": {"started_at": None},
        "neither start nor end": {"started_at": None, "finished_at": None},
        "an end": {"finished_at": anchors.now},
        "an end before its start": {"started_at": anchors.now, "finished_at": anchors.now - HOUR},
        "a worker's label": {"worker_id": "long-gone"},
        "no worker's label": {"worker_id": None},
        "an owner": {"owner_token": "long-gone", "lease_expires_at": anchors.now - HOUR},
        "an owner without a lease": {"owner_token": "long-gone", "lease_expires_at": None},
        "no owner": {"owner_token": None, "lease_expires_at": None},
        "a heartbeat": {"heartbeat_at": anchors.now - HOUR},
        "many retries": {"retry_count": 99},
        "no count of retries": {"retry_count": None},
        "fewer than no retries": {"retry_count": -1},
        "a result": {"result": {"answer": 42}},
        "an error and a result": {"result": [], "error_type": "tool_error", "error_message": ""},
        "an error without a class": {"error_message": "it went wrong"},
        "no user": {"uid": None},
        "a directory": {"workdir": "/somewhere"},
    }


@claim("SHAPE-4", slow=True)
async def test_upgrade_leaves_odd_columns_as_they_are(worlds: OpenWorld, system_under_test: System) -> None:
    """Legal active rows, and ended ones with and without a creator, each odd in one way: byte for byte the same."""
    earlier = system_under_test.releases[0]
    world = await worlds(earlier)
    anchors = await Anchors.plant(world)
    writer = await world.row_writer("INSERT", RUN_FIELDS)
    chats = [Shape("chat", status, "own", creator=False, relation=False, conversation=True) for status in STATUSES]
    odd = [Shape("chat", status, None, creator=True, relation=False, conversation=True) for status in sorted(TERMINAL)]
    rows = {
        (identity := world.plant.name("run")): (shape, why, anchors.row(shape, identity) | fields)
        for shape in [*chats, *odd]
        for why, fields in oddities(anchors).items()
    }
    refusals = await writer.inserts([row for _, _, row in rows.values()])
    held = {run: (shape, why) for run, (shape, why, _) in rows.items() if refusals[run] is None}
    for statuses in (ACTIVE, TERMINAL):
        planted = [run for run, (shape, _) in held.items() if shape.status in statuses]
        expect(bool(planted), "legal_lost", f"the earlier release took no odd row that is {sorted(statuses)}")
    layout = await world.layout()
    before = await world.digest_of(layout)

    await world.upgrade(earlier)

    after = await world.digest_of(layout)
    changed = {
        table: sorted({*before[table]} ^ {*after[table]})[:4] for table in layout if before[table] != after[table]
    }
    expect(not changed, "rows_changed", f"rows that are new or gone after the upgrade, some of them: {changed}")
    stored = (await world.snapshot()).runs
    lost = [f"{shape.status} with {why}" for run, (shape, why) in held.items() if run not in stored]
    expect(not lost, "legacy_lost", f"{len(lost)} of {len(held)} odd rows can't be read back: {'; '.join(lost[:3])}")
