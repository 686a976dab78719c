"""Execution trees: the order of the outline, and the order of locks."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from leaseproof.world.facts import RUN_FIELDS, Run
from leaseproof.world.trees import Branch, Seed, Tree, assemble, seeds, uniform

BORN = datetime(2026, 1, 1, tzinfo=UTC)
OUTLINE: Branch = ("running", [("running", ["pending", "completed"]), ("failed", ["running"])])


def planted(outline: Branch, minutes: list[int]) -> Tree:
    """A tree of runs r0, r1, ... in the order of the outline, born so many minutes after BORN."""
    empty = Run(**dict.fromkeys(RUN_FIELDS))
    found = seeds(outline)
    runs = [
        replace(empty, id=f"r{n}", status=seed.status, created_at=BORN + timedelta(minutes=minutes[n]))
        for n, seed in enumerate(found)
    ]
    return assemble(found, runs)


def test_seeds_stand_in_the_order_of_the_outline_behind_their_creators() -> None:
    assert seeds(OUTLINE) == [
        Seed("running", 0, None),
        Seed("running", 1, 0),
        Seed("pending", 2, 1),
        Seed("completed", 2, 1),
        Seed("failed", 1, 0),
        Seed("running", 2, 4),
    ]


def test_levels_mix_cousins_by_age() -> None:
    tree = planted(OUTLINE, [9, 5, 4, 1, 3, 2])
    assert [[run.id for run in level] for level in tree.levels] == [["r0"], ["r4", "r1"], ["r3", "r5", "r2"]]
    assert [run.id for run in tree.descendants] == ["r4", "r1", "r3", "r5", "r2"]
    assert [run.id for run in tree.active] == ["r0", "r1", "r5", "r2"]


def test_runs_of_equal_age_go_by_id() -> None:
    tree = planted(("running", ["pending"] * 3), [0, 0, 0, 0])
    assert [run.id for run in tree.descendants] == ["r1", "r2", "r3"]


def test_uniform_tree_has_width_to_the_power_of_depth_leaves() -> None:
    assert [seed.depth for seed in seeds(uniform(2, 2))] == [0, 1, 2, 2, 1, 2, 2]
