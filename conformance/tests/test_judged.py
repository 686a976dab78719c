"""What a system raises is judged; the words of a check in its mouth are unexpected errors."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import psycopg
import pytest

from leaseproof.checks import Refuted, Undecided
from leaseproof.evidence.outcome import ending
from leaseproof.world.actors import Participant, judged


def participant(operations: Any, at_exit: Exception | None = None) -> Participant:
    @asynccontextmanager
    async def transaction() -> AsyncIterator[Any]:
        try:
            yield operations
        finally:
            if at_exit is not None:
                raise at_exit

    system = SimpleNamespace(timeouts=SimpleNamespace(lease=1.0))
    return Participant(
        cast("Any", system), cast("Any", SimpleNamespace(transaction=transaction)), "a", "a", cast("Any", 0)
    )


@pytest.mark.parametrize(
    "raised",
    [Refuted("did_not_wait", "sham"), Undecided("sham"), BaseExceptionGroup("", [Refuted("did_not_wait", "sham")])],
)
def test_a_refutation_that_the_system_raises_is_an_unexpected_error(raised: Exception) -> None:
    async def fetch_next(limit: int) -> tuple[str, ...]:
        raise raised

    with pytest.raises(Refuted) as found:
        asyncio.run(participant(SimpleNamespace(fetch_next=fetch_next)).fetch_next())
    assert found.value.because == "unexpected_error"
    with pytest.raises(Refuted) as found, judged("any"):
        raise raised
    assert found.value.because == "unexpected_error"


def test_what_a_check_says_inside_of_a_transaction_passes_whatever_the_system_raises_at_its_end() -> None:
    async def check() -> None:
        async with participant(None, Refuted("did_not_wait", "sham")).transaction():
            raise Refuted("the_checks_own", "")

    with pytest.raises(Refuted) as found:
        asyncio.run(check())
    assert found.value.because == "the_checks_own"


def test_a_refutation_before_the_check_began_is_none() -> None:
    assert ending({"setup": Refuted("did_not_wait", "sham"), "teardown": None}).outcome == "inconclusive"


class Wrapped(Exception):
    def __init__(self, orig: Exception) -> None:
        super().__init__(str(orig))
        self.orig = orig


@pytest.mark.parametrize(
    "lost",
    [
        psycopg.OperationalError("the connection is closed"),
        Wrapped(psycopg.OperationalError("server closed the connection unexpectedly")),
        psycopg.errors.AdminShutdown("terminating connection"),
        psycopg.errors.DiskFull("no space"),
        ConnectionResetError("reset"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_lost_server_is_no_verdict(lost: Exception) -> None:
    with pytest.raises(Undecided), judged("any"):
        raise lost


def test_a_refused_row_is_a_verdict_by_its_sqlstate() -> None:
    with pytest.raises(Refuted) as found, judged("any"):
        raise Wrapped(psycopg.errors.CheckViolation("violates"))
    assert found.value.because == "23514"
