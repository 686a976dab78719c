"""Options that several commands share. Owns their names and help."""

from pathlib import Path
from typing import Annotated

import typer

from leaseproof.evidence.redact import remember

System = Annotated[
    str | None,
    typer.Option("--system", metavar="MODULE:ATTR", help="The system to try; by default the only one installed."),
]
Workers = Annotated[str, typer.Option("-n", "--workers", metavar="auto|N", help="Processes that run checks.")]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Seed of generated cases; 0 draws the same ones each time.")]
Shuffle = Annotated[int, typer.Option("--shuffle", min=0, help="Draw the order of checks by this; 0 keeps the plan's.")]
Reports = Annotated[Path, typer.Option("--reports", metavar="DIR", help="Folder for evidence, report and logs.")]


def _remembered(address: str | None) -> str | None:
    """The address as it is; no text that is shown or written has it, or its password, from here on."""
    remember(address or "")
    return address


Dsn = Annotated[
    str | None,
    typer.Option(
        "--dsn",
        envvar="LEASEPROOF_DSN",
        metavar="DSN",
        callback=_remembered,
        help="Use this PostgreSQL instead of the embedded one.",
    ),
]
RedisUrl = Annotated[
    str | None,
    typer.Option(
        "--redis-url",
        envvar="LEASEPROOF_REDIS_URL",
        metavar="URL",
        callback=_remembered,
        help="Use this Redis instead of the embedded one.",
    ),
]
PgBin = Annotated[
    str | None,
    typer.Option(
        "--pg-bin", envvar="LEASEPROOF_PG_BIN", metavar="DIR", help="Start PostgreSQL from this folder of programs."
    ),
]
