"""The process that holds the embedded servers: owns their start and their end; must not touch what they serve.

`python -m leaseproof.servers.supervisor` reads one line of JSON (`Order`) from its standard input, starts the servers,
answers one line (`Started`, or {"error": ...}), and then waits for the end of that input or of its parent. Either way
the servers and their folder are gone at once: a controller that is killed with SIGKILL cleans up too. A supervisor
that is itself killed takes the servers with it (PR_SET_PDEATHSIG); its folder is swept at the next start.
"""

import ctypes
import json
import os
import resource
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NoReturn

from leaseproof.servers import folders, postgres, valkey
from leaseproof.servers.account import Account
from leaseproof.servers.errors import ServersError
from leaseproof.servers.folders import RunFolder
from leaseproof.servers.processes import Process, end

ENVIRONMENT = {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC"}
POLL_MS = 5
READY_SECONDS = 30.0
PR_SET_PDEATHSIG = 1  # prctl(2)
PR_SET_CHILD_SUBREAPER = 36
LIBC = ctypes.CDLL(None)


@dataclass(frozen=True)
class Order:
    """What to start; `valkey` is the path of its binary, None for PostgreSQL alone."""

    run: str
    place: str
    bin_dir: str
    version: str
    valkey: str | None
    account: tuple[int, int] | None
    parent: int


@dataclass(frozen=True)
class Started:
    """Where the servers are: the folder of PostgreSQL's socket, and the URL of Valkey."""

    folder: str
    socket_dir: str
    redis_url: str | None


class Orphaned(Exception):
    """The controller has ended, or asks for the end."""


class Lifeline:
    """Tells whether the controller still lives: its pipe is open and its process exists."""

    def __init__(self, descriptor: int, parent: int) -> None:
        self.poll = select.poll()
        self.poll.register(descriptor, select.POLLIN | select.POLLHUP)
        try:
            self.poll.register(os.pidfd_open(parent), select.POLLIN)
        except ProcessLookupError:
            raise Orphaned from None
        if os.getppid() != parent:
            raise Orphaned

    def hold(self, milliseconds: int | None) -> None:
        """Wait that long (None: for ever); raises Orphaned as soon as the controller is gone."""
        if self.poll.poll(milliseconds):
            raise Orphaned


class Supervisor:
    def __init__(self, order: Order, lifeline: Lifeline) -> None:
        self.order = order
        self.lifeline = lifeline
        self.account = Account(*order.account) if order.account else None
        self.folder = RunFolder.make(Path(order.place), order.run, self.account)
        self.postmaster: Process | None = None

    def start(self) -> Started:
        binaries = postgres.Binaries(Path(self.order.bin_dir), self.order.version)
        home = self.folder.part("postgres")
        data = self.folder.path / folders.DATA
        cache = self._launch_valkey() if self.order.valkey else None

        initdb = self._launch("initdb", binaries.initdb(data), home)
        while initdb.poll() is None:
            self.lifeline.hold(POLL_MS)
        if initdb.returncode != 0:
            self._fail("initdb", initdb, home)
        server = self._launch("postgres", binaries.serve(data, home), home)
        self.postmaster = Process.of(server.pid)
        self._until("postgres", server, home, lambda: _postgres_ready(data))
        if cache:
            valkey_server, where = cache
            self._until("valkey", valkey_server, where, lambda: _valkey_ready(where / valkey.SOCKET))
        return Started(str(self.folder.path), str(home), valkey.url(cache[1]) if cache else None)

    def stop(self) -> None:
        """End every server and remove the folder: nothing in it is worth a clean shutdown."""
        if self.postmaster is not None:
            end(self.postmaster, signal.SIGQUIT)
        _end_children()
        self.folder.remove()

    def _launch_valkey(self) -> tuple["subprocess.Popen[bytes]", Path]:
        where = self.folder.part("valkey")
        return self._launch("valkey", valkey.serve(Path(self.order.valkey or ""), where), where), where

    def _launch(self, name: str, command: list[str], home: Path) -> "subprocess.Popen[bytes]":
        account = self.account
        with (home / f"{name}.log").open("ab") as log:
            try:
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd=home,
                    env=ENVIRONMENT,
                    user=account.uid if account else None,
                    group=account.gid if account else None,
                    extra_groups=[] if account else None,
                    start_new_session=True,
                    preexec_fn=_end_with_parent,  # safe: this process has one thread
                )
            except OSError as error:
                raise ServersError(f"{command[0]} could not be started: {error.strerror}") from error
        self.folder.note(process.pid)
        return process

    def _until(self, name: str, process: "subprocess.Popen[bytes]", home: Path, condition: Callable[[], bool]) -> None:
        """Wait for the condition while the controller lives; the server must not end meanwhile."""
        for _ in range(int(READY_SECONDS * 1000 / POLL_MS)):
            if condition():
                return
            if process.poll() is not None:
                self._fail(name, process, home)
            self.lifeline.hold(POLL_MS)
        raise ServersError(
            f"{name} was not ready within {READY_SECONDS:.0f} s: is the machine overloaded?{_tail(name, home)}"
        )

    def _fail(self, name: str, process: "subprocess.Popen[bytes]", home: Path) -> NoReturn:
        raise ServersError(
            f"{name} ended with code {process.returncode} before it was ready ({self.order.bin_dir}){_tail(name, home)}"
        )


def main() -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _terminated)
    signal.signal(signal.SIGHUP, _terminated)
    LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1)  # what our children leave behind becomes ours to end
    supervisor = None
    try:
        line = sys.stdin.buffer.readline()
        if not line:
            return 0
        order = Order(**json.loads(line))
        lifeline = Lifeline(sys.stdin.fileno(), order.parent)
        folders.sweep()
        supervisor = Supervisor(order, lifeline)
        _answer(asdict(supervisor.start()))
        lifeline.hold(None)
    except Orphaned:
        pass
    except ServersError as error:
        _answer({"error": str(error)})
    except OSError as error:
        _answer({"error": f"the servers could not be started: {error}"})
    finally:
        for caught in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(caught, signal.SIG_IGN)
        if supervisor is not None:
            supervisor.stop()
    return 0


def _answer(said: object) -> None:
    try:
        sys.stdout.write(json.dumps(said) + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        raise Orphaned from None


def _terminated(number: int, frame: object) -> NoReturn:
    raise Orphaned


def _end_with_parent() -> None:
    """In the child: SIGQUIT, PostgreSQL's immediate shutdown, when the supervisor is killed; it must dump no core."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGQUIT)


def _end_children() -> None:
    """End and reap every process below this one, so that nobody writes to the folder while it is removed.

    Our own are killed. What a killed initdb leaves behind ends by itself at the end of its input, and removes its
    System V segment; it is killed only when it does not.
    """
    me = Process.of(os.getpid())
    first: signal.Signals | None = signal.SIGKILL
    while me is not None and (children := me.children()):
        for child in children:
            end(child, first)
            os.waitpid(child.pid, 0)
        first = None


def _postgres_ready(data: Path) -> bool:
    """The postmaster writes its state as the eighth line of postmaster.pid."""
    try:
        lines = (data / "postmaster.pid").read_text().splitlines()
    except FileNotFoundError:
        return False
    return len(lines) >= 8 and lines[7].strip() == "ready"


def _valkey_ready(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        try:
            client.connect(str(path))
            client.sendall(b"PING\r\n")
            return client.recv(16).startswith(b"+PONG")
        except (FileNotFoundError, ConnectionRefusedError):
            return False


def _tail(name: str, home: Path, lines: int = 5) -> str:
    try:
        text = (home / f"{name}.log").read_text(errors="replace").strip()
    except OSError:
        return ""
    last = " | ".join(text.splitlines()[-lines:])
    return f"; the end of its log: {last}" if last else ""


if __name__ == "__main__":
    sys.exit(main())
