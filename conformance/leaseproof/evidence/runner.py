"""Starts pytest for a plan, in a process group of its own, so that nothing of the caller's changes what is found.

Owns the command, its environment and its end; must not read results. The caller's pytest configuration, plug-ins,
conftest files and Python options stay out; the group dies with this process, and servers die with the group.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from io import RawIOBase
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from leaseproof import interrupts
from leaseproof.evidence.follow import Follower
from leaseproof.evidence.plan import Plan
from leaseproof.evidence.redact import inside_key, redact
from leaseproof.servers import folders

SUITES = Path(__file__).parents[1] / "suites"
INI = Path(__file__).with_name("pytest.ini")
PLUGINS = (
    "anyio.pytest_plugin",
    "_hypothesis_pytestplugin",
    "xdist.plugin",
    "leaseproof.servers.plugin",
    "leaseproof.world.plugin",
    "leaseproof.evidence.plugin",
)
KEPT = frozenset({"PYTHONPATH", "PYTHONHOME", "PYTHONUSERBASE", "PYTHONNOUSERSITE"})
FOREIGN = ("PYTHON", "PYTEST", "_PYTEST", "HYPOTHESIS", "XDIST")
TICK = 0.1
"""Seconds between two looks at the logs, for the progress display alone."""
CLEANED_WITHIN = 10.0
"""Seconds that the processes of an ended run get to vanish."""

Facts = list[dict[str, Any]]


@dataclass(frozen=True)
class Job:
    """One run: its plan, the folder for plan, logs and pytest's output, the suites, and how many workers.

    `workers` 0 runs everything in one process. `variables` are added to the environment.
    """

    plan: Plan
    folder: Path
    workers: int
    suites: Path = SUITES
    plugins: Sequence[str] = PLUGINS
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def plan_file(self) -> Path:
        """Where the plan lies."""
        return self.folder / "plan.json"

    @property
    def output_file(self) -> Path:
        """Where pytest's own output lies."""
        return self.folder / "pytest.log"

    @property
    def bytecode(self) -> Path:
        """Where the run's own bytecode lies while it lasts: one that was made earlier may be of another source."""
        return self.folder / "bytecode"

    def command(self) -> list[str]:
        """The command, without the lifeline."""
        seed = self.plan.seed
        return [
            *(sys.executable, "-P", "-m", "pytest", "-c", str(INI), "--rootdir", str(self.suites)),
            *("--noconftest", "--import-mode=importlib", "--capture=fd", "-q", "-rN", "--color=no", "--tb=short"),
            *(part for plugin in self.plugins for part in ("-p", plugin)),
            *("-p", "no:cacheprovider", "-p", "no:faulthandler"),
            *(("-n", str(self.workers), "--dist", "load") if self.workers else ()),
            *((f"--hypothesis-seed={seed}",) if seed else ()),
            *("--leaseproof-plan", str(self.plan_file), "--leaseproof-facts", str(self.folder)),
            *("--leaseproof-path", str(Path.cwd()), str(self.suites)),
        ]

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """The environment without what changes Python, pytest or Hypothesis; the caller's folder is no import path."""
        kept = {name: value for name, value in base.items() if name in KEPT or not name.startswith(FOREIGN)}
        here = Path.cwd()
        folders = [
            part for part in kept.pop("PYTHONPATH", "").split(os.pathsep) if part and Path(part).resolve() != here
        ]
        if folders:
            kept["PYTHONPATH"] = os.pathsep.join(folders)
        return {
            **kept,
            "PYTHONSAFEPATH": "1",
            "PYTHONPYCACHEPREFIX": str(self.bytecode),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "HYPOTHESIS_STORAGE_DIRECTORY": str(self.folder / "hypothesis"),
            "LEASEPROOF_RUN": self.plan.run,
            **self.variables,
        }


class Run:
    """A started job, as a context: left early, it is ended first."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._process: subprocess.Popen[bytes]
        self._output: threading.Thread
        self._lifeline = -1

    def __enter__(self) -> Self:
        self._job.plan.write(self._job.plan_file)
        far, self._lifeline = os.pipe()
        try:
            self._process = subprocess.Popen(
                [*self._job.command(), "--leaseproof-lifeline", str(far)],
                env=self._job.environment(os.environ),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                cwd=None if os.access(".", os.R_OK | os.X_OK) else self._job.folder,  # Python and pytest look about
                start_new_session=True,
                pass_fds=(far,),
            )
        except BaseException:
            os.close(self._lifeline)
            raise
        finally:
            os.close(far)
        self._output = threading.Thread(target=_save, args=(self._process.stdout, self._job.output_file), daemon=True)
        self._output.start()
        return self

    def wait(self, on_facts: Callable[[Facts], None] | None = None) -> int:
        """Wait for pytest's exit code; `on_facts` is called with what the logs gained."""
        follower = Follower(self._job.folder)
        while on_facts is not None:
            try:
                self._process.wait(TICK)
            except subprocess.TimeoutExpired:
                on_facts(follower.read())
            else:
                on_facts(follower.read())
                break
        return self._process.wait()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            code = self._process.poll()
            if code is None or code < 0:  # a leader that was killed may leave workers behind
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._output.join(CLEANED_WITHIN)
            _until_removed(self._job.plan.run)
            shutil.rmtree(self._job.bytecode, ignore_errors=True)
        finally:
            os.close(self._lifeline)


def run(job: Job, on_facts: Callable[[Facts], None] | None = None) -> int:
    """Run the job to its end; pytest's exit code. KeyboardInterrupt passes on when everything is cleaned up."""
    with Run(job) as started:
        return started.wait(on_facts)


def _until_removed(run: str) -> None:
    """Wait until the supervisor of the servers has ended: the folder of the run is the last that it removes."""
    folders_of_run = [place / f"{folders.PREFIX}{run}" for place, _ in folders.places()]
    last = time.monotonic() + CLEANED_WITHIN
    while any(folder.exists() for folder in folders_of_run) and time.monotonic() < last and not interrupts.again():
        time.sleep(0.01)


def _save(stream: IO[bytes], path: Path) -> None:
    """Copy pytest's output to its file without secrets, a key as a whole; what a full disk does not take is dropped."""
    try:
        path.touch()
    except OSError:
        path = Path(os.devnull)
    with stream, path.open("wb", buffering=0) as file:
        text, inside = "", False
        for line in map(_decoded, stream):
            text, inside = text + line, inside_key(line, inside)
            if not inside:
                _put(file, text)
                text = ""
        _put(file, text)


def _decoded(line: bytes) -> str:
    return line.decode(errors="replace")


def _put(file: RawIOBase, text: str) -> None:
    with contextlib.suppress(OSError):
        file.write(redact(text).encode())
