"""Where the servers of a run are. Owns the value that the controller hands to every process; must not connect."""

import json
import re
import secrets
from dataclasses import asdict, dataclass, field

from psycopg.conninfo import make_conninfo

RUN = re.compile(r"r[0-9a-f]{7}")


def new_run() -> str:
    """A short id, good in names of roles, databases and folders: "r" and seven hexadecimal digits."""
    return f"r{secrets.token_hex(4)[:7]}"


@dataclass(frozen=True)
class Address:
    """The servers of one run, with the names and passwords of the roles that are made for it.

    `redis_url` is None where no Redis was started or given; `bin_dir` where none is known (a given server). Secrets
    stay out of the representation.
    """

    run: str
    embedded: bool
    admin_dsn: str = field(repr=False)
    redis_url: str | None = field(repr=False)
    owner_password: str = field(repr=False)
    app_password: str = field(repr=False)
    maintenance_password: str = field(repr=False)
    bin_dir: str | None = None

    @property
    def prefix(self) -> str:
        """What the names of all databases and roles of this run begin with."""
        return f"lp_{self.run}_"

    @property
    def owner_role(self) -> str:
        return f"{self.prefix}owner"

    @property
    def app_role(self) -> str:
        return f"{self.prefix}app"

    @property
    def maintenance_role(self) -> str:
        return f"{self.prefix}maintenance"

    def roles(self) -> dict[str, str]:
        """Role name to password."""
        return {
            self.owner_role: self.owner_password,
            self.app_role: self.app_password,
            self.maintenance_role: self.maintenance_password,
        }

    def dsn(self, database: str, role: str | None = None) -> str:
        """A connection string for the database: as one of the run's roles, else as the administrator."""
        if role is None:
            return make_conninfo(self.admin_dsn, dbname=database)
        return make_conninfo(self.admin_dsn, dbname=database, user=role, password=self.roles()[role])

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Address":
        return cls(**json.loads(text))

    @classmethod
    def make(
        cls, *, run: str, admin_dsn: str, redis_url: str | None, embedded: bool, bin_dir: str | None = None
    ) -> "Address":
        """An address with fresh passwords for its roles."""
        owner, app, maintenance = (secrets.token_urlsafe(18) for _ in range(3))
        return cls(run, embedded, admin_dsn, redis_url, owner, app, maintenance, bin_dir)
