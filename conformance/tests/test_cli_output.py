"""Where the reader of the output goes away, the exit code stays that of the verdict."""

import os
import subprocess
from pathlib import Path

import pytest
import toy

REFUTED = """
@claim("TOY-1")
async def test_a(system_under_test): refute("broken", "broken")
"""
PASSED = """
@claim("TOY-1")
async def test_a(system_under_test): expect(not system_under_test.broken, "broken")
"""
VERIFY = ("verify", "--system", "toy_system:system", "-n", "0")


def into_a_closed_pipe(folder: Path, *arguments: str, errors_too: bool = False) -> subprocess.CompletedProcess[str]:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as closed:
        return subprocess.run(
            [*toy.cli(folder), *arguments],
            cwd=folder,
            stdout=closed,
            stderr=subprocess.STDOUT if errors_too else subprocess.PIPE,
            text=True,
            check=False,
        )


@pytest.mark.parametrize(("suite", "code"), [(PASSED, 0), (REFUTED, 1)])
@pytest.mark.parametrize("errors_too", [False, True])
def test_the_verdict_of_a_run_outlives_its_reader(tmp_path: Path, suite: str, code: int, errors_too: bool) -> None:
    toy.write_project(tmp_path, suite, {"TOY-1": ["test_a"]})
    done = into_a_closed_pipe(tmp_path, *VERIFY, errors_too=errors_too)
    assert (done.returncode, done.stderr or "") == (code, "")
    assert (tmp_path / "reports" / "evidence.json").exists()


@pytest.mark.parametrize("arguments", [["doctor"], ["claims"], ["matrix", "schema"], ["--help"]])
def test_no_command_calls_it_an_error(tmp_path: Path, arguments: list[str]) -> None:
    toy.write_project(tmp_path, PASSED, {"TOY-1": ["test_a"]})
    done = into_a_closed_pipe(tmp_path, *arguments)
    assert (done.returncode, done.stderr) == (0, "")


def test_wrong_use_stays_wrong_use(tmp_path: Path) -> None:
    toy.write_project(tmp_path, PASSED, {"TOY-1": ["test_a"]})
    assert into_a_closed_pipe(tmp_path, "claims", "TOY-7", errors_too=True).returncode == 2


def test_an_output_that_takes_nothing_decides_nothing(tmp_path: Path) -> None:
    toy.write_project(tmp_path, PASSED, {"TOY-1": ["test_a"]})
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run([*toy.cli(tmp_path), "claims"], cwd=tmp_path, stdout=full, check=False)
    assert done.returncode == 3
