"""The command line. Owns the way out: exit codes, interrupts, and that no traceback reaches a person."""

import contextlib
import os
import signal
import sys
import tempfile
import traceback
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from leaseproof.cli.prepare import Kit

WRONG_USE = 2
FAILED = 1
INCONCLUSIVE = 3
INTERRUPTED = 130


def main(kit: "Kit | None" = None) -> NoReturn:
    """Run a command and leave with its exit code. `kit`: other parts than the kit's own, for its tests."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _leave)
    try:
        from leaseproof.cli.app import app  # here, so that an interrupt while modules load is one too

        app(prog_name="leaseproof", obj=kit)
        code: str | int | None = 0
    except SystemExit as exit_:
        code = exit_.code
    except KeyboardInterrupt:
        code = INTERRUPTED
    except Exception as error:  # noqa: BLE001 - the last resort
        code = INCONCLUSIVE
        _say(f"leaseproof: it failed in a way that was not foreseen: {type(error).__name__}: {error}{_kept()}")
    if code == INTERRUPTED:
        _say("leaseproof: interrupted")
    sys.exit(_flushed(code))


def _leave(number: int, frame: object) -> NoReturn:
    """End like an interrupted run: what was started is ended first."""
    raise SystemExit(128 + number)


def _kept() -> str:
    """Put the traceback into a file, and say where."""
    try:
        with tempfile.NamedTemporaryFile("w", prefix="leaseproof-error-", suffix=".log", delete=False) as file:
            traceback.print_exc(file=file)
    except OSError:
        return ""
    return f" (details: {file.name}; please report it with them)"


def _say(text: str) -> None:
    with contextlib.suppress(OSError):
        print(text, file=sys.stderr)


def _flushed(code: str | int | None) -> str | int | None:
    """The exit code; where the reader of the output has gone, nothing more is written to it."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return code or 128 + signal.SIGPIPE
    return code
