"""pytest fixtures of the suites. Owns their life; the work is done in `leaseproof.world.world`."""

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from leaseproof.servers.cluster import Cluster
from leaseproof.system import System
from leaseproof.world.world import World

OpenWorld = Callable[[str], Awaitable[World]]


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Checks run on asyncio."""
    return "asyncio"


@pytest.fixture
async def worlds(system_under_test: System, cluster: Cluster) -> AsyncIterator[OpenWorld]:
    """Opens worlds with any release of the system installed; closes them at the end."""
    opened: list[World] = []

    async def open_world(release: str) -> World:
        opened.append(await World.open(system_under_test, cluster, release))
        return opened[-1]

    yield open_world
    for world in opened:
        await world.close()


@pytest.fixture
async def world(system_under_test: System, worlds: OpenWorld) -> World:
    """A world with the current release installed."""
    return await worlds(system_under_test.releases[-1])
