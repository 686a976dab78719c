"""The command line. Owns the way in and out: what is imported, exit codes, interrupts, and that no traceback reaches a
person.

What it needs is imported late: before `caller_last` the caller's folder may come first.
"""

import io
import os
import sys

from leaseproof.cli.path import caller_last

TYPE_CHECKING = False  # of `typing`, which would be imported early
if TYPE_CHECKING:
    from typing import NoReturn, TextIO

    from _typeshed import ReadableBuffer

    from leaseproof.cli.prepare import Kit

WRONG_USE = 2
FAILED = 1
INCONCLUSIVE = 3
INTERRUPTED = 130


def main(kit: "Kit | None" = None) -> "NoReturn":
    """Run a command and leave with its exit code. `kit`: other parts than the kit's own, for its tests."""
    caller_last()
    from leaseproof import interrupts

    _open_missing()
    sys.stdout, sys.stderr = _Output.over(sys.stdout), _Output.over(sys.stderr)
    interrupts.install()
    try:
        from leaseproof.cli.app import app  # here, so that an interrupt while modules load is one too

        sys.pycache_prefix = os.devnull  # bytecode beside other people's modules may be of another source
        app(prog_name="leaseproof", obj=kit)
        code: str | int | None = 0
    except SystemExit as exit_:
        code = exit_.code
    except KeyboardInterrupt:
        code = INTERRUPTED
    except Exception as error:  # noqa: BLE001 - the last resort
        code = INCONCLUSIVE
        _say(f"leaseproof: it failed in a way that was not foreseen: {type(error).__name__}: {error}{_kept()}")
    interrupts.ignore()
    if code == INTERRUPTED:
        _say("leaseproof: interrupted")
    sys.exit(_flushed(code))


def _open_missing() -> None:
    """A standard stream that the caller has closed leads to nowhere."""
    for descriptor, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != descriptor:
                os.dup2(opened, descriptor)
                os.close(opened)
            setattr(sys, name, open(descriptor, mode, encoding="utf-8", closefd=False))  # noqa: SIM115 - for good


class _Output(io.FileIO):
    """An output whose reader may go away: the rest is written to nowhere, and the exit code stays the verdict's.

    `failed`: why the output could not be written where its reader is still there.
    """

    failed: str | None = None

    @classmethod
    def over(cls, stream: "TextIO") -> "TextIO":
        """The same stream, written through such an output."""
        stream.flush()
        output = io.BufferedWriter(cls(stream.fileno(), "w", closefd=False))
        return io.TextIOWrapper(output, stream.encoding, stream.errors, line_buffering=output.raw.isatty())

    def write(self, data: "ReadableBuffer", /) -> int:
        """Write what the reader still takes."""
        try:
            return super().write(data)
        except OSError as error:
            if not isinstance(error, BrokenPipeError):
                self.failed = error.strerror
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())
            return super().write(data)


def _kept() -> str:
    """Put the traceback into a file, and say where."""
    import tempfile
    import traceback

    try:
        with tempfile.NamedTemporaryFile("w", prefix="leaseproof-error-", suffix=".log", delete=False) as file:
            file.write(_shown(traceback.format_exc(), keep="\n"))
    except OSError:
        return ""
    return f" (details: {file.name}; please report it with them)"


def _say(text: str) -> None:
    """A message of one line, on standard error."""
    import contextlib

    with contextlib.suppress(OSError):
        print(_shown(text), file=sys.stderr)


def _shown(text: str, keep: str = "") -> str:
    """A text as the commands show it; before they are loaded there is none but Python's own."""
    terminal = sys.modules.get("leaseproof.cli.terminal")
    return terminal.shown(text, keep) if terminal else text


def _flushed(code: str | int | None) -> str | int | None:
    """The exit code; where the output could not be written, nothing is decided."""
    sys.stdout.flush()
    failed: str | None = sys.stdout.buffer.raw.failed  # type: ignore[union-attr]
    if failed is None:
        return code
    _say(f"leaseproof: can't write the output: {failed}")
    return code or INCONCLUSIVE
