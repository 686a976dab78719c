"""What a check leaves behind in its database: owns that question; must not end anything."""

import time
from collections.abc import Collection
from contextlib import closing
from typing import Final

import anyio

from leaseproof.servers import roles
from leaseproof.servers.cluster import Cluster, Scratch

POLL_SECONDS: Final = 0.005

COUNT: Final = """
SELECT (SELECT count(*) FROM pg_stat_activity
         WHERE datname = %(name)s AND backend_type = 'client backend' AND NOT pid = ANY(%(but)s))
     + (SELECT count(*) FROM pg_prepared_xacts WHERE database = %(name)s)
"""
SESSIONS: Final = """
SELECT a.pid, a.usename, a.application_name, a.state, left(a.query, 200),
       (SELECT string_agg(DISTINCT concat_ws(' on ', l.mode, coalesce(l.relation::regclass::text, l.locktype)), ', ')
          FROM pg_locks l WHERE l.pid = a.pid AND l.granted AND l.locktype <> 'virtualxid')
  FROM pg_stat_activity a
 WHERE a.datname = %(name)s AND a.backend_type = 'client backend' AND NOT a.pid = ANY(%(but)s)
   AND a.pid <> pg_backend_pid()
 ORDER BY a.backend_start, a.pid
"""
PREPARED: Final = "SELECT gid, owner FROM pg_prepared_xacts WHERE database = %(name)s ORDER BY prepared, gid"


async def left_over(cluster: Cluster, scratch: Scratch, within: float = 2.0, *, but: Collection[int] = ()) -> list[str]:
    """Sessions, with their transactions and locks, and prepared transactions that are still in the database.

    A closed client's session takes some milliseconds to vanish: waits at most `within` seconds for an empty database.
    `but` are pids of the kit's own sessions there.
    """
    parameters: dict[str, object] = {"name": scratch.name, "but": list(but)}
    deadline = time.monotonic() + within
    while cluster.admin.execute(COUNT, parameters).fetchone() != (0,):
        if time.monotonic() >= deadline:
            return _describe(scratch, parameters)
        await anyio.sleep(POLL_SECONDS)
    return []


def _describe(scratch: Scratch, parameters: dict[str, object]) -> list[str]:
    """Asked inside the database, where the names of locked tables are known."""
    with closing(roles.connect(scratch.admin_dsn, "leaseproof leak check")) as connection:
        sessions = connection.execute(SESSIONS, parameters).fetchall()
        prepared = connection.execute(PREPARED, parameters).fetchall()
    return [
        f"session {pid} of {role} (application_name {name!r}) is {state or 'unknown'}"
        + (f", holds {locks}" if locks else "")
        + f"; last statement: {query}"
        for pid, role, name, state, query, locks in sessions
    ] + [f"transaction {gid!r} prepared by {owner} and never ended" for gid, owner in prepared]
