"""What systems, checks and errors say reaches the terminal without secrets, and moves no cursor there."""

import io
import subprocess
import sys
from pathlib import Path

import pytest
import toy
from rich.console import Console

from leaseproof.cli import controls
from leaseproof.cli.progress import Live
from leaseproof.controls.grid import Defect, Grid, Variant

HOSTILE = "\x1b[31mred\x1b[0m at postgresql://me:hunter2@h/db"
SHOWN = "\\x1b[31mred\\x1b[0m at postgresql://me:***@h/db"
SUITE = f"""
@claim("TOY-1")
async def test_a(system_under_test):
    if system_under_test.broken:
        refute("other", {HOSTILE!r})
"""


def test_a_reason_is_shown_in_the_grid(tmp_path: Path) -> None:
    toy.write_project(tmp_path, SUITE, {"TOY-1": ["test_a"]})
    done = toy.leaseproof(tmp_path, "controls", "--system", "toy_system:system", "-n", "0", COLUMNS="1000")
    assert (done.returncode, done.stderr) == (1, "")
    assert f"broken: caught otherwise: refuted by test_a because of other, not broken: {SHOWN}" in done.stdout


def test_every_text_of_the_grid_is_shown() -> None:
    text = f"{HOSTILE}-1"
    defects = [
        Defect(text, text, text, text, outcome, text, undeclared, (text,), {text: "refuted"})
        for outcome, undeclared in (("missed", ()), ("caught", (text,)))
    ]
    screen = Console(file=io.StringIO(), width=1000, highlight=False)
    controls.show(Grid(tuple(defects), (Variant(text, "failed", text, (text,), {text: "refuted"}),)), screen)
    assert isinstance(screen.file, io.StringIO)
    said = screen.file.getvalue()
    assert "\x1b" not in said
    assert "hunter2" not in said
    assert said.count(SHOWN) >= 15


def test_what_runs_is_shown_in_the_progress() -> None:
    live = Live(1)
    live.show([{"kind": "started", "process": "main", "check": HOSTILE, "system": HOSTILE}])
    assert live._progress.tasks[0].description.strip() == f"{SHOWN} on {SHOWN}"


@pytest.fixture
def unforeseen(tmp_path: Path) -> "subprocess.CompletedProcess[str]":
    """How the command ends where one of its parts raises an error that nobody foresaw, with such a text."""
    program = (
        "import leaseproof.cli, leaseproof.cli.app\n"
        f"def fails(**_): raise RuntimeError({HOSTILE!r} + chr(10) + 'more')\n"
        "leaseproof.cli.app.app = fails\n"
        "leaseproof.cli.main()\n"
    )
    command = [sys.executable, "-P", "-c", program]
    environment = {"TMPDIR": str(tmp_path)}
    return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)


def test_an_unforeseen_error_is_shown_in_one_line(
    unforeseen: "subprocess.CompletedProcess[str]", tmp_path: Path
) -> None:
    assert unforeseen.returncode == 3
    (line,) = unforeseen.stderr.splitlines()
    assert line.startswith(
        f"leaseproof: it failed in a way that was not foreseen: RuntimeError: {SHOWN}\\nmore (details: {tmp_path}/"
    )


def test_the_details_of_an_unforeseen_error_hold_no_secret(
    unforeseen: "subprocess.CompletedProcess[str]", tmp_path: Path
) -> None:
    (details,) = tmp_path.glob("leaseproof-error-*.log")
    text = details.read_text()
    assert str(details) in unforeseen.stderr
    assert text.startswith("Traceback")
    assert text.endswith(f"RuntimeError: {SHOWN}\nmore\n")
    assert "hunter2" not in text
    assert "\x1b" not in text
