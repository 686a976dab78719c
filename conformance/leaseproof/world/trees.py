"""Execution trees of any depth and width. Owns their shape; must not write rows itself."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from leaseproof.world.facts import ACTIVE, Run

Branch = str | tuple[str, Sequence["Branch"]]
"""A run's status, or its status and its subagents."""


@dataclass(frozen=True)
class Node:
    """A run of the tree, with its depth (0 for the root) and its subagents."""

    run: Run
    depth: int
    children: list["Node"] = field(default_factory=list)

    def walk(self) -> Iterator["Node"]:
        """This node and all below it, creators first."""
        yield self
        for child in self.children:
            yield from child.walk()


@dataclass(frozen=True)
class Tree:
    """A planted tree. Runs are given in the order of locks: level by level, in (created_at, id) within a level."""

    top: Node

    @property
    def root(self) -> Run:
        """The root run."""
        return self.top.run

    @property
    def levels(self) -> list[list[Run]]:
        """The runs of each depth, in (created_at, id)."""
        levels: dict[int, list[Run]] = {}
        for node in self.top.walk():
            levels.setdefault(node.depth, []).append(node.run)
        return [sorted(levels[depth], key=_order) for depth in sorted(levels)]

    @property
    def runs(self) -> list[Run]:
        """Every run, in the order of locks."""
        return [run for level in self.levels for run in level]

    @property
    def descendants(self) -> list[Run]:
        """Every run but the root, in the order of locks."""
        return self.runs[1:]

    @property
    def active(self) -> list[Run]:
        """The active runs, in the order of locks."""
        return [run for run in self.runs if run.status in ACTIVE]

    @property
    def ids(self) -> set[str]:
        """The ids of every run."""
        return {run.id for run in self.runs}


def _order(run: Run) -> tuple[Any, str]:
    return (run.created_at, run.id)


@dataclass(frozen=True)
class Seed:
    """A run of a tree that is still to be planted; `creator` is its creator's place in the list of seeds."""

    status: str
    depth: int
    creator: int | None


def seeds(branch: Branch) -> list[Seed]:
    """The branch's runs, each before its subagents, siblings in the order given."""
    found: list[Seed] = []

    def visit(branch: Branch, depth: int, creator: int | None) -> None:
        status, below = (branch, ()) if isinstance(branch, str) else branch
        place = len(found)
        found.append(Seed(status, depth, creator))
        for child in below:
            visit(child, depth + 1, place)

    visit(branch, 0, None)
    return found


def assemble(planted: Sequence[Seed], runs: Sequence[Run]) -> Tree:
    """The tree of these seeds, `runs` being their rows."""
    nodes = [Node(run, seed.depth) for seed, run in zip(planted, runs, strict=True)]
    for seed, node in zip(planted, nodes, strict=True):
        if seed.creator is not None:
            nodes[seed.creator].children.append(node)
    return Tree(nodes[0])


def uniform(depth: int, width: int, status: str = "running") -> Branch:
    """A tree in which every run above `depth` has `width` subagents, all of one status."""
    return status if depth == 0 else (status, [uniform(depth - 1, width, status)] * width)
