"""Processes by proof: owns who a process is and how it is ended; must not touch databases or folders (Linux)."""

import os
import select
import signal
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")


@dataclass(frozen=True)
class Process:
    """One process, unmistakably: a pid means something only with its start time, on one boot, in one pid namespace."""

    pid: int
    started: int
    machine: str

    @classmethod
    def of(cls, pid: int) -> "Process | None":
        """The living process with this pid; None where there is none (a zombie lives no more)."""
        fields = _stat(pid)
        if fields is None or fields[0] in "ZX":
            return None
        return cls(pid, started=int(fields[19]), machine=_machine())

    def alive(self) -> bool:
        return Process.of(self.pid) == self

    def children(self) -> list["Process"]:
        pids = [int(entry.name) for entry in PROC.iterdir() if entry.name.isdigit()]
        ours = [pid for pid in pids if (fields := _stat(pid)) is not None and int(fields[1]) == self.pid]
        return [child for pid in ours if (child := Process.of(pid)) is not None]


def end(process: Process, first: signal.Signals | None, grace: float = 0.3) -> None:
    """End the process: `first`, after `grace` seconds kill its children, and after as long again the process itself.

    None as `first` only waits: the process is about to end by itself.

    A postmaster whose backend is stopped can't end before that backend is killed; killed itself, it would leave its
    System V segment behind. So the children go first.
    """
    try:
        handle = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return
    try:
        if not process.alive():  # asked after the handle was taken: the handle now means this process or a dead one
            return
        if first is not None:
            signal.pidfd_send_signal(handle, first)
        if _ended(handle, grace):
            return
        for child in process.children():
            end(child, signal.SIGKILL, grace)
        if _ended(handle, grace):
            return
        signal.pidfd_send_signal(handle, signal.SIGKILL)
        _ended(handle, grace)
    except ProcessLookupError:
        return
    finally:
        os.close(handle)


def _ended(handle: int, seconds: float) -> bool:
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


def _stat(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat from the state on (proc(5)); the name before them may hold spaces."""
    try:
        text = (PROC / str(pid) / "stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    return text.rpartition(") ")[2].split()


def _machine() -> str:
    return f"{(PROC / 'sys/kernel/random/boot_id').read_text().strip()} {(PROC / 'self/ns/pid').readlink()}"
