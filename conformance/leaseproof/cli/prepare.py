"""What has to be right before a run starts. Owns the checks of the user's input; every fault ends with exit code 2."""

import difflib
import fcntl
import os
import sysconfig
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import typer

from leaseproof.claims.catalogue import BadCatalogue, Catalogue, load_catalogue
from leaseproof.claims.lock import BadLock, Lock, default_path, disagreements, load_lock
from leaseproof.cli.path import caller_last
from leaseproof.cli.terminal import fail
from leaseproof.controls.registry import Control, load_controls
from leaseproof.evidence.git import work_tree
from leaseproof.evidence.redact import redact
from leaseproof.evidence.runner import PLUGINS, SUITES
from leaseproof.loading import VARIABLE, Loaded, WrongSystem, default_system, load_system, raised_at
from leaseproof.servers import postgres, roles, start, valkey
from leaseproof.servers.errors import ServersError
from leaseproof.tiers import Given

ROOM = 64 * 1024 * 1024
"""Bytes that the reports' folder must be able to take."""
LOCK = ".leaseproof.lock"
"""The file in it that a run holds locked; it stays there."""


@dataclass(frozen=True)
class Kit:
    """The parts that a run is made of: the kit's own, unless a test of the kit puts others in their place.

    claims: the folder of the catalogue and of checks.lock.
    """

    suites: Path = SUITES
    claims: Path = default_path().parent
    plugins: tuple[str, ...] = PLUGINS


def kit(context: typer.Context) -> Kit:
    """The kit that the command was started with."""
    return context.obj if isinstance(context.obj, Kit) else Kit()


@dataclass(frozen=True)
class Ready:
    """A system with its controls, the claims with their expected checks, the kit, and the folder for reports."""

    kit: Kit
    folder: Path
    loaded: Loaded
    controls: Mapping[str, Control]
    catalogue: Catalogue
    lock: Lock


def ready(
    context: typer.Context, name: str | None, processes: str, folder: Path, replaced: Iterable[str] = ()
) -> Ready:
    """Everything that a run is planned from, whatever it is to try.

    replaced: files among the reports that the run writes anew, and that go where it can't be planned.
    """
    workers(processes, 1)
    parts, place = kit(context), reports(context, folder)
    try:
        return _loaded(name, parts, place)
    except BaseException:
        remove(place, replaced)
        raise


def remove(folder: Path, names: Iterable[str]) -> None:
    """Remove these files of an earlier run, so that nobody takes them for those of this one."""
    for name in names:
        (folder / name).unlink(missing_ok=True)


def _loaded(name: str | None, parts: Kit, place: Path) -> Ready:
    try:
        loaded = system(name)
        catalogue, lock = load_catalogue(parts.claims), load_lock(parts.claims / default_path().name)
    except (WrongSystem, BadCatalogue, BadLock) as error:
        fail(str(error))
    if wrong := disagreements(catalogue, lock):
        fail("catalogue and checks.lock don't fit: " + "; ".join(wrong[:5]))
    try:
        controls = load_controls(loaded.system.name)
    except Exception as error:  # noqa: BLE001 - other people's code is imported here
        problem = f"{raised_at(error)}: {type(error).__name__}: {error}"
        fail(f"can't load the negative controls of {loaded.system.name}{problem}")
    return Ready(parts, place, loaded, controls, catalogue, lock)


def system(name: str | None) -> Loaded:
    """The named system; without a name the default one, where it is plainly meant. Raises WrongSystem."""
    caller_last()
    if name:
        return load_system(name)
    found = load_system(default_system())
    project = work_tree(Path.cwd() / "here")
    if project is not None and not os.environ.get(VARIABLE) and not _of_project(found.file.resolve(), project):
        raise WrongSystem(
            f"the only system installed is {found.system.name} ({found.name}), which is no code of the project in "
            f"{project}; name the system to try: --system package.module:attribute, or --system {found.name}"
        )
    return found


def _of_project(file: Path, project: Path) -> bool:
    """Whether the file is the project's own: below it, and not a package in a Python environment that lies there."""
    packages = [Path(sysconfig.get_path(kind)).resolve() for kind in ("purelib", "platlib")]
    return file.is_relative_to(project) and not any(file.is_relative_to(place) for place in packages)


def known(what: str, names: Iterable[str], there: Iterable[str], listed_by: str) -> None:
    """End unless each name is there; the nearest one is suggested."""
    all_names = list(there)
    for name in names:
        if name not in all_names:
            near = difflib.get_close_matches(name.upper(), [one.upper() for one in all_names], n=1)
            nearest = [one for one in all_names if one.upper() in near]
            meant = f"; did you mean {nearest[0]}?" if nearest else ""
            fail(f"no {what} {name!r}{meant} ({listed_by} lists them)")


def workers(text: str, items: int) -> int:
    """How many processes: a number from 0 (everything in one), or `auto` for one a core."""
    if text == "auto":
        return max(1, min(len(os.sched_getaffinity(0)), items))
    if not text.isdecimal() or int(text) > 256:
        fail(f"-n {text!r} is no number of workers: give auto, 0 (no workers) or up to 256")
    return int(text)


def reports(context: typer.Context, folder: Path) -> Path:
    """The folder, made where it is not there, writable, with room, and no other run's while the command lasts."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        context.call_on_close(lambda: os.close(lock))
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".leaseproof-room-") as file:
            os.posix_fallocate(file.fileno(), 0, ROOM)
    except BlockingIOError:
        fail(f"another run writes to the reports' folder {folder}: wait for its end, or name another with --reports")
    except OSError as error:
        fail(
            f"can't use the reports' folder {folder}: {error.strerror}; it must be writable and take "
            f"{ROOM // 2**20} MiB. Free some space, or name another folder with --reports"
        )
    return folder.resolve()


def servers(given: Given) -> dict[str, str]:
    """The variables that name the given servers to the run, after seeing that they answer."""
    try:
        if given.dsn is not None:
            with roles.connect(given.dsn, "leaseproof") as connection:
                roles.check(connection)
        elif given.pg_bin is not None:
            postgres.find(given.pg_bin)
        if given.redis_url is not None:
            valkey.version(given.redis_url)
    except ServersError as error:
        fail(redact(str(error)))
    named = {start.DSN: given.dsn, start.REDIS_URL: given.redis_url, postgres.CHOICE: given.pg_bin}
    return {variable: value for variable, value in named.items() if value is not None}
