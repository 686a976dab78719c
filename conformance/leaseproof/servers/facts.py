"""What the servers are: owns the facts about them that evidence carries; must not carry an address or a secret."""

import hashlib
import json
from typing import Any

from leaseproof.servers import roles, valkey
from leaseproof.servers.address import Address

SETTINGS = (
    "autovacuum",
    "block_size",
    "data_checksums",
    "deadlock_timeout",
    "default_transaction_isolation",
    "fsync",
    "full_page_writes",
    "idle_in_transaction_session_timeout",
    "jit",
    "lock_timeout",
    "max_connections",
    "max_locks_per_transaction",
    "server_encoding",
    "session_replication_role",
    "statement_timeout",
    "synchronous_commit",
    "TimeZone",
    "wal_level",
)


def describe(connection: roles.Connection, address: Address) -> dict[str, Any]:
    """PostgreSQL's version with the settings that bear on the checks, and the version of Redis (None without one)."""
    rows = connection.execute(
        "SELECT name, setting FROM pg_settings WHERE name = ANY(%s) ORDER BY name", (list(SETTINGS),)
    ).fetchall()
    settings = {str(name): str(value) for name, value in rows}
    canonical = json.dumps(settings, sort_keys=True, separators=(",", ":"))
    return {
        "embedded": address.embedded,
        "postgresql": {
            "version": connection.info.parameter_status("server_version"),
            "settings": settings,
            "settings_sha256": hashlib.sha256(canonical.encode()).hexdigest(),
        },
        "redis": None if address.redis_url is None else {"version": valkey.version(address.redis_url)},
    }
