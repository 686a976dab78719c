"""A toy system, toy controls and toy suites for the tests of plan, plug-in, runner and command line.

Owns text that tests write below their temporary folder; needs no database.
"""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import dedent
from typing import Any

from leaseproof.claims.lock import Expected, Lock, render_lock
from leaseproof.controls.grid import observed
from leaseproof.evidence.facts import read_logs
from leaseproof.evidence.model import read_evidence
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
    owners = {"run repository": "toy_system:Toy"}
    broken = False

    async def install(self, database, release):
        pass

    def actor(self, dsn, *, statement_timeout=None):
        raise NotImplementedError


system = Toy()
"""

CONTROLS = """
from leaseproof.controls.registry import Control
from toy_system import Toy


class Broken(Toy):
    broken = True


controls = (
    Control("broken", "defect", "toy", "It is broken.", Broken, "TOY-1", "CAUGHT_BY", "broken", frozenset({"TOY-2"})),
    Control("same", "variant", "toy", "It is the same.", Toy),
)
"""

CLAIM = """
[[claim]]
id = "TOY-1"
revision = 1
kind = "core"
records = ["T1"]
must = "The toy is whole, as a toy should be."
failure_surface = "The toy is broken, and somebody cries."
semantic_owner = "run repository"
tier = "pg"
requires = ["lease"]
negative_case = "With a broken toy, the check says so."
controls = ["broken"]
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
    """A job that tries these checks on the toy, which is put into `folder`: the test has to stand there."""
    write_system(folder)
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


def write_project(folder: Path, suite: str, expected: Mapping[str, Sequence[str]], caught_by: str = "test_a") -> Path:
    """A committed project: toy system, one defect of it, a suite, and claims that expect these checks.

    The defect `broken` refutes TOY-1 by `caught_by`. The suite's checks should expect `not system_under_test.broken`.
    """
    suites = write_suite(folder, suite)
    write_system(folder)
    (folder / "toy_controls.py").write_text(CONTROLS.replace("CAUGHT_BY", caught_by))
    distribution = folder / "toy-1.dist-info"
    distribution.mkdir()
    (distribution / "METADATA").write_text("Metadata-Version: 2.1\nName: toy\nVersion: 1\n")
    (distribution / "entry_points.txt").write_text("[leaseproof.controls]\ntoy = toy_controls:controls\n")
    claims = folder / "claims"
    claims.mkdir()
    (claims / "toy.toml").write_text("".join(CLAIM.replace("TOY-1", claim) for claim in expected))
    rows = {
        claim: Expected(1, tuple(f"{claim} {check}" for check in checks), planned=not checks, control="broken")
        for claim, checks in expected.items()
    }
    (claims / "checks.lock").write_text(render_lock(Lock(rows)))
    (folder / ".gitignore").write_text("__pycache__/\nreports/\n")
    commit(folder)
    return suites


def commit(folder: Path) -> None:
    """Commit everything in the folder, in a repository that is made where there is none."""
    git = ["git", "-C", str(folder), "-c", "user.name=t", "-c", "user.email=t@example.org"]
    if not (folder / ".git").exists():
        subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "add", "-A"], check=True)
    subprocess.run([*git, "commit", "-q", "-m", "state"], check=True)


def cli(folder: Path, plugins: Sequence[str] = PLUGINS) -> list[str]:
    """The command line with the project's suites and claims in place of the kit's, as a command."""
    program = (
        "from pathlib import Path; from leaseproof.cli import main; from leaseproof.cli.prepare import Kit; "
        f"main(Kit(Path({str(folder / 'suites')!r}), Path({str(folder / 'claims')!r}), {tuple(plugins)!r}))"
    )
    return [sys.executable, "-P", "-c", program]


def leaseproof(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the command line in the project."""
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **variables}
    return subprocess.run(
        [*cli(folder), *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def results(folder: Path, name: str = "evidence.json") -> dict[str, str]:
    """What the evidence says of each claim, with its reason."""
    evidence = read_evidence(folder / "reports" / name)
    return {row.id: f"{row.result}: {row.reason}" for row in evidence.claims}
