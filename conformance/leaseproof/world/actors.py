"""The system's actors as suites use them. Owns the translation of what they raise; must not observe the database.

Each operation of `Calls` answers as the port says. An answer of another kind is refuted (`unexpected_answer`); an
exception is refuted by its SQLSTATE, its fault's name or `unexpected_error`, unless it tells of trouble in the
infrastructure (`Undecided`). A system can't say `Refuted` or `Undecided` itself: from it they are unexpected errors.
`outcome` hands a fault over as a value, for claims that are about it.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from datetime import timedelta
from typing import Any, TypeVar, cast

from psycopg import OperationalError

from leaseproof.checks import Refuted, Undecided, refute
from leaseproof.system import (
    Actor,
    AttemptsRead,
    CancelAnswer,
    Claimed,
    Created,
    Ended,
    Fault,
    NewRun,
    NotPromised,
    Operations,
    Purged,
    Refused,
    Renewed,
    Swept,
    System,
    Unavailable,
)
from leaseproof.world.waits import Pending, Watch

T = TypeVar("T")
Call = Callable[[Operations], Awaitable[T]]

INFRASTRUCTURE = ("08", "53", "57P", "58", "XX")
"""Classes of SQLSTATE that say that the server, not the system, is in trouble."""


class _RolledBack(Exception):
    """Leaves a transaction by its rollback."""


def sqlstate_of(error: BaseException) -> str | None:
    """The SQLSTATE of a driver's error, also when an ORM has wrapped it."""
    states = (getattr(link, "sqlstate", None) for link in _links(error))
    return next((state for state in states if isinstance(state, str)), None)


def is_infrastructure(error: BaseException) -> bool:
    """Whether the error tells of a server or a connection that is gone, and not of what the system did."""
    state = sqlstate_of(error)
    if state is not None:
        return state.startswith(INFRASTRUCTURE)
    return any(isinstance(link, OSError | OperationalError) for link in _links(error))


def _links(error: BaseException) -> tuple[object, ...]:
    return (error, getattr(error, "orig", None), error.__cause__)


@contextmanager
def judged(name: str) -> Iterator[None]:
    """Turn what the system's code raises into what it means for the claim; only that code belongs in the block."""
    try:
        yield
    except (Unavailable, NotPromised) as error:
        raise Undecided(f"{name}: {type(error).__name__}: {error}") from error
    except Fault as error:
        raise Refuted(error.sqlstate or type(error).__name__, f"{name}: {type(error).__name__}: {error}") from error
    except (Exception, BaseExceptionGroup) as error:
        if is_infrastructure(error):
            raise Undecided(f"{name}: {type(error).__name__}: {error}") from error
        raise Refuted(sqlstate_of(error) or "unexpected_error", f"{name}: {type(error).__name__}: {error}") from error


class Calls:
    """The operations, with the suite's defaults: the system's own lease, and the actor's name as the worker's."""

    def __init__(self, system: System, name: str) -> None:
        self.name = name
        self.lease = timedelta(seconds=system.timeouts.lease)

    async def _invoke(self, call: Call[Any]) -> Any:
        raise NotImplementedError

    async def _answer(self, operation: str, kinds: tuple[type[Any], ...], call: Call[Any]) -> Any:
        with judged(f"{self.name}: {operation}"):
            answer = await self._invoke(call)
        if not isinstance(answer, kinds):
            refute("unexpected_answer", f"{self.name}: {operation} answered {answer!r}")
        return answer

    async def outcome(self, call: Call[T]) -> T | Fault:
        """The answer of `call`, or the fault that it raised."""
        with judged(self.name):
            try:
                return cast("T", await self._invoke(call))
            except (Unavailable, NotPromised):
                raise
            except Fault as fault:
                return fault

    async def mark_running(
        self, run_id: str, *, owner_token: str, worker_id: str | None = None, lease: timedelta | None = None
    ) -> Claimed | Ended | Refused:
        """See `Operations.mark_running`."""
        worker, length = worker_id or self.name, self.lease if lease is None else lease
        return cast(
            "Claimed | Ended | Refused",
            await self._answer(
                "mark_running",
                (Claimed, Ended, Refused),
                lambda tx: tx.mark_running(run_id, owner_token=owner_token, worker_id=worker, lease=length),
            ),
        )

    async def renew_lease(self, run_id: str, *, owner_token: str, lease: timedelta | None = None) -> Renewed | Refused:
        """See `Operations.renew_lease`."""
        length = self.lease if lease is None else lease
        return cast(
            "Renewed | Refused",
            await self._answer(
                "renew_lease",
                (Renewed, Refused),
                lambda tx: tx.renew_lease(run_id, owner_token=owner_token, lease=length),
            ),
        )

    async def release_lease_for_retry(
        self, run_id: str, *, owner_token: str, error_type: str | None = None, error_message: str | None = None
    ) -> Ended | Refused:
        """See `Operations.release_lease_for_retry`."""
        return cast(
            "Ended | Refused",
            await self._answer(
                "release_lease_for_retry",
                (Ended, Refused),
                lambda tx: tx.release_lease_for_retry(
                    run_id, owner_token=owner_token, error_type=error_type, error_message=error_message
                ),
            ),
        )

    async def set_terminal_status(
        self,
        run_id: str,
        *,
        owner_token: str,
        status: str = "completed",
        result: Any = None,
        error_type: str | None = None,
        error_message: str | None = None,
    ) -> Ended | Refused:
        """See `Operations.set_terminal_status`."""
        return cast(
            "Ended | Refused",
            await self._answer(
                "set_terminal_status",
                (Ended, Refused),
                lambda tx: tx.set_terminal_status(
                    run_id,
                    owner_token=owner_token,
                    status=status,
                    result=result,
                    error_type=error_type,
                    error_message=error_message,
                ),
            ),
        )

    async def reconcile_expired_leases(self, *, limit: int | None = None) -> Swept:
        """See `Operations.reconcile_expired_leases`."""
        return cast(
            "Swept",
            await self._answer(
                "reconcile_expired_leases", (Swept,), lambda tx: tx.reconcile_expired_leases(limit=limit)
            ),
        )

    async def request_cancel_execution_tree(self, root_id: str) -> CancelAnswer:
        """See `Operations.request_cancel_execution_tree`."""
        return cast(
            "CancelAnswer",
            await self._answer(
                "request_cancel_execution_tree",
                (CancelAnswer,),
                lambda tx: tx.request_cancel_execution_tree(root_id),
            ),
        )

    async def fetch_next(self, *, limit: int = 1) -> tuple[str, ...]:
        """See `Operations.fetch_next`."""
        return cast(
            "tuple[str, ...]", await self._answer("fetch_next", (tuple,), lambda tx: tx.fetch_next(limit=limit))
        )

    async def attempts(self, run_id: str) -> AttemptsRead:
        """See `Operations.attempts`."""
        return cast("AttemptsRead", await self._answer("attempts", (AttemptsRead,), lambda tx: tx.attempts(run_id)))

    async def create_run(self, new: NewRun) -> Created | Refused:
        """See `Operations.create_run`."""
        return cast(
            "Created | Refused", await self._answer("create_run", (Created, Refused), lambda tx: tx.create_run(new))
        )

    async def orm_write(self, fields: Mapping[str, Any]) -> None:
        """See `Operations.orm_write`."""
        await self._answer("orm_write", (type(None),), lambda tx: tx.orm_write(fields))

    async def purge(self, *, older_than: timedelta, limit: int) -> Purged:
        """See `Operations.purge`."""
        return cast(
            "Purged",
            await self._answer("purge", (Purged,), lambda tx: tx.purge(older_than=older_than, limit=limit)),
        )


class OpenTransaction(Calls):
    """Operations inside one open transaction; `rollback` leaves it without a trace."""

    def __init__(self, system: System, name: str, operations: Operations) -> None:
        super().__init__(system, name)
        self._operations = operations

    async def _invoke(self, call: Call[Any]) -> Any:
        return await call(self._operations)

    @asynccontextmanager
    async def savepoint(self) -> AsyncIterator[None]:
        """See `Operations.savepoint`; like a transaction, it judges only what the system raises."""
        async with AsyncExitStack() as stack:
            with judged(f"{self.name}: savepoint"):
                await stack.enter_async_context(self._operations.savepoint())
            try:
                yield
            except BaseException as error:
                with suppress(Exception, BaseExceptionGroup):
                    await stack.__aexit__(type(error), error, error.__traceback__)
                raise
            with judged(f"{self.name}: release of a savepoint"):
                await stack.aclose()

    def rollback(self) -> None:
        """Leave the block of the transaction now, and roll back."""
        raise _RolledBack


class Participant(Calls):
    """An actor of the system: each operation in a transaction of its own, or several inside `transaction()`."""

    def __init__(self, system: System, actor: Actor, name: str, session_name: str, watch: Watch) -> None:
        super().__init__(system, name)
        self.session_name = session_name
        self._system = system
        self._actor = actor
        self._watch = watch

    async def _invoke(self, call: Call[Any]) -> Any:
        async with self._actor.transaction() as operations:
            return await call(operations)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[OpenTransaction]:
        """One transaction of the caller's: commits at the end, rolls back on `rollback()` or an exception.

        Only what the system raises is judged; an exception of the block itself passes as it is.
        """
        async with AsyncExitStack() as stack:
            with judged(f"{self.name}: begin"):
                operations = await stack.enter_async_context(self._actor.transaction())
            try:
                yield OpenTransaction(self._system, self.name, operations)
            except _RolledBack as leave:
                with judged(f"{self.name}: rollback"), suppress(_RolledBack):
                    await stack.__aexit__(type(leave), leave, leave.__traceback__)
                return
            except BaseException as error:
                with suppress(Exception, BaseExceptionGroup):
                    await stack.__aexit__(type(error), error, error.__traceback__)
                raise
            with judged(f"{self.name}: commit"):
                await stack.aclose()

    @asynccontextmanager
    async def running(self, operation: Coroutine[Any, Any, Any]) -> AsyncIterator[Pending]:
        """The operation under way in a task of its own; abandoned at the end of the block if it has not ended."""
        pending = Pending(asyncio.create_task(operation), self.session_name, self._watch)
        try:
            yield pending
        finally:
            if not pending.done():
                await pending.abandon()

    async def close(self) -> None:
        """Close the actor's connections."""
        with judged(f"{self.name}: close"):
            await self._actor.close()
