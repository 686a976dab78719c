"""The live display: on a terminal it tells how the run goes, elsewhere it says nothing."""

import os
import pty
import subprocess
from pathlib import Path

import pytest
import toy

SUITE = '@claim("TOY-1")\nasync def test_a(system_under_test): expect(not system_under_test.broken, "broken")\n'


def on_terminal(folder: Path, **variables: str) -> bytes:
    """What a terminal gets to see of a run."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "PYTHONDONTWRITEBYTECODE": "1", **variables}
    command = [*toy.cli(folder), "verify", "--system", "toy_system:system", "-n", "0"]
    with subprocess.Popen(command, cwd=folder, env=environment, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        seen = b""
        while block := _read(ours):
            seen += block
        os.close(ours)
    assert process.returncode == 0
    return seen


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # the other side has closed
        return b""


def test_a_terminal_sees_how_many_checks_are_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    toy.write_project(tmp_path, SUITE, {"TOY-1": ["test_a"]})
    seen = on_terminal(tmp_path)
    assert b"2/2" in seen
    assert "1 on controls · 1 passed".encode() in seen
    assert b"\x1b[32mPassed" in seen


def test_no_color_takes_the_colours_out(tmp_path: Path) -> None:
    toy.write_project(tmp_path, SUITE, {"TOY-1": ["test_a"]})
    assert b"\x1b[3" not in on_terminal(tmp_path, NO_COLOR="1")


def test_elsewhere_it_is_quiet(tmp_path: Path) -> None:
    toy.write_project(tmp_path, SUITE, {"TOY-1": ["test_a"]})
    done = toy.leaseproof(tmp_path, "verify", "--system", "toy_system:system", "-n", "0")
    assert done.stderr == ""
    assert "\x1b" not in done.stdout
