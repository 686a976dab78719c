"""The commands. Owns their names and nothing else."""

import typer

from leaseproof.cli.claims import claims
from leaseproof.cli.controls import controls
from leaseproof.cli.doctor import doctor
from leaseproof.cli.matrix import app as matrix
from leaseproof.cli.verify import verify

app = typer.Typer(
    name="leaseproof",
    help="Try a system that runs jobs from PostgreSQL rows under leases, and write the evidence.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command()(verify)
app.command()(controls)
app.command()(claims)
app.command()(doctor)
app.add_typer(matrix, name="matrix")
