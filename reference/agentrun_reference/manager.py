"""Installs and upgrades the schema: owns releases, phases and grants; must not touch a row of a run.

An upgrade holds an advisory lock, so that two upgraders take turns; each revision is a transaction of its own, so that
one that was cut short goes on where it stopped; a wait for a table's lock ends after LOCK_TIMEOUT, and can be tried
again, so that live traffic never queues behind it for long.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Final, Literal, LiteralString

import psycopg
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import Script, ScriptDirectory
from psycopg import sql
from sqlalchemy import Connection, NullPool, create_engine, text

RELEASES: Final = {"0.9": "0001", "1.0": "0003"}
"""Release to its last revision, oldest first."""

CURRENT: Final = "1.0"

LOCK_TIMEOUT: Final = "3s"

ADVISORY_KEY: Final = 0x6167656E7472756E

ALEMBIC: Final = Lock()
"""Alembic keeps the revision at work in module globals: one upgrade at a time in a process."""

APPLICATION_GRANTS: Final[tuple[LiteralString, ...]] = (
    "GRANT SELECT, INSERT ON conversations, agent_subagent_relations TO {role}",
    "GRANT SELECT, INSERT ON agent_runs TO {role}",
    """GRANT UPDATE (status, worker_id, owner_token, lease_expires_at, heartbeat_at, retry_count, started_at,
                     finished_at, result, error_type, error_message) ON agent_runs TO {role}""",
)
ATTEMPT_GRANTS: Final[tuple[LiteralString, ...]] = (
    """GRANT SELECT, INSERT (run_id, attempt_no, owner_token, started_at, heartbeat_at, lease_expires_at)
           ON agent_run_attempts TO {role}""",
    """GRANT UPDATE (heartbeat_at, lease_expires_at, finished_at, outcome, error_type, error_message)
           ON agent_run_attempts TO {role}""",
)
MAINTENANCE_GRANTS: Final[tuple[LiteralString, ...]] = (
    "GRANT EXECUTE ON FUNCTION purge_agent_runs(interval, integer) TO {role}",
)


class SchemaError(Exception):
    """The schema is not what the caller takes it for."""


class SchemaManager:
    """The schema of one database, as its owner.

    `owner_dsn` is a libpq connection string. The two roles get what operations, and what purges, need, and no more.
    """

    def __init__(self, owner_dsn: str, *, application_role: str, maintenance_role: str) -> None:
        self._owner_dsn = owner_dsn
        self._application_role = application_role
        self._maintenance_role = maintenance_role

    def install(self, release: str = CURRENT) -> None:
        """Create the schema of a release in a database that has none."""
        if release not in RELEASES:
            raise SchemaError(f"there is no release {release!r}; there are {', '.join(RELEASES)}")
        if (found := self.revision()) is not None:
            raise SchemaError(f"the database is at revision {found} already; upgrade it instead")
        self._migrate(RELEASES[release])

    def upgrade(self, from_release: str | None = None, *, through: Literal["pre", "post"] = "post") -> None:
        """Bring the schema to the current release, or (`through="pre"`) to where the current code can be rolled out.

        Can be repeated, also after a crash. Where `from_release` is given the schema has to be at least that.
        """
        found = self.revision()
        if found is None:
            raise SchemaError("the database has no schema of agent runs; install one")
        if from_release is not None and found < RELEASES[from_release]:
            raise SchemaError(f"the database is at revision {found}, before release {from_release}")
        steps = [step.revision for step in self.pending() if through == "post" or step.module.phase == "pre"]
        self._migrate(steps[-1] if steps else found)

    def release(self) -> str | None:
        """The newest release whose revisions are all there; None for a database without them."""
        found = self.revision() or ""
        return next((name for name, last in reversed(RELEASES.items()) if last <= found), None)

    def revision(self) -> str | None:
        """The last revision that was applied."""
        with self._connect() as connection:
            return MigrationContext.configure(connection).get_current_revision()

    def pending(self) -> list[Script]:
        """The revisions that an upgrade would apply, oldest first; `module.phase` says when."""
        found = self.revision() or ""
        script = ScriptDirectory.from_config(_config())
        return [step for step in reversed(list(script.walk_revisions())) if step.revision > found]

    def _migrate(self, revision: str) -> None:
        with ALEMBIC, self._connect() as connection:
            connection.execute(text("SELECT pg_advisory_lock(:key)"), {"key": ADVISORY_KEY})
            connection.commit()
            config = _config()
            config.attributes["connection"] = connection
            command.upgrade(config, revision)
            self._grant(connection, revision)
            connection.commit()

    def _grant(self, connection: Connection, revision: str) -> None:
        attempts = revision >= "0002"
        grants = [(grant, self._application_role) for grant in APPLICATION_GRANTS]
        grants += [(grant, self._application_role) for grant in ATTEMPT_GRANTS if attempts]
        grants += [(grant, self._maintenance_role) for grant in MAINTENANCE_GRANTS if attempts]
        for grant, role in grants:
            statement = sql.SQL(grant).format(role=sql.Identifier(role))
            connection.exec_driver_sql(statement.as_string())

    @contextmanager
    def _connect(self) -> Iterator[Connection]:
        engine = create_engine(
            "postgresql+psycopg://",
            creator=lambda: psycopg.connect(self._owner_dsn),
            poolclass=NullPool,
        )
        with engine.connect() as connection:
            connection.execute(text("SELECT set_config('lock_timeout', :wait, false)"), {"wait": LOCK_TIMEOUT})
            connection.commit()
            yield connection


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
    return config
