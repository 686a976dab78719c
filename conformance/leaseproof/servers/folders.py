"""Where servers keep their files. Owns the choice of a place, the folder of a run, its marker and the sweep.

Must not touch servers' protocols. A run's folder carries a marker that its supervisor holds locked: a marker of ours
that can be locked belongs to a dead run.
"""

import fcntl
import json
import os
import shutil
import signal
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from leaseproof.servers import segments
from leaseproof.servers.account import Account
from leaseproof.servers.errors import ServersError
from leaseproof.servers.processes import Process, end

CHOICE = "LEASEPROOF_TMP"
PREFIX = "leaseproof-"
MARKER = "leaseproof.json"
DATA = Path("postgres", "data")
MEMORY = Path("/dev/shm")  # noqa: S108 -- the place of POSIX shared memory, a tmpfs
MEMORY_NEEDS = 1 << 30
DISK_NEEDS = 256 << 20
LONGEST = 107 - len("/leaseproof-r0000000/postgres/.s.PGSQL.5432")  # unix(7): a socket's path holds 107 bytes


def places() -> list[tuple[Path, int]]:
    """Places to try with the free bytes that each must have: the caller's choice alone, else memory before disk."""
    chosen = os.environ.get(CHOICE)
    return [(Path(chosen), DISK_NEEDS)] if chosen else _usual_places()


def _usual_places() -> list[tuple[Path, int]]:
    temporary = [Path(tempfile.gettempdir()), Path("/tmp"), Path("/var/tmp")]  # noqa: S108 -- TMPDIR may be too long
    return [(MEMORY, MEMORY_NEEDS), *((place, DISK_NEEDS) for place in dict.fromkeys(temporary))]


def choose(account: Account | None) -> Path:
    """The first place that will do for servers that run as `account`."""
    reasons = []
    for place, needs in places():
        reason = objection(place, needs, account)
        if reason is None:
            return place
        reasons.append(f"{place}: {reason}")
    raise ServersError(
        f"no folder for the servers' files ({'; '.join(reasons)}): "
        f"free some space, or name a folder with a short path by {CHOICE}"
    )


def objection(place: Path, needs: int, account: Account | None) -> str | None:
    """Why the place won't do; None when it will."""
    try:
        usage = os.statvfs(place)
    except OSError as error:
        return (error.strerror or "can't be read").lower()
    free = usage.f_bavail * usage.f_frsize
    if len(os.fsencode(place)) > LONGEST:
        return f"path longer than {LONGEST} bytes, too long for a socket"
    if not os.access(place, os.W_OK | os.X_OK):
        return "not writable"
    if free < needs:
        return f"{free >> 20} MiB free of the {needs >> 20} MiB needed"
    if account is not None and not account.can_search(place):
        return "the servers' account can't reach it"
    return None


@dataclass
class RunFolder:
    """The folder of a running supervisor; the marker stays locked until the process ends or `remove` is called."""

    path: Path
    run: str
    account: Account | None
    servers: list[Process] = field(default_factory=list)
    marker: int = -1

    @classmethod
    def make(cls, place: Path, run: str, account: Account | None) -> "RunFolder":
        path = place / f"{PREFIX}{run}"
        try:
            path.mkdir(mode=0o700)
        except FileExistsError:
            raise ServersError(f"the folder {path} exists: another run has the id {run}; start again") from None
        folder = cls(path, run, account)
        try:
            folder._write_marker()
            path.chmod(0o700 if account is None else 0o711)
        except BaseException:
            shutil.rmtree(path)
            raise
        return folder

    def part(self, name: str) -> Path:
        """A folder below for one server, its own and nobody else's."""
        path = self.path / name
        path.mkdir(mode=0o700)
        if self.account is not None:
            os.chown(path, self.account.uid, self.account.gid)
        return path

    def note(self, pid: int) -> None:
        """Name a server in the marker, so that a sweep may end it."""
        process = Process.of(pid)
        if process is not None:
            self.servers.append(process)
            self._write_marker()

    def remove(self) -> None:
        """Remove the folder; its servers must have ended."""
        segments.release(self.path / DATA)
        shutil.rmtree(self.path)
        os.close(self.marker)

    def _write_marker(self) -> None:
        """Replace the marker by one that is locked before it has its name."""
        fresh = self.path / f".{MARKER}"
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        text = json.dumps({"run": self.run, "servers": [asdict(server) for server in self.servers]})
        os.write(descriptor, text.encode())
        fresh.rename(self.path / MARKER)
        if self.marker >= 0:
            os.close(self.marker)
        self.marker = descriptor


def sweep() -> list[Path]:
    """Remove the folders of our own dead runs, and end what still runs from them; answers what was removed."""
    searched = dict.fromkeys(place for place, _ in (*places(), *_usual_places()))
    return [folder for place in searched for folder in _ours(place) if _sweep_one(folder)]


def _ours(place: Path) -> Iterator[Path]:
    try:
        found = sorted(place.glob(f"{PREFIX}r*"))
    except OSError:
        return
    for folder in found:
        seen = _lstat(folder)
        if seen is not None and stat.S_ISDIR(seen.st_mode) and seen.st_uid == os.geteuid():
            yield folder


def _sweep_one(folder: Path) -> bool:
    try:
        descriptor = os.open(folder / MARKER, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return False  # without a marker nothing proves that it is ours
    try:
        if os.fstat(descriptor).st_uid != os.geteuid():
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            said = json.loads(os.read(descriptor, 1 << 16))
            servers = [Process(**server) for server in said["servers"]]
        except (BlockingIOError, ValueError, KeyError, TypeError):
            return False
        if f"{PREFIX}{said.get('run')}" != folder.name or not _same(descriptor, folder / MARKER):
            return False
        for server in servers:
            end(server, signal.SIGQUIT)
        segments.release(folder / DATA)
        shutil.rmtree(folder, ignore_errors=True)
        return True
    finally:
        os.close(descriptor)


def _same(descriptor: int, path: Path) -> bool:
    """Whether the marker that was locked is still the one that stands there."""
    seen, now = os.fstat(descriptor), _lstat(path)
    return now is not None and (seen.st_dev, seen.st_ino) == (now.st_dev, now.st_ino)


def _lstat(path: Path) -> os.stat_result | None:
    try:
        return path.lstat()
    except OSError:
        return None
