"""Nothing that happens to a run, or around it, makes a check pass that did not run, once, from begin to end."""

import os
import signal
import subprocess
from pathlib import Path

import pytest
import toy

from leaseproof.evidence.facts import read_logs
from leaseproof.evidence.runner import run

TWO = """
@claim("A-1")
async def test_a(system_under_test): pass

@claim("A-2")
async def test_b(system_under_test): pass
"""
REFUTED = '@claim("A-1")\nasync def test_a(system_under_test): refute("broken", "always")\n'
FLAKY = """
TRIES = []

@claim("A-1")
async def test_a(system_under_test):
    TRIES.append(1)
    expect(len(TRIES) > 1, "first_try")
"""


@pytest.fixture
def standing_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder from which the run is started."""
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def job_for(folder: Path, body: str, checks: list[str], **options: object) -> toy.Job:
    return toy.write_plan_job(folder, toy.write_suite(folder, body), checks, **options)


@pytest.mark.parametrize("workers", [0, 2])
def test_left_alone_the_two_checks_pass(standing_in: Path, workers: int) -> None:
    job = job_for(standing_in, TWO, ["test_a", "test_b"], workers=workers)
    assert run(job) == 0
    assert toy.outcomes(job) == {"test_a": "passed", "test_b": "passed"}


def test_a_deleted_check_is_missing(standing_in: Path) -> None:
    job = job_for(standing_in, TWO.partition('@claim("A-2")')[0], ["test_a", "test_b"])
    run(job)
    assert "test_b" not in toy.outcomes(job)


def test_a_renamed_check_is_missing(standing_in: Path) -> None:
    job = job_for(standing_in, TWO.replace("test_b", "test_b_renamed"), ["test_a", "test_b"])
    run(job)
    assert toy.outcomes(job) == {"test_a": "passed"}


@pytest.mark.parametrize("workers", [0, 2])
def test_a_check_that_is_deselected_is_missing(standing_in: Path, workers: int) -> None:
    job = job_for(standing_in, TWO, ["test_a", "test_b"], workers=workers)
    toy.run_by_hand(job, "-k", "not test_b")
    assert "test_b" not in toy.outcomes(job)


def test_a_crashed_worker_decides_nothing(standing_in: Path) -> None:
    crash = '@claim("A-3")\nasync def test_c(system_under_test): os._exit(0)\n'
    job = job_for(standing_in, TWO + crash, ["test_a", "test_c", "test_b"], workers=1)
    run(job)
    assert toy.outcomes(job).get("test_a") == "inconclusive"
    assert toy.outcomes(job).get("test_c") == "inconclusive"
    assert any("crashed while it ran test_c" in trouble for trouble in toy.troubles(job))
    assert not read_logs(job.folder)[0].complete


def test_a_check_that_blocks_its_process_ends_with_it(standing_in: Path) -> None:
    block = 'import time\n@claim("A-3")\nasync def test_c(system_under_test): time.sleep(600)\n'
    job = job_for(standing_in, TWO + block, ["test_c", "test_a"], workers=1, deadline=1.0)
    run(job)
    assert toy.outcomes(job) == {"test_c": "inconclusive", "test_a": "inconclusive"}
    assert [fact["check"] for log in read_logs(job.folder) for fact in log.of("finished")] == ["test_a"]


def test_a_check_that_ran_twice_is_inconclusive(standing_in: Path) -> None:
    job = job_for(standing_in, TWO, ["test_a", "test_b"])
    (standing_in / "again.py").write_text(
        "import pytest\n"
        "@pytest.hookimpl(trylast=True)\n"
        "def pytest_collection_modifyitems(items):\n"
        "    items.append(items[0])\n"
    )
    toy.run_by_hand(job, "-p", "again", PYTHONPATH=str(standing_in))
    assert toy.outcomes(job)["test_a"] == "inconclusive"


def test_a_flaky_check_does_not_pass_by_rerunning(standing_in: Path) -> None:
    job = job_for(standing_in, FLAKY, ["test_a"])
    assert toy.run_by_hand(job, "-p", "pytest_rerunfailures", "--reruns", "3") == 0
    assert "1 rerun" in job.output_file.read_text()
    assert toy.outcomes(job) == {"test_a": "inconclusive"}


@pytest.mark.parametrize("workers", [0, 2])
def test_a_killed_run_decides_nothing(standing_in: Path, workers: int) -> None:
    kill = '@claim("A-3")\nasync def test_c(system_under_test): os.killpg(os.getpgrp(), 9)\n'
    job = job_for(standing_in, TWO + kill, ["test_a", "test_b", "test_c"], workers=workers)
    assert run(job) == -signal.SIGKILL
    assert "passed" not in toy.outcomes(job).values()


@pytest.mark.parametrize("how", ["-O", "PYTHONOPTIMIZE"])
def test_python_without_asserts_is_refused(standing_in: Path, how: str) -> None:
    job = job_for(standing_in, TWO, ["test_a"])
    if how == "-O":
        assert toy.run_by_hand(job, python=["-O"]) == pytest.ExitCode.USAGE_ERROR
    else:
        assert toy.run_by_hand(job, PYTHONOPTIMIZE="1") == pytest.ExitCode.USAGE_ERROR
    assert "takes checks out" in job.output_file.read_text()


MEDDLING = {
    "PYTHONOPTIMIZE": "2",
    "PYTEST_ADDOPTS": "-k nothing --maxfail=1 -p pytest_rerunfailures --reruns 5",
    "PYTEST_PLUGINS": "meddler",
    "PYTHONSTARTUP": "meddler.py",
    "PYTHONWARNINGS": "error",
    "PYTHONPATH": ".",
    "HYPOTHESIS_PROFILE": "ci",
    "PYTEST_XDIST_AUTO_NUM_WORKERS": "0",
}
MEDDLER = """
import pytest, _pytest.runner, leaseproof.checks
print("MEDDLED")
leaseproof.checks.refute = lambda *_: None
@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item):
    try:
        return (yield)
    except BaseException:
        return None
"""


@pytest.mark.parametrize("workers", [0, 2])
def test_what_lies_in_the_callers_folder_and_environment_changes_nothing(
    standing_in: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    for name in ("conftest.py", "meddler.py", "sitecustomize.py", "suites/conftest.py"):
        (standing_in / name).parent.mkdir(exist_ok=True)
        (standing_in / name).write_text(MEDDLER)
    for name in ("json.py", "pytest.py", "anyio.py", "xdist.py", "asyncio.py", "threading.py", "leaseproof.py"):
        (standing_in / name).write_text("import os\nos._exit(99)\n")
    (standing_in / "pytest.ini").write_text("[pytest]\naddopts = -k nothing --reruns 3 -p meddler\n")
    (standing_in / "pyproject.toml").write_text('[tool.pytest.ini_options]\naddopts = ["-k", "nothing"]\n')
    for name, value in MEDDLING.items():
        monkeypatch.setenv(name, value)
    job = job_for(standing_in, REFUTED + TWO.partition("\n\n")[2], ["test_a", "test_b"], workers=workers)
    assert run(job) == 1
    assert toy.outcomes(job) == {"test_a": "refuted", "test_b": "passed"}
    assert all(log.complete for log in read_logs(job.folder))
    assert "MEDDLED" not in job.output_file.read_text()


@pytest.mark.skipif(os.geteuid() != 0, reason="a file system of its own takes root")
@pytest.mark.parametrize("workers", [0, 2])
def test_a_disk_that_fills_leaves_an_unfinished_log_and_ends_the_run(standing_in: Path, workers: int) -> None:
    fill = """
@claim("A-3")
async def test_c(system_under_test):
    with open(os.path.join("facts", "filler"), "wb", buffering=0) as file:
        try:
            while True: file.write(b"x" * 4096)
        except OSError: open("full", "w").close()

@claim("A-1")
async def test_a(system_under_test, record_property):
    while not os.path.exists("full"): await anyio.sleep(0.01)
    record_property("more_than_the_rest_of_a_page", "x" * 4000)
"""
    job = job_for(standing_in, fill, ["test_c", "test_a"], workers=workers)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(job.folder)], check=True)
    try:
        assert run(job) not in (0, 1)
        assert "passed" not in toy.outcomes(job).values()
        assert not all(log.complete for log in read_logs(job.folder))
    finally:
        subprocess.run(["umount", str(job.folder)], check=True)
