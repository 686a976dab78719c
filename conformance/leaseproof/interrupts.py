"""Interrupts of the command. Owns what the first one and later ones do; must not know what is cleaned up.

The first ends the run by an exception. Later ones cut waits short and nothing else, so that no clean-up is left
halfway; one that hangs is left at the next interrupt after `PATIENCE`.
"""

import signal
import time
from typing import NoReturn

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PATIENCE = 5.0
"""Seconds after the first interrupt that a clean-up gets in any case."""


class _Seen:
    """When the first one came, and whether another has come since."""

    first: float | None = None
    again = False


def install() -> None:
    """Handle them from here on."""
    for number in SIGNALS:
        signal.signal(number, _interrupt)


def ignore() -> None:
    """Nothing is left to interrupt: the exit code is settled."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def again() -> bool:
    """Whether a later one asks for the end of all waiting."""
    return _Seen.again


def _interrupt(number: int, frame: object) -> None:
    now = time.monotonic()
    if _Seen.first is None:
        _Seen.first = now
        _leave(number)
    _Seen.again = True
    if now - _Seen.first > PATIENCE:
        _leave(number)


def _leave(number: int) -> NoReturn:
    """Through the `finally` of what is under way."""
    raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)
