"""Servers for a run, from the controller's side: owns starting or reaching them once, and ending them.

Must not touch pytest. Embedded servers run under `leaseproof.servers.supervisor`; given ones are used as they are.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, field

import psycopg
from psycopg import pq
from psycopg.conninfo import make_conninfo

from leaseproof.servers import account, folders, postgres, roles, valkey
from leaseproof.servers.address import RUN, Address, new_run
from leaseproof.servers.cluster import Cluster
from leaseproof.servers.errors import ServersError
from leaseproof.servers.supervisor import Order, Started

DSN = "LEASEPROOF_DSN"
REDIS_URL = "LEASEPROOF_REDIS_URL"
RUN_ID = "LEASEPROOF_RUN"
END_SECONDS = 5.0
SESSION_VARIABLES = frozenset({"PGAPPNAME", "PGCLIENTENCODING", "PGOPTIONS"})


@dataclass(frozen=True)
class Choice:
    """What the user asks for: servers of their own, or another bin directory; `run` is the id to use."""

    dsn: str | None = field(default=None, repr=False)
    redis_url: str | None = field(default=None, repr=False)
    pg_bin: str | None = None
    run: str | None = None

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> "Choice":
        names = (DSN, REDIS_URL, postgres.CHOICE, RUN_ID)
        return cls(*(environment.get(name) or None for name in names))


class Servers:
    """The servers of a run; `close` ends what was started and drops what was made."""

    def __init__(self, address: Address, holder: roles.Connection, supervisor: "subprocess.Popen[str] | None") -> None:
        self.address = address
        self._holder = holder
        self._supervisor = supervisor

    def close(self) -> None:
        if self._supervisor is not None:
            self._holder.close()
            _end(self._supervisor)
            return
        try:
            roles.drop_run(self._holder, self.address.run)
        except psycopg.Error as error:
            raise ServersError(
                f"databases and roles named {self.address.prefix}* may be left on the server of --dsn "
                f"({type(error).__name__}): the next run removes them"
            ) from error
        finally:
            self._holder.close()


def start(choice: Choice) -> Servers:
    """Start or reach the servers, and make the roles of the run. Raises ServersError with the remedy."""
    run = choice.run or new_run()
    if not RUN.fullmatch(run):
        raise ServersError(f"{run!r} is no id of a run: use r and seven hexadecimal digits")
    if choice.redis_url:
        valkey.version(choice.redis_url)
    return _embedded(choice, run) if choice.dsn is None else _given(choice, choice.dsn, run)


def drop_run(dsn: str, run: str) -> list[str]:
    """Drop all databases and roles of the run on a given server; answers their names. For use after an interrupt."""
    with closing(roles.connect(dsn, f"leaseproof {run} clean-up")) as connection:
        try:
            roles.end_sessions(connection, run)
            return roles.drop_run(connection, run)
        except psycopg.Error as error:
            raise ServersError(f"they can't be dropped ({type(error).__name__}: {error})") from error


def misleading_variables(choice: Choice) -> list[str]:
    """Environment variables of libpq that would change what sessions do, or where embedded servers are sought."""
    known = [option.envvar.decode() for option in pq.Conninfo.get_defaults() if option.envvar]
    return known if choice.dsn is None else [name for name in known if name in SESSION_VARIABLES]


def _embedded(choice: Choice, run: str) -> Servers:
    binaries = postgres.find(choice.pg_bin)
    who = account.choose()
    place = folders.choose(who)
    binaries = binaries.for_account(who)
    program = None if choice.redis_url else valkey.for_account(valkey.find(), who)
    order = Order(
        run=run,
        place=str(place),
        bin_dir=str(binaries.bin_dir),
        version=binaries.version,
        valkey=str(program) if program else None,
        account=(who.uid, who.gid) if who else None,
        parent=os.getpid(),
    )
    supervisor = _launch()
    try:
        started = _ask(supervisor, order)
        address = Address.make(
            run=run,
            admin_dsn=make_conninfo(
                host=started.socket_dir, port=postgres.PORT, user=postgres.SUPERUSER, dbname="postgres"
            ),
            redis_url=choice.redis_url or started.redis_url,
            embedded=True,
            bin_dir=str(binaries.bin_dir),
        )
        return Servers(address, _prepare(address), supervisor)
    except BaseException:
        _end(supervisor)
        raise


def _given(choice: Choice, dsn: str, run: str) -> Servers:
    with closing(roles.connect(dsn, "leaseproof")) as connection:
        roles.check(connection)
        roles.sweep(connection)
    address = Address.make(run=run, admin_dsn=dsn, redis_url=choice.redis_url, embedded=False, bin_dir=choice.pg_bin)
    servers = Servers(address, _prepare(address), None)
    try:
        _try_out(address)
    except BaseException:
        servers.close()
        raise
    return servers


def _try_out(address: Address) -> None:
    """Each role of the run can log in to a database of the run; a given server's pg_hba.conf may forbid it."""
    cluster = Cluster(address, "probe")
    try:
        scratch = cluster.clone()
        for dsn in (scratch.owner_dsn, scratch.app_dsn, scratch.maintenance_dsn):
            roles.connect(dsn, "leaseproof probe").close()
    except psycopg.Error as error:
        raise ServersError(f"no database for a check can be made on the server of --dsn: {error}") from error
    finally:
        cluster.close()


def _prepare(address: Address) -> roles.Connection:
    """Claim the run's id and make its roles; the connection is the run's sign of life."""
    connection = roles.connect(address.admin_dsn, f"leaseproof {address.run}")
    try:
        roles.claim_run(connection, address.run)
        roles.create(connection, address)
    except psycopg.Error as error:
        connection.close()
        raise ServersError(f"the roles of the run can't be made: {error}; grant the role of --dsn more") from error
    return connection


def _launch() -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "leaseproof.servers.supervisor"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )


def _ask(supervisor: "subprocess.Popen[str]", order: Order) -> Started:
    if supervisor.stdin is None or supervisor.stdout is None:
        raise RuntimeError("the supervisor was started without pipes")
    supervisor.stdin.write(json.dumps(asdict(order)) + "\n")
    supervisor.stdin.flush()
    line = supervisor.stdout.readline()
    if not line:
        raise ServersError(
            f"the servers' supervisor ended with code {supervisor.wait()} before it answered: start again"
        )
    answer = json.loads(line)
    if "error" in answer:
        raise ServersError(str(answer["error"]))
    return Started(**answer)


def _end(supervisor: "subprocess.Popen[str]") -> None:
    """Close the pipe, at which the supervisor ends the servers; returns when all is gone."""
    for pipe in (supervisor.stdin, supervisor.stdout):
        if pipe is not None:
            pipe.close()
    try:
        supervisor.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        supervisor.kill()  # its servers are told by the kernel
        supervisor.wait()
    if supervisor.returncode != 0:
        folders.sweep()
