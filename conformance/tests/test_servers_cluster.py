"""Databases and roles of a run: made and dropped by name, with no more rights than they need."""

import hashlib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo
from servers_of_tests import controller

from leaseproof.servers import roles
from leaseproof.servers.address import Address, new_run
from leaseproof.servers.cluster import BATCH, TEMPLATES, Cluster, Scratch
from leaseproof.servers.errors import ServersError
from leaseproof.servers.leaks import left_over
from leaseproof.servers.start import Choice, Servers, drop_run, misleading_variables, start
from leaseproof.system import Database

pytestmark = pytest.mark.anyio
DEBIAN_15 = Path("/usr/lib/postgresql/15/bin")
VERSIONS = [
    pytest.param(None, id="embedded"),
    pytest.param(
        str(DEBIAN_15), id="15", marks=pytest.mark.skipif(not DEBIAN_15.is_dir(), reason=f"no {DEBIAN_15} here")
    ),
]


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module", params=VERSIONS)
def servers(request: pytest.FixtureRequest) -> Iterator[Servers]:
    started = start(Choice(pg_bin=request.param))
    yield started
    started.close()


@pytest.fixture
def databases(servers: Servers) -> Iterator[Cluster]:
    opened = Cluster(servers.address, "main")
    yield opened
    opened.close()
    with closing(roles.connect(servers.address.admin_dsn, "clean-up")) as connection:
        for (name,) in connection.execute("SELECT datname FROM pg_database WHERE datname LIKE 'lp\\_%'").fetchall():
            connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(str(name))))


async def install(database: Database) -> None:
    with psycopg.connect(database.owner_dsn) as connection:
        connection.execute("CREATE TABLE things (id int PRIMARY KEY)")
        connection.execute(
            sql.SQL("GRANT SELECT, INSERT, UPDATE ON things TO {}").format(sql.Identifier(database.app_role))
        )
        connection.execute("INSERT INTO things VALUES (1)")


@pytest.fixture
async def scratch(databases: Cluster) -> Scratch:
    return databases.clone(await databases.template("things", install))


def names(cluster: Cluster) -> set[str]:
    rows = cluster.admin.execute("SELECT datname FROM pg_database WHERE datname LIKE 'lp\\_%'").fetchall()
    return {str(name) for (name,) in rows}


def refusal(dsn: str, statement: str) -> str | None:
    with psycopg.connect(dsn, autocommit=True) as connection, pytest.raises(psycopg.Error) as caught:
        connection.execute(statement)
    return caught.value.sqlstate


async def test_a_template_is_built_once_and_its_clones_are_apart(databases: Cluster) -> None:
    built = []

    async def build(database: Database) -> None:
        built.append(database)
        await install(database)

    template = await databases.template("key", build)
    assert await databases.template("key", build) == template
    assert len(built) == 1
    first, second = databases.clone(template), databases.clone(template)
    with psycopg.connect(first.app_dsn) as connection:
        connection.execute("INSERT INTO things VALUES (2)")
    with psycopg.connect(second.app_dsn) as connection:
        assert connection.execute("SELECT id FROM things").fetchall() == [(1,)]


async def test_a_build_that_fails_leaves_no_template_and_is_tried_anew(databases: Cluster) -> None:
    async def fail(database: Database) -> None:
        with psycopg.connect(database.owner_dsn):
            raise LookupError("no schema")

    with pytest.raises(LookupError, match="no schema"):
        await databases.template("key", fail)
    assert names(databases) == set()
    assert await databases.template("key", install) in names(databases)


async def test_nobody_connects_to_a_template_once_it_is_built(databases: Cluster) -> None:
    template = await databases.template("key", install)
    with pytest.raises(psycopg.OperationalError, match="not currently accepting connections"):
        psycopg.connect(databases.address.dsn(template, databases.address.owner_role))


async def test_templates_make_room_for_later_ones(databases: Cluster) -> None:
    first = await databases.template("first", install)
    second = await databases.template("second", install)
    for number in range(TEMPLATES - 2):
        await databases.template(str(number), install)
    assert await databases.template("first", install) == first
    await databases.template("last", install)
    assert first in names(databases)
    assert second not in names(databases)


async def test_discarded_databases_are_dropped_in_a_batch_but_for_one_in_use(databases: Cluster) -> None:
    made = [databases.clone() for _ in range(BATCH)]
    with psycopg.connect(made[0].owner_dsn) as used:
        for scratch in made[1:]:
            databases.discard(scratch)
        assert len(names(databases)) == BATCH
        databases.discard(made[0])
        assert names(databases) == {made[0].name}
        assert used.execute("SELECT 1").fetchone() == (1,)


async def test_the_application_role_can_use_what_it_was_granted_and_no_more(scratch: Scratch) -> None:
    for statement in (
        "CREATE DATABASE mine",
        "CREATE ROLE mine",
        "CREATE TABLE mine (id int)",
        "CREATE TEMP TABLE mine (id int)",
        "CREATE SCHEMA mine",
        "SELECT * FROM pg_authid",
        "SELECT pg_read_file('/etc/passwd')",
        "COPY things TO PROGRAM 'true'",
        "DELETE FROM things",
        "DROP TABLE things",
        "ALTER TABLE things ADD other int",
        "ALTER SYSTEM SET fsync = on",
        "SET session_replication_role = replica",
    ):
        assert refusal(scratch.app_dsn, statement) == "42501", statement


async def test_no_role_of_the_run_has_rights_of_an_administrator(scratch: Scratch, databases: Cluster) -> None:
    for dsn in (scratch.owner_dsn, scratch.app_dsn, scratch.maintenance_dsn):
        for statement in ("CREATE DATABASE mine", "CREATE ROLE mine", "SELECT * FROM pg_authid"):
            assert refusal(dsn, statement) == "42501"
    rows = databases.admin.execute(
        "SELECT rolsuper OR rolcreaterole OR rolcreatedb OR rolreplication OR rolbypassrls FROM pg_roles "
        "WHERE rolname LIKE 'lp\\_%'"
    ).fetchall()
    assert rows == [(False,)] * 3


async def test_the_roles_of_the_run_are_not_members_of_each_other(scratch: Scratch) -> None:
    address_roles = scratch.app_role, scratch.maintenance_role
    for dsn in (scratch.app_dsn, scratch.maintenance_dsn):
        for role in (scratch.app_role.replace("app", "owner"), *address_roles):
            if role not in dsn:
                assert refusal(dsn, f"SET ROLE {role}") == "42501"


async def test_only_roles_of_the_run_may_connect_to_its_databases(scratch: Scratch, databases: Cluster) -> None:
    databases.admin.execute("CREATE ROLE stranger LOGIN")
    try:
        with pytest.raises(psycopg.OperationalError, match="permission denied for database"):
            psycopg.connect(make_conninfo(scratch.admin_dsn, user="stranger"))
    finally:
        databases.admin.execute("DROP ROLE stranger")


async def test_the_owner_installs_in_its_own_database(scratch: Scratch) -> None:
    with psycopg.connect(scratch.owner_dsn) as connection:
        connection.execute("CREATE SCHEMA more")
        connection.execute("ALTER TABLE things ADD other int")


async def test_closed_clients_leave_nothing(databases: Cluster, scratch: Scratch) -> None:
    for _ in range(20):
        psycopg.connect(scratch.app_dsn).close()
        assert await left_over(databases, scratch) == []


@pytest.mark.parametrize(
    ("statements", "seen"),
    [
        (["SELECT 1", "COMMIT"], ["is idle;"]),
        (["SELECT 1"], ["is idle in transaction"]),
        (["UPDATE things SET id = 3"], ["idle in transaction", "holds", "RowExclusiveLock on things", "transactionid"]),
        (["SELECT pg_advisory_lock(7)", "COMMIT"], ["is idle,", "ExclusiveLock on advisory"]),
    ],
    ids=["open session", "idle transaction", "held row lock", "held advisory lock"],
)
async def test_what_a_client_leaves_open_is_described(
    databases: Cluster, scratch: Scratch, statements: list[str], seen: list[str]
) -> None:
    with closing(psycopg.connect(scratch.app_dsn, application_name="worker")) as connection:
        for statement in statements:
            connection.execute(statement)
        (found,) = await left_over(databases, scratch, within=0)
        assert f"session {connection.info.backend_pid} of {scratch.app_role} (application_name 'worker')" in found
        for part in seen:
            assert part in found
        assert await left_over(databases, scratch, within=0, but=[connection.info.backend_pid]) == []
    assert await left_over(databases, scratch) == []


async def test_a_description_of_the_servers_is_stable_and_holds_no_secret(databases: Cluster) -> None:
    described = databases.describe()
    assert described == databases.describe()
    assert described["embedded"] is True
    assert described["redis"]["version"].startswith("valkey ")
    assert len(described["postgresql"]["settings_sha256"]) == hashlib.sha256().digest_size * 2
    assert "/" not in repr(described)  # no path, no address
    for secret in (*databases.address.roles().values(), databases.address.admin_dsn):
        assert secret not in repr(described) + repr(databases.address)


async def test_a_process_needs_a_name_that_can_stand_in_a_database_name(servers: Servers) -> None:
    with pytest.raises(ValueError, match="lower-case"):
        Cluster(servers.address, "Main; --")


def admin(address: Address, name: str, rights: str) -> str:
    """The connection string of a new role with these rights on the server."""
    with closing(roles.connect(address.admin_dsn, "test")) as connection:
        connection.execute(
            sql.SQL("CREATE ROLE {} LOGIN PASSWORD 'seCret' ").format(sql.Identifier(name)) + sql.SQL(rights)
        )
    return make_conninfo(address.admin_dsn, user=name, password="seCret")


def remains(address: Address, run: str) -> list[str]:
    with closing(roles.connect(address.admin_dsn, "test")) as connection:
        rows = connection.execute(
            "SELECT datname FROM pg_database WHERE datname LIKE %(run)s "
            "UNION ALL SELECT rolname FROM pg_roles WHERE rolname LIKE %(run)s",
            {"run": f"%{run}%"},
        ).fetchall()
    return [str(name) for (name,) in rows]


@pytest.fixture
def given(servers: Servers) -> Iterator[str]:
    """A server of the user's: its administrator may make databases and roles, and is no superuser."""
    yield admin(servers.address, "builder", "CREATEDB CREATEROLE")
    with closing(roles.connect(servers.address.admin_dsn, "test")) as connection:
        connection.execute("DROP ROLE builder")


async def test_a_given_server_is_used_and_left_as_it_was(given: str, servers: Servers) -> None:
    own = start(Choice(dsn=given, redis_url=servers.address.redis_url))
    cluster = Cluster(own.address, "main")
    scratch = cluster.clone(await cluster.template("things", install))
    with closing(psycopg.connect(scratch.app_dsn)) as left_open:
        assert left_open.execute("SELECT count(*) FROM things").fetchone() == (1,)
        (found,) = await left_over(cluster, scratch, within=0)
        assert f"of {scratch.app_role}" in found
        assert cluster.describe()["embedded"] is False
        cluster.discard(scratch)
        cluster.close()
        own.close()
    assert remains(servers.address, own.address.run) == []


async def test_a_dead_run_on_a_given_server_is_swept_and_a_living_one_is_not(given: str, servers: Servers) -> None:
    dead = start(Choice(dsn=given))
    cluster = Cluster(dead.address, "main")
    cluster.clone()
    cluster.admin.close()
    dead._holder.close()
    living = start(Choice(dsn=given, run="rabcdef0"))
    Cluster(living.address, "main").admin.close()
    assert remains(servers.address, dead.address.run) == []
    third = start(Choice(dsn=given))
    assert len(remains(servers.address, "rabcdef0")) == 3
    third.close()
    living.close()
    assert remains(servers.address, "lp_") == remains(servers.address, servers.address.run)


async def test_names_that_only_look_like_a_run_are_left_alone(given: str, servers: Servers) -> None:
    with closing(roles.connect(given, "test")) as connection:
        for name in ("lp_r1234567_data", "lp_rubbish", "leaseproof"):
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        start(Choice(dsn=given)).close()
        assert {"lp_r1234567_data", "lp_rubbish"} <= set(remains(servers.address, "lp_r"))
        for name in ("lp_r1234567_data", "lp_rubbish", "leaseproof"):
            connection.execute(sql.SQL("DROP DATABASE {}").format(sql.Identifier(name)))


async def test_a_run_is_dropped_by_its_id(given: str, servers: Servers) -> None:
    own = start(Choice(dsn=given))
    cluster = Cluster(own.address, "gw0")
    scratch = cluster.clone()
    with psycopg.connect(scratch.app_dsn):
        assert scratch.name in drop_run(given, own.address.run)
    assert remains(servers.address, own.address.run) == []
    cluster.admin.close()
    with pytest.raises(ServersError, match="may be left"):  # its own session was ended with the run
        own.close()


@pytest.mark.parametrize(
    ("rights", "said"),
    [
        ("CREATEROLE", "lacks CREATEDB: no check can have a database of its own, so none can run; ALTER ROLE"),
        ("CREATEDB", "lacks CREATEROLE: the system would run with an administrator's rights"),
    ],
)
async def test_a_role_that_lacks_a_right_is_told_what_is_lost(servers: Servers, rights: str, said: str) -> None:
    dsn = admin(servers.address, "limited", rights)
    try:
        with pytest.raises(ServersError) as caught:
            start(Choice(dsn=dsn))
        assert said in str(caught.value)
        assert "seCret" not in str(caught.value)
    finally:
        with closing(roles.connect(servers.address.admin_dsn, "test")) as connection:
            connection.execute("DROP ROLE limited")


async def test_a_server_that_does_not_answer_is_named_without_its_password(tmp_path: Path) -> None:
    with pytest.raises(ServersError, match="PostgreSQL can't be reached") as caught:
        start(Choice(dsn=f"host={tmp_path} user=someone password=seCret"))
    assert "seCret" not in str(caught.value)
    with pytest.raises(ServersError, match="Redis does not answer") as caught:
        start(Choice(redis_url=f"unix://:seCret@{tmp_path}/none.sock"))
    assert "seCret" not in str(caught.value)


async def test_a_wrong_run_id_is_refused() -> None:
    with pytest.raises(ServersError, match="is no id of a run"):
        start(Choice(run="mine; --"))
    assert new_run() != new_run()


async def test_variables_of_libpq_do_not_mislead_embedded_servers() -> None:
    assert {"PGHOST", "PGOPTIONS", "PGSERVICE"} <= set(misleading_variables(Choice()))
    assert "PGPASSWORD" not in misleading_variables(Choice(dsn="host=somewhere"))
    assert "PGOPTIONS" in misleading_variables(Choice(dsn="host=somewhere"))


@pytest.mark.parametrize("workers", ["0", "2", "4"])
def test_each_process_of_a_session_has_its_own_databases_on_the_same_servers(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, workers: str
) -> None:
    monkeypatch.setenv("PGOPTIONS", "-c default_transaction_isolation=serializable")
    pytester.makepyfile(
        f"""
        import pathlib, psycopg, pytest
        @pytest.mark.parametrize("number", range(12))
        def test_any(cluster, number):
            scratch = cluster.clone()
            pathlib.Path({str(tmp_path)!r}, scratch.name).touch()
            with psycopg.connect(scratch.app_dsn) as connection:
                assert connection.execute("SHOW transaction_isolation").fetchone() == ("read committed",)
            cluster.discard(scratch)
        """
    )
    result = pytester.runpytest_subprocess("-p", "leaseproof.servers.plugin", "-n", workers)
    result.assert_outcomes(passed=12)
    made = [path.name.split("_") for path in tmp_path.glob("lp_*")]
    assert len(made) == 12
    assert len({run for _, run, _, _ in made}) == 1
    assert {process for _, _, process, _ in made} <= {"main", "gw0", "gw1", "gw2", "gw3"}


async def test_a_killed_controller_on_a_given_server_is_swept_by_the_next(given: str, servers: Servers) -> None:
    with controller(LEASEPROOF_DSN=given) as one:
        one.process.kill()
    assert len(remains(servers.address, one.address.run)) == 3
    start(Choice(dsn=given)).close()
    assert remains(servers.address, one.address.run) == []
