"""Creates runs and cancels trees: owns the checks of a new run's place, and the moment of signals; must not write rows
of its own making anywhere else.

`unit_of_work` owns a transaction: what it announces is announced after the commit, or not at all (SIGNAL-1).
"""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

from sqlalchemy import Table, insert, select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from agentrun_reference.outcomes import CancelResult, CreationRefused
from agentrun_reference.repository import AgentRunRepository, HeldRun
from agentrun_reference.schema import CONVERSATIONS, RELATIONS, RUNS
from agentrun_reference.shape import CHAT, INTERRUPTED, PENDING, RESUME, RUNNING, SUBAGENT

Publish = Callable[[str], Awaitable[None]]
"""Tells the owner of this run, if it listens, that a cancel was requested."""

logger = logging.getLogger(__name__)


class AgentRunService:
    """Creation and cancel, inside the transaction that the connection has open."""

    def __init__(self, connection: AsyncConnection, repository: AgentRunRepository) -> None:
        self.connection = connection
        self.repository = repository
        self.to_signal: list[str] = []

    async def create_chat(self, *, uid: str, conversation_id: str, workdir: str | None = None) -> str:
        """A run that a user starts in a conversation of theirs; the new run's id. Raises CreationRefused."""
        await self._check_conversation(conversation_id, uid)
        return await self._insert(
            uid=uid,
            run_type=CHAT,
            conversation_id=conversation_id,
            scope_conversation_id=conversation_id,
            workdir=workdir,
        )

    async def create_resume(self, *, uid: str, created_by_run_id: str, conversation_id: str | None = None) -> str:
        """A run that goes on where an interrupted one stopped, in its conversation. Raises CreationRefused.

        Locks: the creator, which stays interrupted while it is continued (CREATE-2).
        """
        creator = await self._lock_creator(created_by_run_id, uid)
        _check(creator.status == INTERRUPTED, "creator_status", f"run {creator.id} is {creator.status}")
        conversation = creator.conversation_id
        _check(
            conversation is not None and conversation_id in (None, conversation),
            "conversation",
            f"run {creator.id} is not in conversation {conversation_id}",
        )
        _check(
            creator.scope_conversation_id == conversation,
            "scope",
            f"run {creator.id} works in the scope of another conversation; continue that one's run",
        )
        return await self._insert(
            uid=uid,
            run_type=RESUME,
            conversation_id=conversation,
            scope_conversation_id=conversation,
            created_by_run_id=creator.id,
            workdir=creator.workdir,
        )

    async def create_subagent(
        self,
        *,
        uid: str,
        created_by_run_id: str,
        owner_token: str,
        subagent_relation_id: str,
        conversation_id: str,
        scope_conversation_id: str,
        workdir: str | None = None,
    ) -> str:
        """A run that a running one starts, as its live owner, in the scope that it has itself. Raises CreationRefused.

        Locks: the creator, so that a cancel of its tree either waits and then covers the new run, or went first and
        refuses it (CANCEL-4, CREATE-2).
        """
        creator = await self._lock_creator(created_by_run_id, uid)
        _check(creator.status == RUNNING, "creator_status", f"run {creator.id} is {creator.status}")
        _check(creator.is_owned_by(owner_token), "creator_owner", f"run {creator.id} is not the caller's any more")
        _check(
            scope_conversation_id == creator.scope_conversation_id,
            "scope",
            f"run {creator.id} works in the scope of conversation {creator.scope_conversation_id}",
        )
        _check(workdir in (None, creator.workdir), "workdir", f"run {creator.id} works in another directory")
        await self._check_relation(subagent_relation_id, uid, creator, conversation_id)
        return await self._insert(
            uid=uid,
            run_type=SUBAGENT,
            conversation_id=conversation_id,
            scope_conversation_id=scope_conversation_id,
            created_by_run_id=creator.id,
            subagent_relation_id=subagent_relation_id,
            workdir=creator.workdir,
        )

    async def cancel(self, root_id: str) -> CancelResult:
        """Cancel the tree; its owners are told when the unit of work has committed."""
        result = await self.repository.request_cancel_execution_tree(root_id)
        self.to_signal += result.to_signal
        return result

    @asynccontextmanager
    async def savepoint(self) -> AsyncIterator[None]:
        """Part of the transaction that can be rolled back alone, and its signals with it."""
        before = len(self.to_signal)
        try:
            async with self.connection.begin_nested():
                yield
        except BaseException:
            del self.to_signal[before:]
            raise

    async def _lock_creator(self, run_id: str, uid: str) -> HeldRun:
        """The creator as it is under the lock: it can't end, or change hands, before the new run is committed."""
        creator = await self.repository.lock_run(run_id)
        if creator is None:
            raise CreationRefused("creator", f"there is no run {run_id}")
        _check(creator.uid == uid, "uid", f"run {run_id} is another user's")
        return creator

    async def _check_conversation(self, conversation_id: str | None, uid: str) -> None:
        conversation = await self._read(CONVERSATIONS, conversation_id)
        _check(conversation is not None, "conversation", f"there is no conversation {conversation_id}")
        _check(conversation.uid == uid, "uid", f"conversation {conversation_id} is another user's")

    async def _check_relation(self, relation_id: str, uid: str, creator: HeldRun, conversation_id: str) -> None:
        relation = await self._read(RELATIONS, relation_id)
        _check(relation is not None, "relation", f"there is no subagent relation {relation_id}")
        _check(relation.uid == uid, "uid", f"subagent relation {relation_id} is another user's")
        _check(
            relation.parent_conversation_id == creator.conversation_id,
            "parent_conversation",
            f"subagent relation {relation_id} does not start at conversation {creator.conversation_id}",
        )
        _check(
            relation.child_conversation_id == conversation_id,
            "child_conversation",
            f"subagent relation {relation_id} does not lead to conversation {conversation_id}",
        )
        await self._check_conversation(relation.parent_conversation_id, uid)
        await self._check_conversation(conversation_id, uid)

    async def _read(self, table: Table, row_id: str | None) -> Any:
        return (await self.connection.execute(select(table).where(table.c.id == row_id))).one_or_none()

    async def _insert(self, **values: str | None) -> str:
        run_id = f"run-{uuid4().hex}"
        await self.connection.execute(insert(RUNS).values(id=run_id, status=PENDING, **values))
        return run_id


@asynccontextmanager
async def unit_of_work(
    engine: AsyncEngine,
    publish: Publish,
    *,
    repository: type[AgentRunRepository] = AgentRunRepository,
    service: type[AgentRunService] = AgentRunService,
) -> AsyncIterator[AgentRunService]:
    """One transaction, with the service (and in it the repository) to use; signals go out once it has committed.

    A rollback, or a commit whose outcome is unknown, announces nothing. A signal is a hint, and the owner learns of
    the cancel at its next renewal at the latest: one that can't be sent is logged, and fails nothing (SIGNAL-2).
    """
    async with engine.begin() as connection:
        work = service(connection, repository(connection))
        yield work
    for run_id in dict.fromkeys(work.to_signal):
        try:
            await publish(run_id)
        except Exception:
            logger.exception("the cancel of run %s is committed, but could not be signalled", run_id)


def _check(holds: bool, reason: str, message: str) -> None:
    if not holds:
        raise CreationRefused(reason, message)
