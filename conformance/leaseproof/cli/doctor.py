"""`leaseproof doctor`: what this machine can run. Owns the page; must not start or change anything."""

import os
import platform
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from rich.table import Table
from rich.text import Text

from leaseproof.cli import options
from leaseproof.cli.terminal import console, shown
from leaseproof.servers import account, folders, postgres
from leaseproof.servers.errors import ServersError
from leaseproof.tiers import DEFAULT, Given, docker, probe

DEBIAN = Path("/usr/lib/postgresql")


def doctor(dsn: options.Dsn = None, redis_url: options.RedisUrl = None, pg_bin: options.PgBin = None) -> None:
    """Say which tiers this machine can run, and for each that it can't, why and what would make it."""
    screen = console()
    tiers = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    tiers.add_column("tier", no_wrap=True)
    tiers.add_column("", no_wrap=True)
    tiers.add_column("by, or why not", overflow="fold")
    for tier, one in probe(Given(dsn, redis_url, pg_bin)).items():
        state = ("runs" if tier in DEFAULT else "runs when asked for", "green") if one.can_run else ("no", "yellow")
        tiers.add_row(Text(tier), Text(*state), Text(shown(one.lacking or one.found)))
    screen.print(tiers)
    machine = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    machine.add_column(no_wrap=True)
    machine.add_column(overflow="fold")
    for name, value in facts(pg_bin):
        machine.add_row(Text(name), Text(shown(value)))
    screen.print()
    screen.print(machine)


def facts(pg_bin: str | None) -> Iterator[tuple[str, str]]:
    """What was found, line by line."""
    yield "Python", f"{platform.python_version()} on {platform.system()} {platform.release()} {platform.machine()}"
    yield "cores", str(len(os.sched_getaffinity(0)))
    yield "user", "root; servers run as nobody" if os.geteuid() == 0 else f"user id {os.geteuid()}"
    yield "PostgreSQL", _postgresql(pg_bin)
    for folder in sorted(DEBIAN.glob("*/bin")):
        yield "PostgreSQL, by --pg-bin", _postgresql(str(folder))
    yield "servers' files", _place()
    yield "temporary folder", _room(Path(tempfile.gettempdir()))
    yield "memory", _room(folders.MEMORY)
    yield "this folder", _room(Path.cwd())
    yield "Docker", docker() or "its daemon answers"
    yield "Go", shutil.which("go") or "not found"


def _postgresql(bin_dir: str | None) -> str:
    try:
        found = postgres.find(bin_dir)
    except ServersError as error:
        return str(error)
    return f"{found.version} in {found.bin_dir}"


def _place() -> str:
    try:
        return str(folders.choose(account.choose()))
    except ServersError as error:
        return str(error)


def _room(folder: Path) -> str:
    try:
        usage = shutil.disk_usage(folder)
    except OSError as error:
        return f"{folder}: {error.strerror}"
    writable = "" if os.access(folder, os.W_OK) else ", not writable"
    return f"{folder}: {usage.free // 2**20:,} MiB free of {usage.total // 2**20:,}{writable}"
