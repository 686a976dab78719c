"""What a check is: the claims it decides, and the three ways in which it can end without passing.

Owns the words that suites use to say so; must not touch pytest, a database or a system. A check is one function with
a name of its own in all suites, never parametrised: its id is "CLAIM test_name". Bare `assert` has no place in a
suite, since `python -O` would take it out; `expect` stays.
"""

from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

CLAIMS = "__leaseproof_claims__"
SLOW = "__leaseproof_slow__"


class Refuted(Exception):
    """The system broke the claim. `because` is the structured reason that negative controls are held to.

    A SQLSTATE where the server gave one, else a word such as "did_not_wait".
    """

    def __init__(self, because: str, detail: str) -> None:
        super().__init__(f"{because}: {detail}")
        self.because = because
        self.detail = detail


class Undecided(Exception):
    """The harness could not decide: a deadline of its own, or trouble of the infrastructure. Never a verdict."""


def claim(*ids: str, slow: bool = False) -> Callable[[F], F]:
    """Mark a function as a check of these claims.

    `slow` keeps it out of the grid of controls, but for the controls that name it.
    """

    def mark(function: F) -> F:
        setattr(function, CLAIMS, ids)
        setattr(function, SLOW, slow)
        return function

    return mark


def refute(because: str, detail: str) -> NoReturn:
    """The claim is broken for this reason."""
    raise Refuted(because, detail)


def expect(condition: bool, because: str, detail: str = "") -> None:
    """Refute the claim for this reason unless the condition holds."""
    if not condition:
        raise Refuted(because, detail)


def expect_equal(seen: object, wanted: object, because: str, what: str = "") -> None:
    """Refute the claim unless the two are equal; the detail shows both."""
    if seen != wanted:
        raise Refuted(because, f"{what or 'seen'}: {seen!r}, wanted: {wanted!r}")
