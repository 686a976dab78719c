"""Negative controls and correct variants: what they are and where they are found.

Owns the `Control` and its discovery; must not run anything. A package offers its own under the entry point group
`leaseproof.controls`: a sequence of `Control`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Literal

from leaseproof.system import System

GROUP = "leaseproof.controls"


@dataclass(frozen=True)
class Control:
    """A system that differs from `of` (a system's name) in one point.

    A defect `refutes` one claim, and must be caught by the check `caught_by` because of `because`; `also` names the
    other claims that the same defect breaks. A variant is correct, and every claim must pass.
    """

    id: str
    kind: Literal["defect", "variant"]
    of: str
    says: str
    system: Callable[[], System]
    refutes: str | None = None
    caught_by: str | None = None
    because: str | None = None
    also: frozenset[str] = frozenset()


def load_controls(of: str) -> dict[str, Control]:
    """All installed controls of the system named `of`, by id. Raises ValueError for an id that stands twice."""
    found: dict[str, Control] = {}
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        offered: Sequence[Control] = point.load()
        for control in offered:
            if control.of != of:
                continue
            if control.id in found:
                raise ValueError(f"control {control.id!r} of {of} stands twice; give one of them another id")
            found[control.id] = control
    return found
