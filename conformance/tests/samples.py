"""Evidence for the tests of verdicts, merge and report: small runs, projected from logs as real ones are.

Owns made-up runs; needs no server and no system.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from leaseproof.claims.catalogue import load_catalogue
from leaseproof.claims.lock import Expected, Lock
from leaseproof.controls.registry import Control
from leaseproof.evidence.facts import Log
from leaseproof.evidence.model import Evidence, Found, Inspection, Selection, Subject
from leaseproof.evidence.plan import Item, Plan
from leaseproof.evidence.project import Host, Promises, project
from leaseproof.evidence.subject import Identity

CATALOGUE = load_catalogue()
CLEAN = Subject(kind="git", name="sample", version="1.0", clean=True, commit="c" * 40, tree="d" * 40)
DIRTY = CLEAN.model_copy(update={"clean": False, "changes": ("changed: sample/repository.py",)})
KIT = Subject(kind="git", name="leaseproof", version="0.1.0", clean=True, commit="c" * 40, tree="d" * 40)

CHECKS = {
    "LOCK-1": ("test_root_before_descendants", "test_terminal_root_is_locked"),
    "LOCK-2": ("test_levels_in_order",),
    "CANCEL-1": ("test_cancel_facts_are_durable",),
    "ATTEMPT-13": ("test_histories_are_the_same",),
}
"""The claims of the sample lock that have checks; all others are planned."""


def control_of(claim: str, **changes: Any) -> Control:
    """The defect of the sample that refutes this claim."""
    control = Control(
        id=f"breaks_{claim.lower().replace('-', '_')}",
        kind="defect",
        of="sample",
        says=f"Breaks {claim}.",
        system=lambda: NotImplemented,
        refutes=claim,
        caught_by=CHECKS[claim][0],
        because="55P03",
    )
    return replace(control, **changes)


def lock_of(checks: Mapping[str, Sequence[str]] = CHECKS) -> Lock:
    """A lock of the whole catalogue in which these claims have checks and a control."""
    return Lock(
        {
            name: Expected(
                claim.revision,
                tuple(f"{name} {test}" for test in checks.get(name, ())),
                planned=name not in checks,
                control=f"breaks_{name.lower().replace('-', '_')}" if name in checks else None,
            )
            for name, claim in CATALOGUE.claims.items()
        }
    )


def finished(
    check: str, claim: str, *, system: str = "subject", outcome: str = "passed", **more: Any
) -> dict[str, Any]:
    """A line of a log: how a check ended."""
    fact = {
        "kind": "finished",
        "system": system,
        "check": check,
        "claims": [claim],
        "outcome": outcome,
        "because": None,
    }
    return {**fact, "detail": "", "seconds": 0.07, "seed": 0, "notes": {}, "attachments": [], **more}


def good_facts(checks: Mapping[str, Sequence[str]] = CHECKS) -> list[dict[str, Any]]:
    """Every check passed on the subject, and the first one of each claim was refuted on the claim's control."""
    facts = [finished(test, claim) for claim, tests in checks.items() for test in tests]
    for claim in checks:
        control = control_of(claim)
        caught = {"outcome": "refuted", "because": control.because, "detail": f"{control.because}: could not lock"}
        facts.append(finished(checks[claim][0], claim, system=control.id, **caught))
    return facts


def log_of(
    plan: Plan, facts: Iterable[Mapping[str, Any]], process: str = "main", *, closed: bool = True, started: bool = True
) -> Log:
    """A log as it would be read: opened, started and finished lines, closed where it ended well."""
    at = {"process": process, "at": "2026-01-02T03:04:05.000000Z"}
    lines: list[dict[str, Any]] = [{"kind": "opened", "run": plan.run, "plan_sha256": plan.sha256, **at}]
    for fact in facts:
        if fact["kind"] == "finished" and started:
            lines.append({"kind": "started", "system": fact.get("system"), "check": fact.get("check"), **at})
        lines.append({**fact, **at})
    if closed:
        lines.append({"kind": "closed", "finished": sum(line["kind"] == "finished" for line in lines), **at})
    return Log(process, tuple(lines), closed, False, hashlib.sha256(repr(lines).encode()).hexdigest())


def plan_of(checks: Mapping[str, Sequence[str]] = CHECKS, run: str = "r0000001") -> Plan:
    """The plan of the sample's run."""
    items = [Item(system="subject", check=test) for tests in checks.values() for test in tests]
    items += [Item(system=control_of(claim).id, check=checks[claim][0]) for claim in checks]
    return Plan(run=run, system="sample.adapter:system", subject="sample", mode="verify", items=tuple(items))


def inspections(lock: Lock) -> dict[str, Inspection]:
    """Everything was found in the source."""
    found = Found(symbol="sample.repository:Repository", file="sample/repository.py", line=7, sha256="e" * 64)
    return {
        name: Inspection(owner=found, checks=(found,) * len(one.checks), controls=(found,) if one.control else ())
        for name, one in lock.claims.items()
    }


def sample(
    facts: Iterable[Mapping[str, Any]] | None = None,
    *,
    run: str = "r0000001",
    environment: str | None = "pg18",
    before: Subject | Identity = CLEAN,
    after: Subject | Identity | None = CLEAN,
    logs: Sequence[Log] | None = None,
    controls: Iterable[Control] | None = None,
    **changes: Any,
) -> Evidence:
    """The evidence of a run in which everything went well, or what the arguments change of it."""
    plan, lock = plan_of(run=run), lock_of()
    given = good_facts() if facts is None else facts
    chosen = [control_of(claim) for claim in CHECKS] if controls is None else controls
    arguments: dict[str, Any] = {
        "plan": plan,
        "logs": [log_of(plan, given)] if logs is None else logs,
        "catalogue": CATALOGUE,
        "lock": lock,
        "promises": Promises({}, dict.fromkeys(_owners(), "sample.repository:Repository")),
        "before": _identity(before),
        "after": _identity(after) if after else None,
        "kit": Identity(KIT),
        "kit_after": Identity(KIT),
        "controls": {control.id: control for control in chosen},
        "inspections": inspections(lock),
        "tiers": {"kind": "no Docker daemon"},
        "selection": Selection(tiers=("static", "pg", "pg+redis", "e2e")),
        "host": Host("3.11.2", "Linux 6.1 x86_64", 2),
        "environment": environment,
    }
    return project(**{**arguments, **changes})


def row(evidence: Evidence, claim: str) -> Any:
    """The row of this claim."""
    return next(one for one in evidence.claims if one.id == claim)


def _identity(subject: Subject | Identity) -> Identity:
    return subject if isinstance(subject, Identity) else Identity(subject)


def _owners() -> set[str]:
    return {claim.semantic_owner for claim in CATALOGUE.claims.values()}
