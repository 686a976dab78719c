"""The world of one check: a database of its own, the system's actors in it, and what the kit sees and sets there.

Owns the connections of a check and closes them; must not judge.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import datetime, timedelta
from typing import Any, Literal

from psycopg import AsyncConnection
from psycopg.conninfo import make_conninfo

from leaseproof.capabilities import Cap
from leaseproof.checks import refute
from leaseproof.servers.cluster import Cluster, Scratch
from leaseproof.servers.leaks import left_over
from leaseproof.system import RunTable, System
from leaseproof.world.actors import Participant, judged
from leaseproof.world.facts import Run
from leaseproof.world.observe import Observer, Snapshot, run_table_of
from leaseproof.world.plant import Planter
from leaseproof.world.rows import RowWriter
from leaseproof.world.sessions import Session
from leaseproof.world.trees import Branch, Tree, assemble, seeds
from leaseproof.world.waits import Watch

Role = Literal["owner", "app", "maintenance"]


class World:
    """Made by `World.open`, which gives it a database in which `release` of the system is installed."""

    def __init__(self, system: System, cluster: Cluster, scratch: Scratch, stack: AsyncExitStack) -> None:
        self.system = system
        self.scratch = scratch
        self._cluster = cluster
        self._stack = stack
        self.plant: Planter
        self.watch: Watch
        self._observer: Observer

    @classmethod
    async def open(cls, system: System, cluster: Cluster, release: str | None = None) -> "World":
        """Clone the template of this release (the current one unless given), and connect."""
        wanted = release or system.releases[-1]
        template = await cluster.template(
            f"{system.schema}@{wanted}", lambda database: system.install(database, wanted)
        )
        scratch = cluster.clone(template)
        world = cls(system, cluster, scratch, AsyncExitStack())
        owner = await world.connect("kit", scratch.owner_dsn, autocommit=True)
        world.plant = Planter(owner, system)
        world._observer = Observer(owner, system.facts)
        world.watch = Watch(await world.connect("kit-watch", scratch.admin_dsn, autocommit=True))
        return world

    async def connect(self, name: str, dsn: str, *, autocommit: bool = False) -> AsyncConnection[Any]:
        """A connection of the kit's own, closed with the world."""
        conninfo = make_conninfo(dsn, application_name=name)
        connection = await AsyncConnection.connect(conninfo, autocommit=autocommit)
        self._stack.push_async_callback(connection.close)
        return connection

    def _dsn(self, role: Role) -> str:
        dsns: dict[Role, str] = {
            "owner": self.scratch.owner_dsn,
            "app": self.scratch.app_dsn,
            "maintenance": self.scratch.maintenance_dsn,
        }
        return dsns[role]

    def actor(self, name: str, *, role: Role = "app", statement_timeout: float | None = None) -> Participant:
        """A participant with connections of its own, closed with the world."""
        session_name = f"actor-{name}"
        conninfo = make_conninfo(self._dsn(role), application_name=session_name)
        with judged(f"{name}: actor"):
            actor = self.system.actor(conninfo, statement_timeout=statement_timeout)
        participant = Participant(self.system, actor, name, session_name, self.watch)
        self._stack.push_async_callback(participant.close)
        return participant

    async def session(self, name: str, *, role: Role = "owner") -> Session:
        """A plain session of the suite, closed with the world."""
        return Session(await self.connect(f"suite-{name}", self._dsn(role)), self.system.facts.lock)

    @property
    def run_table(self) -> RunTable:
        """The table that holds a row a run; `Undecided` without one."""
        return run_table_of(self.system.facts)

    def promises(self, *capabilities: Cap) -> bool:
        """Whether the system promises all of these: a check leaves out what it does not promise."""
        return self.system.capabilities.issuperset(capabilities)

    async def keeps(self, field: Literal["result", "error_type", "retry_count"]) -> bool:
        """Whether the system keeps this field of a run: a planted run, which stays, is read back with it."""
        fields: dict[str, Any] = {"result": "1", "error_type": "kept", "retry_count": 1}
        run = await self.run("failed", attempt=False, **{field: fields[field]})
        return getattr((await self.snapshot()).runs[run.id], field) is not None

    async def upgrade(self, from_release: str) -> None:
        """Upgrade this database in place, as its owner."""
        with judged("upgrade"):
            await self.system.upgrade(self.scratch.database, from_release)

    async def run(self, status: str | None = "pending", **fields: Any) -> Run:
        """Plant a run; see `Planter.run`."""
        return await self.plant.run(status, **fields)

    async def tree(
        self,
        root: str,
        children: Sequence[Branch] = (),
        *,
        insertion: Literal["forward", "reverse"] = "forward",
        created_at: Callable[[int], datetime] | None = None,
    ) -> Tree:
        """Plant a tree of subagent runs. Ids, and times unless given, ascend in the order of the outline, each run
        before its subagents; `created_at` gives the n-th run's time (0 is the root). Rows are inserted in that order
        too, or in reverse: level by level, and in each level the run that stands last in the outline first.
        """
        outline = seeds((root, children))
        numbers = range(len(outline))
        fields: list[dict[str, Any]] = [
            {"id": self.plant.name("run"), "created_at": created_at(n) if created_at else self.plant.moment()}
            for n in numbers
        ]
        runs: dict[int, Run] = {}
        for n in numbers if insertion == "forward" else sorted(numbers, key=lambda n: (outline[n].depth, -n)):
            creator = outline[n].creator
            runs[n] = await self.plant.run(
                outline[n].status, creator=None if creator is None else runs[creator], **fields[n]
            )
        return assemble(outline, [runs[n] for n in numbers])

    async def age(self, run: Run | str, by: timedelta | None = None) -> None:
        """Let the run's lease expire: move it into the past by `by`, two leases of the system unless given."""
        identity = run if isinstance(run, str) else run.id
        await self.plant.age(identity, by or timedelta(seconds=2 * self.system.timeouts.lease))

    async def snapshot(self) -> Snapshot:
        """What the database says now."""
        return await self._observer.snapshot()

    async def raw(self, table: str) -> list[str]:
        """Every row of a table, byte for byte."""
        return await self._observer.raw(table)

    async def raw_runs(self) -> dict[str, str]:
        """Every run's row, byte for byte, by id; as the view gives it where runs don't lie in one table."""
        return await self._observer.raw_runs()

    async def digest(self) -> dict[str, list[str]]:
        """The contents of all the system's tables."""
        return {table: await self.raw(table) for table in self.system.facts.tables}

    async def layout(self) -> dict[str, list[str]]:
        """The columns of each of the system's tables that this release has."""
        tables = {table: await self._observer.columns(table) for table in self.system.facts.tables}
        return {table: columns for table, columns in tables.items() if columns}

    async def digest_of(self, layout: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
        """The contents of these columns, to compare what an earlier release wrote with what is there now."""
        return {table: await self._observer.raw(table, columns) for table, columns in layout.items()}

    async def row_writer(self, right: Literal["INSERT", "UPDATE"], fields: Sequence[str]) -> RowWriter:
        """Writes runs as the application's role where its grants allow this on all the fields, else as the owner."""
        table = self.run_table
        writer = RowWriter(await self.connect("suite-app-rows", self.scratch.app_dsn, autocommit=True), table)
        if await writer.may(right, fields):
            return writer
        return RowWriter(await self.connect("suite-owner-rows", self.scratch.owner_dsn, autocommit=True), table)

    async def close(self) -> None:
        """Close every connection; refute (`leaked_session`) what the system leaves behind; drop the database later."""
        try:
            await self._stack.aclose()
            if left := await left_over(self._cluster, self.scratch):
                refute("leaked_session", "; ".join(left))
        finally:
            self._cluster.discard(self.scratch)
