"""Fixtures of the reference's tests: databases with the reference in them, on the servers of the session."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from agentrun_reference.conformance import system
from agentrun_reference.manager import SchemaManager
from leaseproof.servers.cluster import Cluster, Scratch
from leaseproof.system import Database
from leaseproof.world.world import World


async def nothing(database: Database) -> None:
    """Install nothing."""


@pytest.fixture
async def reference_world(cluster: Cluster) -> AsyncIterator[World]:
    """A world with the current release of the reference."""
    world = await World.open(system, cluster)
    yield world
    await world.close()


@pytest.fixture
async def new_database(cluster: Cluster) -> AsyncIterator[Callable[[], Awaitable[Scratch]]]:
    """Makes empty databases."""
    made: list[Scratch] = []

    async def new() -> Scratch:
        made.append(cluster.clone(await cluster.template("empty", nothing)))
        return made[-1]

    yield new
    for scratch in made:
        cluster.discard(scratch)


Connect = Callable[[str], psycopg.Connection[dict[str, Any]]]


@pytest.fixture
def connect() -> Iterator[Connect]:
    """Opens plain connections in autocommit, whose rows are dictionaries."""
    opened: list[psycopg.Connection[dict[str, Any]]] = []

    def to(dsn: str) -> psycopg.Connection[dict[str, Any]]:
        opened.append(psycopg.connect(dsn, autocommit=True, row_factory=dict_row))
        return opened[-1]

    yield to
    for connection in opened:
        connection.close()


def manager_of(scratch: Scratch) -> SchemaManager:
    """The schema manager of this database."""
    return SchemaManager(
        scratch.owner_dsn, application_role=scratch.app_role, maintenance_role=scratch.maintenance_role
    )
