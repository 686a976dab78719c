"""The command line. Owns the way out: exit codes, interrupts, and that no traceback reaches a person."""

import contextlib
import io
import os
import signal
import sys
import tempfile
import traceback
from typing import TYPE_CHECKING, NoReturn, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

    from leaseproof.cli.prepare import Kit

WRONG_USE = 2
FAILED = 1
INCONCLUSIVE = 3
INTERRUPTED = 130


def main(kit: "Kit | None" = None) -> NoReturn:
    """Run a command and leave with its exit code. `kit`: other parts than the kit's own, for its tests."""
    sys.stdout, sys.stderr = _Output.over(sys.stdout), _Output.over(sys.stderr)
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


class _Output(io.FileIO):
    """An output whose reader may go away: the rest is written to nowhere, and the exit code stays the verdict's."""

    @classmethod
    def over(cls, stream: TextIO) -> TextIO:
        """The same stream, written through such an output."""
        stream.flush()
        output = io.BufferedWriter(cls(stream.fileno(), "w", closefd=False))
        return io.TextIOWrapper(output, stream.encoding, stream.errors, line_buffering=output.raw.isatty())

    def write(self, data: "ReadableBuffer", /) -> int:
        """Write what the reader still takes."""
        try:
            return super().write(data)
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())
            return super().write(data)


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
    """The exit code; where the output can't be written, nothing more is written to it, and nothing is decided."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return code or INCONCLUSIVE
    return code
