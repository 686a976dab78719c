"""The runner: the command and environment of a run, its output, its end."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import toy

from leaseproof.evidence.facts import read_logs
from leaseproof.evidence.follow import Follower
from leaseproof.evidence.runner import Job, Run, run

ONE = '@claim("A-1")\nasync def test_a(system_under_test): pass\n'
LONG = """
@claim("A-1")
async def test_a(system_under_test):
    open("started", "w").close()
    await anyio.sleep(600)
"""


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    monkeypatch.chdir(tmp_path)
    return toy.write_plan_job(tmp_path, toy.write_suite(tmp_path, ONE), ["test_a"])


def test_the_environment_keeps_what_is_the_callers_and_drops_what_changes_python(job: Job, tmp_path: Path) -> None:
    base = {
        "PATH": "/bin",
        "HOME": "/home/me",
        "PYTHONOPTIMIZE": "1",
        "PYTHONWARNINGS": "error",
        "PYTEST_ADDOPTS": "-x",
        "PYTEST_PLUGINS": "evil",
        "HYPOTHESIS_PROFILE": "ci",
        "PYTHONPATH": os.pathsep.join(["", ".", str(tmp_path), "/elsewhere"]),
    }
    environment = job.environment(base)
    assert (environment["PATH"], environment["HOME"]) == ("/bin", "/home/me")
    assert environment["PYTHONPATH"] == "/elsewhere"
    assert environment["PYTHONSAFEPATH"] == "1"
    assert environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] == "1"
    assert not {"PYTHONOPTIMIZE", "PYTHONWARNINGS", "PYTEST_ADDOPTS", "PYTEST_PLUGINS", "HYPOTHESIS_PROFILE"} & set(
        environment
    )


def test_secrets_stay_out_of_pytests_output(job: Job) -> None:
    suite = '@claim("A-1")\nasync def test_a(system_under_test): raise OSError("postgresql://me:hunter2@db/x")\n'
    toy.write_suite(job.folder.parent, suite)
    run(job)
    output = job.output_file.read_text()
    assert "postgresql://" in output
    assert "hunter2" not in output
    assert "hunter2" not in (job.folder / "main.jsonl").read_text()


def test_a_private_key_over_several_lines_stays_out_of_pytests_output(job: Job) -> None:
    suite = """
KEY = "\\n".join(["-----BEGIN PRIVATE KEY-----", "hun" + "ter2", "-----END PRIVATE KEY-----", "what follows stays"])

@claim("A-1")
async def test_a(system_under_test): raise OSError(KEY)
"""
    toy.write_suite(job.folder.parent, suite)
    run(job)
    output = job.output_file.read_text()
    assert "hunter2" not in output
    assert "what follows stays" in output
    [fact] = [fact for log in read_logs(job.folder) for fact in log.of("finished")]
    assert "hunter2" not in fact["detail"]


def test_facts_are_told_while_the_run_goes_on(job: Job) -> None:
    told: list[str] = []
    assert run(job, lambda facts: told.extend(str(fact["kind"]) for fact in facts)) == 0
    assert told == ["opened", "modules", "started", "modules", "finished", "modules", "closed"]


def test_a_line_that_is_not_yet_whole_is_told_later(tmp_path: Path) -> None:
    follower = Follower(tmp_path)
    log = tmp_path / "main.jsonl"
    log.write_text('{"kind": "opened"}\n{"kind": "sta')
    assert [fact["kind"] for fact in follower.read()] == ["opened"]
    log.write_text('{"kind": "opened"}\n{"kind": "started"}\n')
    assert [fact["kind"] for fact in follower.read()] == ["started"]
    assert follower.read() == []


def test_a_run_that_is_left_early_is_ended(job: Job) -> None:
    toy.write_suite(job.folder.parent, LONG)
    with Run(job) as started:
        while not Path("started").exists():
            time.sleep(0.01)
    assert started.wait() == -signal.SIGKILL
    assert not any(log.complete for log in read_logs(job.folder))


def test_a_lifeline_ends_the_whole_group_when_its_holder_is_gone(tmp_path: Path) -> None:
    program = (
        "import os, subprocess, sys, time; from leaseproof.evidence import lifeline\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; print(1, flush=True); time.sleep(600)'])\n"
        "lifeline.hold(int(sys.argv[1]))\n"
        "time.sleep(600)\n"
    )
    far, near = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(far)], pass_fds=(far,), start_new_session=True, stdout=subprocess.PIPE
    )
    os.close(far)
    assert process.stdout is not None
    assert process.stdout.readline() == b"1\n"
    os.close(near)
    assert process.wait() == -signal.SIGKILL
    assert process.stdout.read() == b""  # the child held it open
    process.stdout.close()


def test_a_lifeline_is_for_leaders_of_a_group_alone() -> None:
    program = "from leaseproof.evidence import lifeline; lifeline.hold(0)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "leader of a process group" in done.stderr
