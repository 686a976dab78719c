"""What a run leaves on a PostgreSQL server: owns its roles, its life sign, and dropping all of it by name.

Must not touch a database or role that is not named for a run of the kit.
"""

import os
import re
import zlib

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from leaseproof.servers.address import Address
from leaseproof.servers.errors import ServersError

Connection = psycopg.Connection[tuple[object, ...]]

NAMED = re.compile(r"lp_(r[0-9a-f]{7})_\w+")
LIFE = 0x6C656173  # the class of the kit's advisory locks ("leas"); the second key is of the run
SWEEP = LIFE + 1
OLDEST = 150000
CONNECT_SECONDS = 10
UNSAFE = re.compile(r"[^\w.~!$&'()*+,;=:%\-]")  # in the user or password of a URL


def connect(dsn: str, name: str) -> Connection:
    """An administrator's connection. ServersError, without the password, when the server does not let it in."""
    _check_form(dsn)
    try:
        return psycopg.connect(_patient(dsn), autocommit=True, application_name=name)
    except psycopg.Error as error:
        said = " ".join(str(error).split())
        raise ServersError(f"PostgreSQL can't be reached: {said}; check the address, and that it runs") from error


def _check_form(dsn: str) -> None:
    """Refuse what libpq can't read, or would read otherwise than it looks: its message would show parts of it."""
    userinfo = dsn.partition("://")[2].partition("?")[0].rpartition("@")[0]
    try:
        conninfo_to_dict(dsn)
        readable = not UNSAFE.search(userinfo)
    except psycopg.ProgrammingError:
        readable = False
    if not readable:
        raise ServersError(
            "the address given by --dsn can't be read (it is not shown, it may hold a password): give "
            "postgresql://user:password@host:port/database with special characters of user and password as %40 and "
            "so on, or host=... user=... password='...' dbname=..."
        )


def _patient(dsn: str) -> str:
    """The address with a bound on the wait for a server that does not answer, where the user sets none."""
    chosen = "connect_timeout" in conninfo_to_dict(dsn) or os.environ.get("PGCONNECT_TIMEOUT")
    return dsn if chosen else make_conninfo(dsn, connect_timeout=CONNECT_SECONDS)


def claim_run(connection: Connection, run: str) -> None:
    """Show that the run lives, for as long as the connection does; before anything is made for it."""
    connection.execute("SELECT pg_advisory_lock(%s, %s)", (LIFE, _key(run)))


def create(connection: Connection, address: Address) -> None:
    """Make the roles of the run, all or none: they may log in, and nothing else. The administrator joins each.

    Without superuser the membership is what lets it make databases for the owner and see the sessions of all three.
    """
    with connection.transaction():
        for role, password in address.roles().items():
            name = sql.Identifier(role)
            verifier = connection.pgconn.encrypt_password(
                password.encode(), role.encode()
            ).decode()  # what a log may show
            connection.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(name, sql.Literal(verifier)))
            connection.execute(sql.SQL("GRANT {} TO CURRENT_USER").format(name))


def check(connection: Connection) -> None:
    """Whether this server and role will do for a run; ServersError says what is lost and what to do."""
    version = connection.info.server_version
    if version < OLDEST:
        raise ServersError(
            f"the server of --dsn is PostgreSQL {version // 10000}: give one of {OLDEST // 10000} or later"
        )
    found = connection.execute(
        "SELECT current_user, rolsuper OR rolcreatedb, rolsuper OR rolcreaterole, pg_is_in_recovery() "
        "FROM pg_roles WHERE rolname = current_user"
    ).fetchone()
    user, makes_databases, makes_roles, standby = found or ("unknown", False, False, False)
    if standby:
        raise ServersError(
            "the server of --dsn is a standby, where nothing can be made: give the address of its primary"
        )
    if not makes_databases:
        raise ServersError(
            f"the role {user!r} of --dsn lacks CREATEDB: no check can have a database of its own, so none can run; "
            f'ALTER ROLE "{user}" CREATEDB, or leave --dsn out for the embedded server'
        )
    if not makes_roles:
        raise ServersError(
            f"the role {user!r} of --dsn lacks CREATEROLE: the system would run with an administrator's rights, so "
            f'nothing that rests on privileges can be shown; ALTER ROLE "{user}" CREATEROLE, or leave --dsn out for '
            "the embedded server"
        )


def end_sessions(connection: Connection, run: str) -> None:
    """End the administrator's other sessions of a run whose processes are dead: one may still be making a database."""
    connection.execute(
        "SELECT pg_terminate_backend(pid, 2000) FROM pg_stat_activity "
        "WHERE starts_with(application_name, %s) AND pid <> pg_backend_pid()",
        (f"leaseproof {run}",),
    )


def drop_run(connection: Connection, run: str) -> list[str]:
    """Drop every database and role that is named for the run, sessions and all; answers their names."""
    databases = [name for name in _databases(connection) if _run_of(name) == run]
    for name in databases:
        connection.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))
    roles = [name for name in _roles(connection) if _run_of(name) == run]
    for name in roles:
        connection.execute(sql.SQL("DROP ROLE IF EXISTS {}").format(sql.Identifier(name)))
    return databases + roles


def sweep(connection: Connection) -> list[str]:
    """Drop what dead runs left: nobody holds their advisory lock, no session is in their databases or of their roles.

    One sweeps at a time; another that starts meanwhile leaves it to that one.
    """
    (alone,) = connection.execute("SELECT pg_try_advisory_lock(%s, 0)", (SWEEP,)).fetchone() or (False,)
    if not alone:
        return []
    try:
        names = _databases(connection) + _roles(connection)
        runs = sorted({run for name in names if (run := _run_of(name))})
        return [name for run in runs if not _lives(connection, run) for name in drop_run(connection, run)]
    finally:
        connection.execute("SELECT pg_advisory_unlock(%s, 0)", (SWEEP,))


def _lives(connection: Connection, run: str) -> bool:
    held = connection.execute(
        "SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND classid::bigint = %s "
        "AND objid::bigint = %s AND objsubid = 2) "
        "OR EXISTS (SELECT FROM pg_stat_activity WHERE datname LIKE %s OR usename LIKE %s)",
        (LIFE, _key(run) & 0xFFFFFFFF, f"lp\\_{run}\\_%", f"lp\\_{run}\\_%"),
    ).fetchone()
    return held is None or bool(held[0])


def _key(run: str) -> int:
    """A signed 32-bit key of the run."""
    return zlib.crc32(run.encode()) - (1 << 31)


def _run_of(name: str) -> str | None:
    match = NAMED.fullmatch(name)
    return match and match[1]


def _databases(connection: Connection) -> list[str]:
    """Databases that are named for a run, belong to a role of the same run, and are ours to drop."""
    rows = connection.execute(
        "SELECT datname, pg_get_userbyid(datdba) FROM pg_database "
        "WHERE datname LIKE 'lp\\_r%' AND pg_has_role(datdba, 'MEMBER') ORDER BY 1"
    ).fetchall()
    return [str(name) for name, owner in rows if _run_of(str(name)) and _run_of(str(name)) == _run_of(str(owner))]


def _roles(connection: Connection) -> list[str]:
    rows = connection.execute(
        "SELECT rolname FROM pg_roles WHERE rolname LIKE 'lp\\_r%' AND pg_has_role(oid, 'MEMBER') ORDER BY 1"
    ).fetchall()
    return [str(name) for (name,) in rows if _run_of(str(name))]
