"""Every shape that a run's row can have, and which of them are legal. Owns data alone; must not touch a database.

The oracle is written by hand from the specification (SHAPE-1), so that it shares no line with a system's constraint.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import product
from typing import Any, Final, Literal

from leaseproof.checks import expect
from leaseproof.world.facts import ACTIVE, RUN_FIELDS, RUN_TYPES, STATUSES, TERMINAL, Run
from leaseproof.world.plant import HOLDER
from leaseproof.world.rows import Refusals
from leaseproof.world.world import World

Scope = Literal["own", "other"] | None

SHAPE_FIELDS: Final = (
    "run_type",
    "status",
    "conversation_id",
    "scope_conversation_id",
    "created_by_run_id",
    "subagent_relation_id",
)

UNKNOWN_TYPE: Final = "batch"
UNKNOWN_STATUS: Final = "paused"

CHECK_VIOLATION: Final = "23514"
NOT_NULL_VIOLATION: Final = "23502"
INVALID_WORD: Final = "22P02"


@dataclass(frozen=True)
class Shape:
    """What the constraint reads of a row. `scope` is the run's own conversation, null where that is, or another."""

    run_type: str | None
    status: str | None
    scope: Scope
    creator: bool
    relation: bool
    conversation: bool

    @property
    def own_scope(self) -> bool:
        """Whether the scope is the run's own conversation; null is not null's own."""
        return self.conversation and self.scope == "own"

    @property
    def has_null(self) -> bool:
        """Whether a column that is judged is null."""
        no_scope = self.scope is None or (self.scope == "own" and not self.conversation)
        return (
            None in (self.run_type, self.status)
            or no_scope
            or not (self.creator and self.relation and self.conversation)
        )

    @property
    def legal(self) -> bool:
        """What the specification says: terminal rows pass, active ones only in the shape of their type."""
        if self.status in TERMINAL:
            return True
        if self.status not in ACTIVE or not self.conversation or self.scope is None:
            return False
        match self.run_type:
            case "chat":
                return self.own_scope and not self.creator and not self.relation
            case "resume":
                return self.own_scope and self.creator and not self.relation
            case "subagent":
                return self.creator and self.relation
            case _:
                return False

    @property
    def refusals(self) -> set[str]:
        """The SQLSTATEs by which PostgreSQL may refuse the row: the constraint's, NOT NULL's, an enum's."""
        unknown = self.run_type == UNKNOWN_TYPE or self.status == UNKNOWN_STATUS
        return (
            {CHECK_VIOLATION}
            | ({NOT_NULL_VIOLATION} if self.has_null else set())
            | ({INVALID_WORD} if unknown else set())
        )

    def with_nulls(self) -> Iterator["Shape"]:
        """The same with each column null in turn; its own scope goes with the conversation, and stays without it."""
        for column in ({"run_type": None}, {"status": None}, {"scope": None}, {"creator": False}, {"relation": False}):
            yield replace(self, **column)
        yield replace(self, conversation=False)
        yield replace(self, conversation=False, scope="other")

    def __str__(self) -> str:
        marks = [name for name in ("creator", "relation", "conversation") if getattr(self, name)]
        return f"{self.status} {self.run_type}, {self.scope} scope, {' '.join(marks) or 'nothing else'}"


def every_shape() -> Iterator[Shape]:
    """The whole table: 5 types, 9 statuses, 3 scopes, creator, relation and conversation set or null; 1,080 rows."""
    types = (*RUN_TYPES, UNKNOWN_TYPE, None)
    statuses = (*STATUSES, UNKNOWN_STATUS, None)
    scopes: tuple[Scope, ...] = ("own", "other", None)
    both = (True, False)
    return (Shape(*row) for row in product(types, statuses, scopes, both, both, both))


SHAPES: Final = tuple(every_shape())
LEGAL: Final = tuple(shape for shape in SHAPES if shape.legal)
ILLEGAL: Final = tuple(shape for shape in SHAPES if not shape.legal)
TERMINAL_SHAPES: Final = tuple(shape for shape in SHAPES if shape.status in TERMINAL)


@dataclass(frozen=True)
class Anchors:
    """The rows that shapes refer to, so that only the shape decides and no foreign key does."""

    own: str
    other: str
    creator: str
    relation: str
    now: datetime
    lease: timedelta

    @classmethod
    async def plant(cls, world: World) -> "Anchors":
        """Two conversations, a running creator in the other one, and a relation from there to the own one."""
        creator = await world.run("running", attempt=False)
        other = str(creator.conversation_id)
        own = await world.plant.conversation("user-1")
        relation = await world.plant.relation(other, own, "user-1")
        lease = timedelta(seconds=world.system.timeouts.lease)
        return cls(own, other, creator.id, relation, await world.plant.now(), lease)

    def row(self, shape: Shape, identity: str) -> dict[str, Any]:
        """A whole row of this shape, in the kit's terms; all but the shape is as a run of that status has it."""
        held, ended = shape.status in HOLDER, shape.status in TERMINAL
        conversation = self.own if shape.conversation else None
        return {
            **dict.fromkeys(RUN_FIELDS),
            "id": identity,
            "uid": "user-1",
            "run_type": shape.run_type,
            "status": shape.status,
            "conversation_id": conversation,
            "scope_conversation_id": {"own": conversation, "other": self.other, None: None}[shape.scope],
            "created_by_run_id": self.creator if shape.creator else None,
            "subagent_relation_id": self.relation if shape.relation else None,
            "owner_token": f"{identity}-owner" if held else None,
            "worker_id": "planted-worker" if held else None,
            "lease_expires_at": self.now + self.lease if held else None,
            "heartbeat_at": self.now if held else None,
            "retry_count": 0,
            "created_at": self.now,
            "started_at": self.now if held or ended else None,
            "finished_at": self.now if ended else None,
        }


def named(world: World, shapes: tuple[Shape, ...]) -> dict[str, Shape]:
    """A fresh id for each shape."""
    return {world.plant.name("run"): shape for shape in shapes}


def judge(shapes: Mapping[str, Shape], refusals: Refusals, by: str) -> None:
    """Refute unless PostgreSQL accepted exactly the legal shapes, and refused the others for their shape."""
    accepted = [shape for run, shape in shapes.items() if refusals[run] is None and not shape.legal]
    refused = {shape: refusals[run] for run, shape in shapes.items() if refusals[run] is not None and shape.legal}
    reasons = {
        shape: refusals[run]
        for run, shape in shapes.items()
        if not shape.legal and refusals[run] is not None and refusals[run] not in shape.refusals
    }
    expect(not accepted, "illegal_accepted", f"{by} accepted {some(accepted)}")
    expect(not refused, "legal_refused", f"{by} refused {some(refused)} with {set(refused.values())}")
    expect(not reasons, "refused_otherwise", f"{by} refused {some(reasons)} with {set(reasons.values())}")


def some(shapes: Any) -> str:
    """How many shapes, and the first few of them."""
    shown = [str(shape) for shape in list(shapes)[:3]]
    return f"{len(shapes)} shapes of {len(SHAPES)}: {'; '.join(shown)}"


def shape_fields(row: Mapping[str, Any] | Run) -> dict[str, Any]:
    """The fields that a shape is made of, of a row to write or of one read back."""
    if isinstance(row, Run):
        return {name: getattr(row, name) for name in SHAPE_FIELDS}
    return {name: row[name] for name in SHAPE_FIELDS}
