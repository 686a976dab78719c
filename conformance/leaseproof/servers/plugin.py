"""The pytest plugin of the servers: owns the session fixture `cluster`; must not touch claims or systems.

The controller of a run starts the servers once; each process of the run has a `Cluster` of its own on them.
"""

import sys
from collections.abc import Iterator
from typing import Any

import pytest

from leaseproof.servers.address import Address
from leaseproof.servers.cluster import Cluster
from leaseproof.servers.errors import ServersError
from leaseproof.servers.start import Choice, Servers, misleading_variables, start

WORKER_KEY = "leaseproof_address"
SERVERS = pytest.StashKey[Servers]()
ENVIRONMENT = pytest.StashKey[pytest.MonkeyPatch]()


def address_of(config: pytest.Config) -> Address:
    """Where the servers are; the controller starts them at the first call."""
    if hasattr(config, "workerinput"):
        return Address.from_json(config.workerinput[WORKER_KEY])
    if SERVERS not in config.stash:
        try:
            config.stash[SERVERS] = start(Choice.from_environment())
        except ServersError as error:
            raise pytest.UsageError(str(error)) from error
    return config.stash[SERVERS].address


def pytest_configure(config: pytest.Config) -> None:
    patch = config.stash[ENVIRONMENT] = pytest.MonkeyPatch()
    for name in misleading_variables(Choice.from_environment()):
        patch.delenv(name, raising=False)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """xdist: hand the address to a worker before it starts."""
    node.workerinput[WORKER_KEY] = address_of(node.config).to_json()


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> None:
    """Without workers: servers that can't start end the session as a usage error, not one test after another."""
    if not session.config.option.collectonly and any("cluster" in _fixtures(item) for item in session.items):
        address_of(session.config)


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    servers = config.stash.get(SERVERS, None)
    if servers is not None:
        del config.stash[SERVERS]
        try:
            servers.close()
        except ServersError as error:
            sys.stderr.write(f"leaseproof: {error}\n")
    config.stash[ENVIRONMENT].undo()


@pytest.fixture(scope="session")
def cluster(pytestconfig: pytest.Config) -> Iterator[Cluster]:
    """This process's databases on the servers of the run."""
    process = getattr(pytestconfig, "workerinput", {}).get("workerid", "main")
    opened = Cluster(address_of(pytestconfig), process)
    yield opened
    opened.close()


def _fixtures(item: pytest.Item) -> list[str]:
    return getattr(item, "fixturenames", [])
