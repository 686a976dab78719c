"""Controllers of servers as processes of their own, for tests that end them in unkind ways."""

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from psycopg.conninfo import conninfo_to_dict

from leaseproof.servers.address import Address
from leaseproof.servers.processes import Process

HOLD = """
import sys
from leaseproof.servers.start import Choice, start
servers = start(Choice.from_environment())
print(servers.address.to_json(), flush=True)
sys.stdin.read()
servers.close()
"""
DEADLINE = 120.0


@dataclass
class Controller:
    """A running controller: `everything` is the supervisor with its servers, and their backends."""

    process: "subprocess.Popen[str]"
    address: Address

    @property
    def folder(self) -> Path:
        return Path(str(conninfo_to_dict(self.address.admin_dsn)["host"])).parent

    def supervisor(self) -> Process:
        (only,) = known(self.process.pid).children()
        return only

    def everything(self) -> list[Process]:
        return descendants(known(self.process.pid))


def environment(**more: str) -> dict[str, str]:
    own = {name: value for name, value in os.environ.items() if not name.startswith("LEASEPROOF_")}
    return own | more


def launch(user: int | None = None, python: str = sys.executable, **more: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [python, "-c", HOLD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(**more),
        user=user,
        group=user,
        extra_groups=None if user is None else [],
        cwd="/",
    )


def ready(process: "subprocess.Popen[str]") -> Controller:
    assert process.stdout is not None
    assert process.stderr is not None
    line = process.stdout.readline()
    assert line, process.stderr.read()
    return Controller(process, Address(**json.loads(line)))


@contextmanager
def controller(user: int | None = None, python: str = sys.executable, **more: str) -> Iterator[Controller]:
    """A controller that has its servers; ended well, if it still runs, at the end."""
    process = launch(user, python, **more)
    try:
        yield ready(process)
    finally:
        process.communicate(timeout=DEADLINE)


def known(pid: int) -> Process:
    process = Process.of(pid)
    assert process is not None
    return process


def descendants(process: Process) -> list[Process]:
    found = process.children()
    return found + [below for child in found for below in descendants(child)]


def still_there(processes: list[Process], within: float) -> list[Process]:
    """Which of the processes live when `within` seconds have passed; waits on their ends."""
    deadline = time.monotonic() + within
    for process in processes:
        try:
            handle = os.pidfd_open(process.pid)
        except ProcessLookupError:
            continue
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        if process.alive():
            poll.poll(max(0.0, deadline - time.monotonic()) * 1000)
        os.close(handle)
    return [process for process in processes if process.alive()]
