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
    wide = None if sys.stdout.isatty() else int(os.environ.get("COLUMNS") or 140)
    return Console(highlight=False, soft_wrap=False, width=wide)


def errors() -> Console:
    """Standard error, for progress and messages."""
    return Console(stderr=True, highlight=False, soft_wrap=True)


def fail(message: str, code: int = WRONG_USE) -> NoReturn:
    """Say what is wrong, without secrets and control characters, and end with this exit code."""
    errors().print(plain(redact(f"leaseproof: {message}"), keep="\n"), markup=False)
    raise typer.Exit(code)
