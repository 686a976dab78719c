"""Active runs of every illegal shape, as data from before the constraint has them. Owns their planting.

Must not call operations of the system.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from leaseproof.suites.shapes import UNKNOWN_TYPE
from leaseproof.world.facts import Run
from leaseproof.world.world import World

INVALID_SCOPE = "invalid_runtime_scope"
LEASE_EXPIRED = "worker_lease_expired"


@dataclass(frozen=True)
class Surroundings:
    """A legal running run in a conversation of its own, and a relation from that conversation to another."""

    creator: Run
    relation: str

    @classmethod
    async def plant(cls, world: World) -> "Surroundings":
        """The creator is owned and its lease is live."""
        creator = await world.run("running")
        child = await world.plant.conversation("user-1")
        return cls(creator, await world.plant.relation(str(creator.conversation_id), child, "user-1"))

    def kinds(self) -> dict[str, dict[str, Any]]:
        """What makes each kind illegal; a run without these fields is a chat with a conversation of its own."""
        related = {"subagent_relation_id": self.relation}
        created = {"created_by_run_id": self.creator.id}
        foreign = {"scope_conversation_id": self.creator.conversation_id}
        no_scope, no_conversation = {"scope_conversation_id": None}, {"conversation_id": None}
        resume, subagent = {"run_type": "resume"}, {"run_type": "subagent"}
        return {
            "chat without scope": no_scope,
            "chat without conversation": no_conversation,
            "chat without both": no_scope | no_conversation,
            "chat in a foreign scope": foreign,
            "chat with a creator": created,
            "chat with a relation": related,
            "resume without creator": resume,
            "resume with a relation": resume | created | related,
            "resume in a foreign scope": resume | created | foreign,
            "resume without scope": resume | created | no_scope,
            "subagent without relation": subagent | created,
            "subagent without creator": subagent | related,
            "subagent without scope": subagent | created | related | no_scope,
            "subagent without conversation": subagent | created | related | no_conversation,
            "run of an unknown type": {"run_type": UNKNOWN_TYPE},
            "run of no type": {"run_type": None},
        }


FEW = ("chat without scope", "resume without creator", "subagent without relation")
"""A kind of each type, for cases beside the one in which every kind is tried."""

BELOW = ("subagent without relation", "subagent without scope", "subagent without conversation")
"""The kinds that belong to their creator's tree."""


async def plant_every_kind(
    world: World, around: Surroundings, status: str, *, attempt: bool = True, **fields: Any
) -> dict[str, Run]:
    """An active run of each illegal shape that the table can hold; `fields` are given to all of them."""
    return await plant_kinds(tuple(around.kinds()), world, around, status, attempt=attempt, **fields)


async def plant_kinds(
    kinds: Sequence[str], world: World, around: Surroundings, status: str, *, attempt: bool = True, **fields: Any
) -> dict[str, Run]:
    """The same for some kinds."""
    planted: dict[str, Run] = {}
    offered = around.kinds()
    async with world.plant.lawless():
        for kind in kinds:
            illegal = offered[kind]
            run = await world.plant.try_run(status, attempt=attempt, **illegal, **fields)
            if run is not None:
                planted[kind] = run
    return planted


async def long_ago(world: World) -> dict[str, Any]:
    """Fields of a run whose lease has expired (ageing would be an update, which the constraint refuses)."""
    lease = timedelta(seconds=world.system.timeouts.lease)
    now = await world.plant.now()
    return {"lease_expires_at": now - lease, "heartbeat_at": now - 2 * lease, "started_at": now - 2 * lease}
