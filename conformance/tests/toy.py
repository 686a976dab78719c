"""A toy system, toy controls and toy suites for the tests of plan, plug-in, runner and command line.

Owns text that tests write below their temporary folder; needs no database.
"""

from pathlib import Path
from textwrap import dedent

SYSTEM = """
from leaseproof.system import Cap, Facts, System

PROMISED = frozenset({Cap.lease, Cap.execution_tree_cancel})


class Toy(System):
    name = "toy"
    version = "1"
    schema = "toy"
    capabilities = PROMISED
    not_promised = {cap: "a toy" for cap in Cap if cap not in PROMISED}
    facts = Facts(runs="", age="", lock="", plant={}, tables=())
    owners = {}

    async def install(self, database, release):
        pass

    def actor(self, dsn, *, statement_timeout=None):
        raise NotImplementedError


system = Toy()
"""

HEADER = """
import os
import anyio
import pytest
from leaseproof.checks import Refuted, Undecided, claim, expect, refute
"""

PLUGINS = ("anyio.pytest_plugin", "_hypothesis_pytestplugin", "xdist.plugin", "leaseproof.evidence.plugin")


def write_system(folder: Path) -> None:
    """`toy_system:system` below the folder."""
    (folder / "toy_system.py").write_text(SYSTEM)


def write_suite(folder: Path, body: str, name: str = "test_toy.py") -> Path:
    """A suite file in `folder`/suites; gives that folder."""
    suites = folder / "suites"
    suites.mkdir(exist_ok=True)
    (suites / name).write_text(HEADER + dedent(body))
    return suites
