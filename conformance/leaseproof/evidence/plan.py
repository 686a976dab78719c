"""The plan of a run: which check is tried on which system. Owns its form and its making; must not run anything."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from leaseproof.controls.registry import Control
from leaseproof.files import write_text

SUBJECT = "subject"
Mode = Literal["verify", "controls"]


class BadPlan(Exception):
    """The file is no plan."""


class Item(BaseModel):
    """One check on one system: `subject` or the id of a control."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    system: str
    check: str


class Plan(BaseModel):
    """What a run has to do, in the order in which it is best done.

    `system` is "package.module:attribute" of the subject, `subject` its name. `shuffle` is what drew
    the order of the items, 0 for the order in which they are done soonest. `dsn` and `redis_url` say, without secrets,
    which given servers were used. `deadline` is the time of one check, in seconds.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    run: str
    system: str
    subject: str
    mode: Mode
    items: tuple[Item, ...]
    seed: int = 0
    shuffle: int = 0
    dsn: str | None = None
    redis_url: str | None = None
    deadline: float = 60.0

    @property
    def text(self) -> str:
        """The plan as it stands in its file."""
        return self.model_dump_json(indent=1) + "\n"

    @property
    def sha256(self) -> str:
        """Digest of the plan's file: ties each log to it."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    def systems_of(self, check: str) -> list[str]:
        """The systems on which this check is to be tried, in the plan's order."""
        return [item.system for item in self.items if item.check == check]

    def write(self, path: Path) -> None:
        """Write the plan's file."""
        write_text(path, self.text)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a plan's file. Raises BadPlan."""
        try:
            return cls.model_validate_json(path.read_bytes())
        except OSError as error:
            raise BadPlan(f"can't read the plan {path}: {error.strerror}") from error
        except ValidationError as error:
            raise BadPlan(f"{path} is no plan of leaseproof: {error.errors()[0]['msg']}") from error


def items_for_verify(
    expected: Mapping[str, Sequence[str]], named: Mapping[str, str], controls: Mapping[str, Control]
) -> tuple[Item, ...]:
    """Each expected check of the claims on the subject, and each claim's named control on the check that catches it.

    expected: claim to names of checks. named: claim to the control that checks.lock names; one that is not installed
    is left out, and the claim is then Inconclusive.
    """
    items = [Item(system=SUBJECT, check=check) for checks in expected.values() for check in checks]
    for claim in expected:
        control = controls.get(named.get(claim, ""))
        if control is not None and control.caught_by is not None:
            items.append(Item(system=control.id, check=control.caught_by))
    return _in_order(items, controls)


def items_for_controls(
    controls: Mapping[str, Control],
    applying: Mapping[str, Mapping[str, Sequence[str]]],
    slow: frozenset[str],
    *,
    full: bool = False,
) -> tuple[Item, ...]:
    """Each control on every check of the claims that it declares; a variant on every check, a defect on one of each
    other claim, drawn by its id (`full`: on all), to see that the claim still passes. Slow checks run only where named.

    applying: id of a control to the claims that its promises call for, with the names of their checks.
    """
    items = []
    for control in controls.values():
        wanted = {control.caught_by} if control.caught_by is not None else set()
        for claim, checks in applying[control.id].items():
            quick = [check for check in checks if check not in slow]
            whole = full or control.kind == "variant" or claim == control.refutes or claim in control.also
            wanted.update(quick if whole else _one(quick, f"{control.id} {claim}"))
        items += [Item(system=control.id, check=check) for check in sorted(wanted)]
    return _in_order(items, controls)


def _one(checks: Sequence[str], by: str) -> Sequence[str]:
    """One of these, if any, the same each time; over many controls each has its turn."""
    place = int(hashlib.sha256(by.encode()).hexdigest(), 16) % len(checks) if checks else 0
    return checks[place : place + 1]


def shuffled(items: tuple[Item, ...], by: int) -> tuple[Item, ...]:
    """The items in an order drawn by this number; as they are for 0."""
    return tuple(Random(by).sample(items, len(items))) if by else items  # noqa: S311 - an order, no secret


def _in_order(items: Iterable[Item], controls: Mapping[str, Control]) -> tuple[Item, ...]:
    """Each item once; systems that share a schema side by side, so that a worker installs few of them."""
    schemas = {control.id: _schema(control) for control in controls.values()}
    return tuple(sorted(dict.fromkeys(items), key=lambda item: (item.system != SUBJECT, schemas.get(item.system, ""))))


def _schema(control: Control) -> str:
    """The schema's name, or nothing where the control can't be made: that shows when it is tried."""
    try:
        return control.system().schema
    except Exception:  # noqa: BLE001 - whatever a control raises
        return ""
