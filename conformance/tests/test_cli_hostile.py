"""Whatever a command meets, it ends with its exit code and one line, without a traceback: input, folders, streams."""

import fcntl
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
import toy

from leaseproof import loading
from leaseproof.cli import execute
from leaseproof.servers import roles
from leaseproof.servers.errors import ServersError

SUITE = """
@claim("TOY-1")
async def test_a(system_under_test): expect(not system_under_test.broken, "broken")
"""
EXPECTED = {"TOY-1": ["test_a"]}
SYSTEM = ("--system", "toy_system:system")
PASSES = ("verify", *SYSTEM, "-n", "0")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    toy.write_project(tmp_path, SUITE, EXPECTED)
    return tmp_path


def said(done: "subprocess.CompletedProcess[str]") -> str:
    """The one line that a command ended with."""
    (line,) = done.stderr.splitlines()
    assert line.startswith("leaseproof: ")
    return line


def test_claims_whose_servers_can_not_start_are_wrong_use(project: Path) -> None:
    done = toy.leaseproof(project, *PASSES, LEASEPROOF_TMP="/nowhere")
    assert done.returncode == 2
    assert "nothing could start: tier pg: no folder for the servers' files (/nowhere" in said(done)
    assert toy.leaseproof(project, *PASSES, "--tier", "static", LEASEPROOF_TMP="/nowhere").returncode != 2


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("verify", "--system", ""), "--system"),
        (("verify", "--system="), "--system"),
        (("verify", *SYSTEM, "--reports", ""), "--reports"),
        (("controls", *SYSTEM, "--dsn", ""), "--dsn"),
        (("matrix", "render", ""), "an argument of 'render'"),
    ],
)
def test_an_empty_value_is_no_default(project: Path, arguments: tuple[str, ...], named: str) -> None:
    done = toy.leaseproof(project, *arguments)
    assert done.returncode == 2
    assert said(done) == f"leaseproof: {named} is empty: give it a value, or leave it out"


def test_a_width_that_is_no_number_is_not_used(project: Path) -> None:
    assert toy.leaseproof(project, *PASSES, COLUMNS="abc").returncode == 0
    assert toy.leaseproof(project, *PASSES, COLUMNS="0").returncode == 0


# what an adapter says of itself


@pytest.mark.parametrize(
    ("line", "attribute"),
    [
        ("version = 5", "version"),
        ('name = ""', "name"),
        ('schema = " "', "schema"),
        ("facts = None", "facts"),
        ("releases = ()", "releases"),
        ("releases = (1, 2)", "releases"),
        ('releases = "current"', "releases"),
        ("releases = None", "releases"),
        ("capabilities = 5", "capabilities"),
        ("capabilities = {Cap.lease: 1}", "capabilities"),
        ("not_promised = {Cap.lease}", "not_promised"),
        ("owners = ['a']", "owners"),
        ("owners = {'a': 5}", "owners"),
        ("style = 'caller'", "style"),
        ("timeouts = 5", "timeouts"),
        ("policy = None", "policy"),
        *((f"{name} = property(lambda self: 1 / 0)", name) for name in loading.ATTRIBUTES),
        ("capabilities = [[]]", "no such capability"),
        ("capabilities = ['lease']", "no such capability"),
        ("not_promised = {cap: 5 for cap in Cap if cap not in PROMISED}", "without a reason"),
    ],
)
def test_a_wrong_attribute_of_an_adapter_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, attribute: str
) -> None:
    module = f"wrong_{abs(hash(line))}"
    (tmp_path / f"{module}.py").write_text(toy.SYSTEM.replace("    broken = False\n", f"    {line}\n"))
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(loading.WrongSystem) as found:
        loading.load_system(f"{module}:system")
    assert attribute in str(found.value)


def test_an_attribute_that_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "without_schema.py").write_text(toy.SYSTEM.replace('    schema = "toy"\n', ""))
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(loading.WrongSystem, match="'schema' can't be read"):
        loading.load_system("without_schema:system")


def test_a_module_can_not_end_the_command_as_it_is_imported(project: Path) -> None:
    with (project / "toy_system.py").open("a") as file:
        file.write("\nimport os\nos._exit(0)\n")
    done = toy.leaseproof(project, *PASSES)
    assert done.returncode == 2
    assert "toy_system" in said(done)
    assert "SystemExit" in said(done)


# folders


def test_a_current_folder_that_is_gone_is_wrong_use(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    script = f"import os; os.rmdir({str(gone)!r}); from leaseproof.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-P", "-c", script, "doctor"], cwd=gone, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "the current folder can't be used" in said(done)


def test_a_second_run_with_the_same_reports_is_refused(project: Path) -> None:
    (project / "reports").mkdir()
    with (project / "reports" / ".leaseproof.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        done = toy.leaseproof(project, *PASSES)
    assert done.returncode == 2
    assert "another run writes to the reports' folder" in said(done)
    assert toy.leaseproof(project, *PASSES).returncode == 0


def test_a_disk_that_fills_up_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = toy.write_plan_job(tmp_path, tmp_path, [])

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    assert "pytest said nothing" in execute._why(job, ())
    monkeypatch.setattr(os, "posix_fallocate", full)
    assert f"can't write to {job.folder}: No space left on device" in execute._why(job, ())


# streams


def shell(project: Path, line: str) -> "subprocess.CompletedProcess[str]":
    command = [*toy.cli(project, toy.PLUGINS), *PASSES]
    return subprocess.run(
        ["bash", "-c", f'"$@" {line}', "bash", *command],
        cwd=project,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("line", [">&-", "2>&-", "<&-", "<&- >&- 2>&-"])
def test_closed_streams_change_nothing_but_what_is_seen(project: Path, line: str) -> None:
    done = shell(project, line)
    assert (done.returncode, done.stderr) == (0, "")
    assert toy.results(project)["TOY-1"].startswith("Passed")


def test_an_output_that_is_full_is_inconclusive(project: Path) -> None:
    done = shell(project, ">/dev/full")
    assert done.returncode == 3
    assert said(done) == "leaseproof: can't write the output: No space left on device"


# given servers


@pytest.fixture
def silent() -> Iterator[int]:
    """The port of a server that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def test_a_server_that_never_answers_is_given_up(silent: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PGCONNECT_TIMEOUT", raising=False)
    monkeypatch.setattr(roles, "CONNECT_SECONDS", 2)
    with pytest.raises(ServersError, match="can't be reached"):
        roles.connect(f"host=127.0.0.1 port={silent} user=u dbname=d", "test")


def test_the_users_own_wait_for_a_server_counts(silent: int, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[str] = []
    monkeypatch.setattr(psycopg, "connect", lambda dsn, **_: given.append(dsn))
    roles.connect("host=h connect_timeout=77", "test")
    monkeypatch.delenv("PGCONNECT_TIMEOUT", raising=False)
    roles.connect("host=h", "test")
    monkeypatch.setenv("PGCONNECT_TIMEOUT", "77")
    roles.connect("host=h", "test")
    assert given == ["host=h connect_timeout=77", "host=h connect_timeout=10", "host=h"]
