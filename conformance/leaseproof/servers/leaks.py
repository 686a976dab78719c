"""What a check leaves behind in its database: owns that question; must not end anything."""

import time
from collections.abc import Collection
from typing import Final

import anyio

from leaseproof.servers.cluster import Cluster, Scratch

POLL_SECONDS: Final = 0.005

SESSIONS: Final = """
SELECT a.pid, a.usename, a.application_name, a.state, left(a.query, 200) AS query,
       (SELECT string_agg(DISTINCT concat_ws(' on ', l.mode, l.relation::regclass::text), ', ')
          FROM pg_locks l WHERE l.pid = a.pid AND l.granted AND l.locktype <> 'virtualxid') AS locks
  FROM pg_stat_activity a
 WHERE a.datname = %(name)s AND a.backend_type = 'client backend' AND NOT a.pid = ANY(%(but)s)
 ORDER BY a.backend_start, a.pid
"""
PREPARED: Final = "SELECT gid, owner FROM pg_prepared_xacts WHERE database = %(name)s ORDER BY prepared, gid"


async def left_over(cluster: Cluster, scratch: Scratch, within: float = 2.0, *, but: Collection[int] = ()) -> list[str]:
    """Sessions, with their transactions and locks, and prepared transactions that are still in the database.

    A closed client's session takes some milliseconds to vanish: waits at most `within` seconds for an empty database.
    `but` are pids of the kit's own sessions there.
    """
    deadline = time.monotonic() + within
    while found := _look(cluster, scratch, but):
        if time.monotonic() >= deadline:
            return found
        await anyio.sleep(POLL_SECONDS)
    return []


def _look(cluster: Cluster, scratch: Scratch, but: Collection[int]) -> list[str]:
    parameters = {"name": scratch.name, "but": list(but)}
    sessions = cluster.admin.execute(SESSIONS, parameters).fetchall()
    prepared = cluster.admin.execute(PREPARED, parameters).fetchall()
    return [
        f"session {pid} of {role} (application_name {name!r}) is {state or 'unknown'}"
        + (f", holds {locks}" if locks else "")
        + f"; last statement: {query}"
        for pid, role, name, state, query, locks in sessions
    ] + [f"transaction {gid!r} prepared by {owner} and never ended" for gid, owner in prepared]
