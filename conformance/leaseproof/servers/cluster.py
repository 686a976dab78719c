"""The databases of one process of a run: owns templates, scratch databases and their end; must not start servers.

The administrator's connection is synchronous: each of its statements takes milliseconds.
"""

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from psycopg import sql

from leaseproof.servers import facts, roles
from leaseproof.servers.address import Address
from leaseproof.system import Database

BATCH = 16  # databases that wait for their drop, about 8 MB each
TEMPLATES = 8  # installed templates that are kept; the one used longest ago makes room
PRISTINE = "template0"
PROCESS = re.compile(r"[a-z][a-z0-9]{0,15}")


@dataclass(frozen=True)
class Scratch:
    """One database of a run; connection strings for the administrator and for each role of the run."""

    name: str
    admin_dsn: str = field(repr=False)
    owner_dsn: str = field(repr=False)
    app_dsn: str = field(repr=False)
    maintenance_dsn: str = field(repr=False)
    app_role: str
    maintenance_role: str

    @property
    def database(self) -> Database:
        """What the port shows of it to a system."""
        return Database(self.owner_dsn, self.app_role, self.maintenance_role)


class Cluster:
    """The server as one process uses it: `process` names its databases apart from those of other processes."""

    def __init__(self, address: Address, process: str) -> None:
        if not PROCESS.fullmatch(process):
            raise ValueError(f"{process!r} can't stand in a database's name: use lower-case letters and digits")
        self.address = address
        self.process = process
        self.admin = roles.connect(address.admin_dsn, f"leaseproof {address.run} {process}")
        self._templates: dict[str, str] = {}
        self._made = 0
        self._built = 0
        self._discarded: list[str] = []
        self._live: set[str] = set()

    async def template(self, key: str, build: Callable[[Database], Awaitable[None]]) -> str:
        """The template database for the key, built once in this process; a build that fails leaves none behind."""
        known = self._templates.pop(key, None)
        if known is not None:
            self._templates[key] = known
            return known
        if len(self._templates) >= TEMPLATES:
            self._drop(self._templates.pop(next(iter(self._templates))), force=True)
        self._built += 1
        scratch = self._create(f"t{self._built}", PRISTINE)
        try:
            await build(scratch.database)
            self._seal(scratch.name)
        except BaseException:
            self._drop(scratch.name, force=True)
            raise
        self._templates[key] = scratch.name
        return scratch.name

    def clone(self, template: str = PRISTINE) -> Scratch:
        """A fresh copy of the template, or an empty database.

        PostgreSQL does not copy what is set by ALTER DATABASE or granted on the database itself.
        """
        self._made += 1
        return self._create(str(self._made), template)

    def discard(self, scratch: Scratch) -> None:
        """Have the database dropped at a later time, in a batch: right after a session's end a drop is slow."""
        self._discarded.append(scratch.name)
        if len(self._discarded) >= BATCH:
            busy = self._busy()
            for name in [name for name in self._discarded if name not in busy]:
                self._drop(name, force=False)

    def describe(self) -> dict[str, Any]:
        """The servers' versions and settings, for the evidence; no address and no secret."""
        return facts.describe(self.admin, self.address)

    def close(self) -> None:
        """Drop what this process made and has left; embedded servers end with their databases."""
        if not self.address.embedded and not self.admin.closed:
            for name in sorted(self._live):
                self._drop(name, force=True)
        self.admin.close()

    def _create(self, suffix: str, template: str) -> Scratch:
        address = self.address
        name = f"{address.prefix}{self.process}_{suffix}"
        # file_copy is the fastest on a server without fsync; on a given one its checkpoints would be felt by others
        strategy = "file_copy" if address.embedded else "wal_log"
        self.admin.execute(
            sql.SQL("CREATE DATABASE {} OWNER {} TEMPLATE {} STRATEGY {}").format(
                sql.Identifier(name), sql.Identifier(address.owner_role), sql.Identifier(template), sql.SQL(strategy)
            )
        )
        self._live.add(name)
        self.admin.execute(
            sql.SQL("REVOKE ALL ON DATABASE {0} FROM PUBLIC; GRANT CONNECT ON DATABASE {0} TO {1}, {2}").format(
                sql.Identifier(name), sql.Identifier(address.app_role), sql.Identifier(address.maintenance_role)
            )
        )
        return Scratch(
            name=name,
            admin_dsn=address.dsn(name),
            owner_dsn=address.dsn(name, address.owner_role),
            app_dsn=address.dsn(name, address.app_role),
            maintenance_dsn=address.dsn(name, address.maintenance_role),
            app_role=address.app_role,
            maintenance_role=address.maintenance_role,
        )

    def _seal(self, name: str) -> None:
        """Nobody connects to a template any more: what every clone starts from stays as it was installed."""
        self.admin.execute(sql.SQL("ALTER DATABASE {} WITH ALLOW_CONNECTIONS false").format(sql.Identifier(name)))

    def _drop(self, name: str, *, force: bool) -> None:
        how = sql.SQL(" WITH (FORCE)") if force else sql.SQL("")
        self.admin.execute(sql.SQL("DROP DATABASE IF EXISTS {}{}").format(sql.Identifier(name), how))
        self._live.discard(name)
        if name in self._discarded:
            self._discarded.remove(name)

    def _busy(self) -> set[str]:
        rows = self.admin.execute("SELECT DISTINCT datname FROM pg_stat_activity WHERE datname IS NOT NULL").fetchall()
        return {str(name) for (name,) in rows}
