"""Runs a plan for a command and tells how it ended. Owns the folder of a run and the messages about its end."""

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from leaseproof.cli import INCONCLUSIVE
from leaseproof.cli.prepare import Kit
from leaseproof.cli.progress import Live
from leaseproof.cli.terminal import fail, say
from leaseproof.evidence.facts import FactLog, FactsNotWritten, Log, read_logs
from leaseproof.evidence.plan import Plan
from leaseproof.evidence.redact import redact
from leaseproof.evidence.runner import Job, run
from leaseproof.servers import start
from leaseproof.servers.errors import ServersError

KEPT_RUNS = 10


def execute(plan: Plan, reports: Path, kit: Kit, workers: int, variables: Mapping[str, str]) -> tuple[Log, ...]:
    """Run the plan and read its logs. Ends the command with exit code 2 where nothing could start."""
    folder = _folder(reports, plan)
    if not plan.items:
        return _nothing_to_do(plan, folder)
    job = Job(plan, folder, workers, kit.suites, kit.plugins, variables)
    try:
        with Live(len(plan.items)) as live:
            run(job, live.show if live.watched else None)
    except (KeyboardInterrupt, SystemExit):
        _drop(plan.run, variables)
        raise
    except OSError as error:
        fail(f"can't start the run in {folder}: {error.strerror or error}")
    logs = read_logs(folder)
    if not any(log.of("started") for log in logs):
        fail(f"nothing could start: {_why(job, logs)}")
    return logs


def _nothing_to_do(plan: Plan, folder: Path) -> tuple[Log, ...]:
    """An empty plan is done at once, and leaves a log like any other."""
    try:
        plan.write(folder / "plan.json")
        FactLog(folder, "main", run=plan.run, plan_sha256=plan.sha256).close(well=True)
    except (OSError, FactsNotWritten) as error:
        fail(f"can't write to {folder}: {error}", INCONCLUSIVE)
    return read_logs(folder)


def _folder(reports: Path, plan: Plan) -> Path:
    """A new folder for the run; of the earlier ones the last few are kept."""
    facts = reports / "facts"
    folder = facts / plan.run
    try:
        earlier = sorted((path.parent for path in facts.glob("r*/plan.json")), key=lambda path: path.stat().st_mtime)
        for old in earlier[: -KEPT_RUNS + 1]:
            shutil.rmtree(old, ignore_errors=True)
        folder.mkdir(parents=True)
    except OSError as error:
        fail(f"can't make the folder {folder}: {error.strerror}")
    return folder


def _why(job: Job, logs: tuple[Log, ...]) -> str:
    troubles = [str(fact["what"]) for log in logs for fact in log.of("trouble")]
    try:
        output = job.output_file.read_text(errors="replace").strip()
    except OSError:
        output = ""
    said = [line.removeprefix("ERROR: ") for line in output.splitlines() if line.startswith("ERROR: ")]
    last = "\n  ".join(output.splitlines()[-15:])
    return redact(
        "; ".join(dict.fromkeys(said or troubles)) or _no_room(job.folder) or last or "pytest said nothing"
    ) + (f"\n  (all of its output: {job.output_file})")


def _no_room(folder: Path) -> str:
    """Why nothing can be written to the folder; empty where something can."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            os.posix_fallocate(file.fileno(), 0, 1)
    except OSError as error:
        return f"can't write to {folder}: {error.strerror}"
    return ""


def _drop(run_id: str, variables: Mapping[str, str]) -> None:
    """An interrupted run on a given server leaves nothing there, or says what."""
    if (dsn := variables.get(start.DSN)) is None:
        return
    try:
        start.drop_run(dsn, run_id)
    except (ServersError, KeyboardInterrupt, SystemExit) as error:
        why = str(error) if isinstance(error, ServersError) else "the clean-up was interrupted"
        say(
            f"databases and roles named lp_{run_id}_* may be left on the server of --dsn: {why}. The next run there "
            "removes them"
        )
