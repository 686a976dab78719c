"""However a command ends, nothing of its run is left: no process, no folder of servers."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import servers_of_tests
import toy

from leaseproof import interrupts
from leaseproof.cli import execute
from leaseproof.servers import folders, roles, start

WAITING = """
@claim("TOY-1")
async def test_a(system_under_test, cluster):
    open(f"started-{os.getpid()}", "w").close()
    await anyio.sleep(600)

@claim("TOY-1")
async def test_b(system_under_test, cluster):
    open(f"started-{os.getpid()}", "w").close()
    await anyio.sleep(600)
"""
PLUGINS = (*toy.PLUGINS[:-1], "leaseproof.servers.plugin", toy.PLUGINS[-1])
LONGEST = 60.0
"""Seconds after which a test gives up: far more than anything here takes."""


def until(condition: Callable[[], bool]) -> float:
    """Wait for the condition; how many seconds it took."""
    begin = time.monotonic()
    while not condition():
        assert time.monotonic() - begin < LONGEST
        time.sleep(0.005)
    return time.monotonic() - begin


@pytest.fixture(params=[0, 2], ids=["one process", "two workers"])
def started(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator["Started"]:
    """A run that is in the middle of its checks."""
    toy.write_project(tmp_path, WAITING, {"TOY-1": ["test_a", "test_b"]})
    process = subprocess.Popen(
        [*toy.cli(tmp_path, PLUGINS), "verify", "--system", "toy_system:system", "-n", str(request.param)],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        until(lambda: process.poll() is not None or len(list(tmp_path.glob("started-*"))) == max(1, request.param))
        assert process.poll() is None, process.communicate()
        yield Started(process, tmp_path)
    finally:
        process.kill()
        process.communicate()


class Started:
    """The command, everything that it started, and the folder of its servers."""

    def __init__(self, command: "subprocess.Popen[str]", folder: Path) -> None:
        self.command = command
        self.processes = psutil.Process(command.pid).children(recursive=True)
        (run,) = (path.name for path in (folder / "reports" / "facts").iterdir())
        self.servers = [path for place, _ in folders.places() if (path := place / f"{folders.PREFIX}{run}").exists()]
        assert len(self.servers) == 1
        assert len(self.processes) >= 4  # pytest, the supervisor, PostgreSQL, Valkey

    def gone(self) -> bool:
        """Whether nothing of it is left; a process that only waits to be buried counts as gone."""
        alive = [process for process in self.processes if process.is_running() and process.status() != "zombie"]
        return not alive and not any(path.exists() for path in self.servers)


def test_an_interrupt_ends_everything_before_the_command_returns(started: Started) -> None:
    started.command.send_signal(signal.SIGINT)
    _, said = started.command.communicate(timeout=LONGEST)
    assert started.command.returncode == 130
    assert said == "leaseproof: interrupted\n"
    assert started.gone()


def test_a_terminated_command_ends_everything_too(started: Started) -> None:
    started.command.terminate()
    started.command.communicate(timeout=LONGEST)
    assert started.command.returncode == 128 + signal.SIGTERM
    assert started.gone()


def test_a_second_interrupt_ends_the_command_at_once(started: Started) -> None:
    supervisor = next(one for one in started.processes if "leaseproof.servers.supervisor" in one.cmdline())
    supervisor.suspend()  # the clean-up does not end by itself now
    try:
        started.command.send_signal(signal.SIGINT)
        pytest_process = next(one for one in started.processes if "pytest" in one.cmdline())
        until(lambda: not pytest_process.is_running() or pytest_process.status() == "zombie")
        with pytest.raises(subprocess.TimeoutExpired):
            started.command.wait(0.5)  # it waits for the clean-up
        started.command.send_signal(signal.SIGINT)
        _, said = started.command.communicate(timeout=LONGEST)
    finally:
        supervisor.resume()
    assert started.command.returncode == 130
    assert "Traceback" not in said
    until(started.gone)


def test_a_killed_command_takes_its_run_with_it(
    started: Started, record_property: Callable[[str, object], None]
) -> None:
    started.command.kill()
    started.command.wait()
    record_property("seconds", until(started.gone))


def test_a_killed_pytest_is_inconclusive(started: Started) -> None:
    (leader,) = [one for one in started.processes if os.getpgid(one.pid) == one.pid and "pytest" in one.cmdline()]
    os.killpg(leader.pid, signal.SIGKILL)
    output, said = started.command.communicate(timeout=LONGEST)
    assert (started.command.returncode, said) == (3, "")
    assert "0 of 1 core claims Passed" in " ".join(output.split())
    assert started.gone()


def test_many_interrupts_leave_nothing_on_a_given_server(tmp_path: Path) -> None:
    toy.write_project(tmp_path, WAITING, {"TOY-1": ["test_a", "test_b"]})
    with servers_of_tests.controller() as server:
        command = subprocess.Popen(
            [*toy.cli(tmp_path, PLUGINS), "verify", "--system", "toy_system:system", "-n", "0"],
            cwd=tmp_path,
            env={**os.environ, "LEASEPROOF_DSN": server.address.admin_dsn},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        until(lambda: command.poll() is not None or bool(list(tmp_path.glob("started-*"))))
        (run,) = (path.name for path in (tmp_path / "reports" / "facts").iterdir())
        with roles.connect(server.address.admin_dsn, "test") as connection:
            count = "SELECT count(*) FROM pg_roles WHERE starts_with(rolname, %s)"
            assert connection.execute(count, (f"lp_{run}_",)).fetchone() == (3,)
            until(lambda: command.poll() is not None or _interrupted(command))
            _, said = command.communicate(timeout=LONGEST)
            assert (command.returncode, said) == (130, "leaseproof: interrupted\n")
            assert connection.execute(count, (f"lp_{run}_",)).fetchone() == (0,)
            left = "SELECT count(*) FROM pg_database WHERE starts_with(datname, %s)"
            assert connection.execute(left, (f"lp_{run}_",)).fetchone() == (0,)


def _interrupted(command: "subprocess.Popen[str]") -> bool:
    """One more interrupt; never enough."""
    command.send_signal(signal.SIGINT)
    return False


def test_a_clean_up_that_is_cut_short_says_what_is_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def cut_short(*_: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(start, "drop_run", cut_short)
    execute._drop("r0000001", {start.DSN: "host=h"})
    assert " ".join(capsys.readouterr().err.split()) == (
        "leaseproof: databases and roles named lp_r0000001_* may be left on the server of --dsn: "
        "the clean-up was interrupted. The next run there removes them"
    )


def test_a_later_interrupt_leaves_a_clean_up_only_after_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(interrupts, "_Seen", type("Seen", (), {"first": None, "again": False}))
    monkeypatch.setattr(time, "monotonic", lambda: now)
    with pytest.raises(KeyboardInterrupt):
        interrupts._interrupt(signal.SIGINT, None)
    assert not interrupts.again()
    now += interrupts.PATIENCE
    interrupts._interrupt(signal.SIGINT, None)
    assert interrupts.again()
    now += 0.1
    with pytest.raises(SystemExit):
        interrupts._interrupt(signal.SIGTERM, None)
