"""A toy system, toy controls and toy suites for the tests of plan, plug-in, runner and command line.

Owns text that tests write below their temporary folder; needs no database.
"""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from textwrap import dedent
from typing import Any

from leaseproof.controls.grid import observed
from leaseproof.evidence.facts import read_logs
from leaseproof.evidence.plan import Item, Plan
from leaseproof.evidence.runner import Job
from leaseproof.servers.address import new_run

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


def write_plan_job(folder: Path, suites: Path, checks: Sequence[str], *, workers: int = 0, **plan: Any) -> Job:
    """A job that tries these checks on the toy, which is put where the test stands."""
    write_system(Path.cwd())
    facts = folder / "facts"
    facts.mkdir(parents=True, exist_ok=True)
    items = tuple(Item(system="subject", check=check) for check in checks)
    given = {"run": new_run(), "system": "toy_system:system", "subject": "toy", "mode": "verify", "items": items}
    return Job(Plan(**{**given, **plan}), facts, workers, suites=suites, plugins=PLUGINS)


def outcomes(job: Job) -> dict[str, str]:
    """What became of each check that was started on the subject, as a reader of the logs has to take it."""
    seen = observed(job.plan, read_logs(job.folder))
    return {check: one.outcome for check, one in seen.get("subject", {}).items()}


def troubles(job: Job) -> list[str]:
    """What the logs say went wrong around the checks."""
    return [str(fact["what"]) for log in read_logs(job.folder) for fact in log.of("trouble")]


def run_by_hand(job: Job, *arguments: str, python: Sequence[str] = (), **variables: str) -> int:
    """Start the job's command with more arguments, as a meddler would; pytest's exit code."""
    job.plan.write(job.plan_file)
    interpreter, *rest = job.command()
    return run_command(job, [interpreter, *python, *rest, *arguments], **variables)


def run_command(job: Job, command: Sequence[str], **variables: str) -> int:
    """Run the command in the job's environment; its exit code."""
    environment = {**job.environment(os.environ), **variables}
    with job.output_file.open("wb") as output:
        return subprocess.run(command, env=environment, stdout=output, stderr=output, check=False).returncode
