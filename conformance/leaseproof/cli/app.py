"""The commands. Owns their names, and what has to be right for each of them."""

from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from leaseproof.cli.claims import claims
from leaseproof.cli.controls import controls
from leaseproof.cli.doctor import doctor
from leaseproof.cli.matrix import app as matrix
from leaseproof.cli.terminal import fail
from leaseproof.cli.verify import verify


class Commands(TyperGroup):
    """Refuses an empty option or argument: a variable that a script left unset is no wish for a default."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        for before, given in pairwise(["", *args]):
            if given == "" or (given.startswith("--") and given.endswith("=")):
                name = given.removesuffix("=") or (before if before.startswith("-") else f"an argument of {before!r}")
                fail(f"{name} is empty: give it a value, or leave it out")
        try:
            Path.cwd()
        except OSError as error:
            fail(f"the current folder can't be used ({error.strerror}): change to another")
        return super().parse_args(ctx, args)


app = typer.Typer(
    name="leaseproof",
    cls=Commands,
    help="Try a system that runs jobs from PostgreSQL rows under leases, and write the evidence.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"leaseproof {version('leaseproof')}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and end.")
    ] = False,
) -> None:
    """What is asked of the program rather than of a command."""


app.command()(verify)
app.command()(controls)
app.command()(claims)
app.command()(doctor)
app.add_typer(matrix, name="matrix")
