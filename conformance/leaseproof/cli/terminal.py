"""Where the command line writes. Owns the console and the form of an error; must not decide anything."""

import os
import sys
from typing import NoReturn

import typer
from rich.console import Console

from leaseproof.cli import WRONG_USE
from leaseproof.evidence.redact import redact
from leaseproof.report.view import plain


def console() -> Console:
    """Standard output: coloured on a terminal unless NO_COLOR says no, plain and wide elsewhere."""
    columns = os.environ.get("COLUMNS", "")
    chosen = int(columns) if columns.isdecimal() else 0
    wide = None if sys.stdout.isatty() else chosen or 140
    return Console(highlight=False, soft_wrap=False, width=wide)


def errors() -> Console:
    """Standard error, for progress and messages."""
    return Console(stderr=True, highlight=False, soft_wrap=True)


def fail(message: str, code: int = WRONG_USE) -> NoReturn:
    """Say what is wrong, and end with this exit code."""
    say(message)
    raise typer.Exit(code)


def say(message: str) -> None:
    """A message, on standard error."""
    errors().print(shown(f"leaseproof: {message}", keep="\n"), markup=False)


def shown(text: str, keep: str = "") -> str:
    """What a system, a check, a server or a file says, as it may be shown: no secrets, no control characters.

    Characters of `keep` stay.
    """
    return plain(redact(text), keep)
