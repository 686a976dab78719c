"""The grid of negative controls and claims: what became of each control. A pure function of plan and fact logs.

Owns the outcomes of controls; must not run or print anything.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from leaseproof.controls.registry import Control
from leaseproof.evidence.facts import Log
from leaseproof.evidence.plan import Item, Plan

Outcome = Literal["caught", "missed", "caught_otherwise", "errored", "absent"]
Cell = Literal["refuted", "passed", "undecided", "not tried"]


@dataclass(frozen=True)
class Seen:
    """What one check found on one control; anything but exactly one whole, sound try is inconclusive."""

    check: str
    claims: tuple[str, ...]
    outcome: str
    because: str | None
    detail: str


@dataclass(frozen=True)
class Defect:
    """A control that must be caught. `undeclared`: claims that failed though the control does not break them; `held`:
    claims that it is said to break beside its own (`also`), and that passed all of their checks that were tried.
    """

    id: str
    refutes: str
    caught_by: str
    because: str
    outcome: Outcome
    reason: str
    undeclared: tuple[str, ...]
    held: tuple[str, ...]
    cells: Mapping[str, Cell]

    @property
    def sound(self) -> bool:
        """It was caught as named, and broke nothing that it does not name."""
        return self.outcome == "caught" and not self.undeclared


@dataclass(frozen=True)
class Variant:
    """A control that is correct: it passes when every check of it passed."""

    id: str
    outcome: Literal["passed", "failed", "errored", "absent"]
    reason: str
    failed: tuple[str, ...]
    cells: Mapping[str, Cell]

    @property
    def sound(self) -> bool:
        return self.outcome == "passed"


@dataclass(frozen=True)
class Grid:
    """All controls of a run, in the order of the registry."""

    defects: tuple[Defect, ...]
    variants: tuple[Variant, ...]

    @property
    def rows(self) -> "tuple[Defect | Variant, ...]":
        """Defects, then variants."""
        return (*self.defects, *self.variants)

    @property
    def refuted(self) -> bool:
        """Whether some control shows that a suite is wrong: it missed a defect, or refuted what is correct."""
        wrong = any(one.outcome in ("missed", "caught_otherwise") or one.undeclared for one in self.defects)
        return wrong or any(one.outcome == "failed" for one in self.variants)

    @property
    def undecided(self) -> bool:
        """Whether some control could not be tried to its end."""
        return any(one.outcome in ("errored", "absent") for one in self.rows)

    def to_json(self) -> dict[str, Any]:
        """The grid as `leaseproof controls --json` writes it."""
        return {
            "defects": [asdict(one) for one in self.defects],
            "variants": [asdict(one) for one in self.variants],
        }


def grid(controls: Iterable[Control], plan: Plan, logs: Sequence[Log]) -> Grid:
    """The outcome of each control."""
    seen = observed(plan, logs)
    defects, variants = [], []
    for control in controls:
        found = seen.get(control.id, {})
        if control.kind == "defect":
            defects.append(_defect(control, found))
        else:
            variants.append(_variant(control, found))
    return Grid(tuple(defects), tuple(variants))


def observed(plan: Plan, logs: Sequence[Log]) -> dict[str, dict[str, Seen]]:
    """For each system of the plan, what each planned check found. One unfinished log leaves all of it undecided."""
    whole = any(log.process == "main" for log in logs) and all(
        log.complete and log.facts[0].get("plan_sha256") == plan.sha256 for log in logs
    )
    started: Counter[Item] = Counter()
    finished: dict[Item, list[dict[str, Any]]] = defaultdict(list)
    for log in logs:
        for fact in log.of("started"):
            started[Item(system=fact["system"], check=fact["check"])] += 1
        for fact in log.of("finished"):
            finished[Item(system=fact["system"], check=fact["check"])].append(fact)
    result: dict[str, dict[str, Seen]] = defaultdict(dict)
    for item in plan.items:
        if started[item]:
            result[item.system][item.check] = _seen(item.check, started[item], finished[item], whole=whole)
    return result


def _seen(check: str, started: int, finished: list[dict[str, Any]], *, whole: bool) -> Seen:
    if started != 1 or len(finished) != 1:
        return Seen(check, (), "inconclusive", None, f"started {started} times, finished {len(finished)} times")
    fact, claims = finished[0], tuple(finished[0]["claims"])
    if not whole:
        return Seen(check, claims, "inconclusive", None, "a process of the run did not end well")
    return Seen(check, claims, fact["outcome"], fact["because"], fact["detail"])


def _defect(control: Control, found: Mapping[str, Seen]) -> Defect:
    refutes, caught_by, because = control.refutes or "", control.caught_by or "", control.because or ""
    outcome, reason = _caught(caught_by, because, found)
    cells = _cells(found)
    undeclared = tuple(sorted(_refuted_claims(found) - {refutes, *control.also}))
    known = all(one.claims for one in found.values())  # the claims of a check that did not finish are not
    held = tuple(sorted(claim for claim in control.also if known and cells.get(claim) == "passed"))
    return Defect(control.id, refutes, caught_by, because, outcome, reason, undeclared, held, cells)


def _caught(caught_by: str, because: str, found: Mapping[str, Seen]) -> tuple[Outcome, str]:
    named = found.get(caught_by)
    others = [one for one in found.values() if one.outcome == "refuted" and one.check != caught_by]
    if named is None:
        return "absent", f"{caught_by} was not tried on it"
    if named.outcome == "refuted" and named.because == because:
        return "caught", because
    if named.outcome == "refuted":
        return "caught_otherwise", f"refuted by {caught_by} because of {named.because}, not {because}: {named.detail}"
    if named.outcome != "passed":
        return "errored", f"{caught_by} was {named.outcome}: {named.detail}"
    if others:
        listed = ", ".join(f"{one.check} ({one.because})" for one in others)
        return "caught_otherwise", f"passed by {caught_by}, refuted by {listed}"
    return "missed", f"{caught_by} passed it"


def _variant(control: Control, found: Mapping[str, Seen]) -> Variant:
    failed = tuple(sorted(_refuted_claims(found)))
    undecided = [one for one in found.values() if one.outcome not in ("passed", "refuted")]
    refuted = [f"{one.check} ({one.because}: {one.detail})" for one in found.values() if one.outcome == "refuted"]
    if refuted:
        return Variant(control.id, "failed", "refuted by " + "; ".join(refuted), failed, _cells(found))
    if not found:
        return Variant(control.id, "absent", "no check was tried on it", (), {})
    if undecided:
        listed = "; ".join(f"{one.check} was {one.outcome}: {one.detail}" for one in undecided)
        return Variant(control.id, "errored", listed, (), _cells(found))
    return Variant(control.id, "passed", f"{len(found)} checks", (), _cells(found))


def _refuted_claims(found: Mapping[str, Seen]) -> set[str]:
    return {claim for one in found.values() if one.outcome == "refuted" for claim in one.claims}


def _cells(found: Mapping[str, Seen]) -> dict[str, Cell]:
    """Each claim with the worst that its checks found."""
    cells: dict[str, Cell] = {}
    worst: tuple[Cell, ...] = ("refuted", "undecided", "passed")
    for one in found.values():
        cell: Cell = {"refuted": "refuted", "passed": "passed"}.get(one.outcome, "undecided")  # type: ignore[assignment]
        for claim in one.claims:
            cells[claim] = min(cells.get(claim, "passed"), cell, key=worst.index)
    return cells
