"""The account that servers run as. Owns that choice and what that account can reach; must not touch servers."""

import os
import pwd
import stat
from dataclasses import dataclass
from pathlib import Path

from leaseproof.servers.errors import ServersError

NAME = "nobody"


@dataclass(frozen=True)
class Account:
    """An unprivileged account: PostgreSQL refuses to run as root."""

    uid: int
    gid: int

    def can_search(self, folder: Path) -> bool:
        """Whether anybody may pass through the folder and all those above it."""
        resolved = folder.resolve()
        return all(_mode(step) & stat.S_IXOTH for step in (resolved, *resolved.parents))

    def can_run(self, program: Path) -> bool:
        wanted = stat.S_IROTH | stat.S_IXOTH
        resolved = program.resolve()
        return self.can_search(resolved.parent) and _mode(resolved) & wanted == wanted


def choose() -> Account | None:
    """The account for servers: None is the caller's own; root's servers run as nobody."""
    if os.geteuid() != 0:
        return None
    try:
        entry = pwd.getpwnam(NAME)
    except KeyError:
        raise ServersError(
            f"PostgreSQL does not run as root, and this machine has no account named {NAME!r}: "
            "run as a normal user, or give a server with --dsn"
        ) from None
    return Account(entry.pw_uid, entry.pw_gid)


def _mode(path: Path) -> int:
    try:
        return path.stat().st_mode
    except OSError:
        return 0
