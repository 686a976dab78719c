"""checks.lock: which checks each claim expects, as reviewed data. Owns its form and how it may change.

Must not run or import a check. A row passes only when exactly these checks were observed, so that a test which is
deleted, renamed or left out shows. The list of a claim shrinks only when the claim's revision is raised, each removed
check is listed with its reason, and a claim that has checks is never planned again.
"""

import json
import re
import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from leaseproof.claims.catalogue import Catalogue, canonical_sha256

_CHECK: Final = re.compile(r"[A-Z]{2,12}-[1-9][0-9]? test_[a-z0-9_]+")
_HEAD: Final = """\
# The checks that each claim expects: reviewed data, written by `leaseproof claims --update-lock`.
# A claim's checks shrink only with a new revision of the claim, and what was removed is listed with its reason.
"""


class BadLock(Exception):
    """checks.lock can't be used, or may not change in this way. The text says what to do."""


@dataclass(frozen=True)
class Expected:
    """What one claim expects: its checks ("LOCK-1 test_..."), or none yet and `planned`.

    `control` is the one negative control that `verify` runs for the claim.
    """

    revision: int
    checks: tuple[str, ...] = ()
    planned: bool = False
    control: str | None = None

    @property
    def tests(self) -> tuple[str, ...]:
        """The names of the functions alone."""
        return tuple(check.partition(" ")[2] for check in self.checks)


@dataclass(frozen=True)
class Removed:
    """A check that a claim no longer expects, since which revision of the claim and why."""

    check: str
    revision: int
    reason: str

    @property
    def claim(self) -> str:
        """The claim that it belonged to."""
        return self.check.partition(" ")[0]


@dataclass(frozen=True)
class Lock:
    """The whole file."""

    claims: Mapping[str, Expected]
    removed: tuple[Removed, ...] = field(default=())

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the content as canonical JSON."""
        return canonical_sha256(
            {
                "claims": {
                    claim_id: [one.revision, one.checks, one.planned, one.control]
                    for claim_id, one in self.claims.items()
                },
                "removed": [[one.check, one.revision, one.reason] for one in self.removed],
            }
        )


def default_path() -> Path:
    """The kit's own checks.lock."""
    return Path(__file__).with_name("checks.lock")


def load_lock(path: Path | None = None) -> Lock:
    """Read checks.lock (the kit's own by default). Raises BadLock."""
    path = path or default_path()
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadLock(f"{path.name}: can't be read: {error}") from error
    return parse_lock(text, path.name)


def parse_lock(text: str, name: str = "checks.lock") -> Lock:
    """The lock that this text holds. Raises BadLock, naming `name`."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BadLock(f"{name}: {error}") from error
    if foreign := sorted(set(data) - {"claims", "removed"}):
        raise BadLock(f"{name}: holds {foreign[0]!r}; only [claims.*] and [[removed]] belong there")
    claims = {
        claim_id: _expected(name, claim_id, entry)
        for claim_id, entry in _table(name, "claims", data.get("claims", {})).items()
    }
    removed = data.get("removed", [])
    if not isinstance(removed, list):
        raise BadLock(f"{name}: removed must be a list of tables")
    return Lock(claims, tuple(_removed(name, entry) for entry in removed))


def render_lock(lock: Lock) -> str:
    """The file's text; `parse_lock` gives the same lock back."""
    parts = [_HEAD]
    for claim_id, one in lock.claims.items():
        lines = [f"[claims.{claim_id}]", f"revision = {one.revision}"]
        if one.planned:
            lines.append("planned = true")
        else:
            lines += ["checks = [", *(f"    {_quoted(check)}," for check in one.checks), "]"]
        if one.control is not None:
            lines.append(f"control = {_quoted(one.control)}")
        parts.append("\n".join(lines) + "\n")
    for gone in lock.removed:
        lines = [f"check = {_quoted(gone.check)}", f"revision = {gone.revision}", f"reason = {_quoted(gone.reason)}"]
        parts.append("\n".join(["[[removed]]", *lines]) + "\n")
    return "\n".join(parts)


def compare(old: Lock, new: Lock) -> list[str]:
    """What is wrong with the step from `old` to `new`; empty when it is allowed."""
    problems = []
    listed = {(one.check, one.revision) for one in new.removed}
    for claim_id, before in old.claims.items():
        after = new.claims.get(claim_id)
        if after is None:
            problems.append(f"{claim_id}: left checks.lock; a claim stays, and gets a new revision where it was wrong")
            continue
        raised = after.revision > before.revision
        if after.revision < before.revision:
            problems.append(f"{claim_id}: its revision went from {before.revision} back to {after.revision}")
        if after.planned and not before.planned:
            problems.append(f"{claim_id}: planned again; a claim that had checks keeps some")
        gone = [check for check in before.checks if check not in after.checks]
        if gone and not raised:
            problems.append(f"{claim_id}: lost {', '.join(gone)} without a new revision of the claim")
        problems += [
            f"{claim_id}: {check} is gone, but not in [[removed]] with revision {after.revision} and a reason"
            for check in gone
            if (check, after.revision) not in listed
        ]
        if before.control is not None and after.control is None and not raised:
            problems.append(
                f"{claim_id}: lost its negative control {before.control} without a new revision of the claim"
            )
    problems += [f"{one.check}: left the list of removed checks" for one in old.removed if one not in new.removed]
    return problems


def disagreements(catalogue: Catalogue, lock: Lock) -> list[str]:
    """Where catalogue and lock don't speak of the same claims in the same revision."""
    problems = [
        f"{claim_id}: in the catalogue, not in checks.lock"
        for claim_id in catalogue.claims
        if claim_id not in lock.claims
    ]
    problems += [
        f"{claim_id}: in checks.lock, not in the catalogue"
        for claim_id in lock.claims
        if claim_id not in catalogue.claims
    ]
    problems += [
        f"{claim_id}: revision {claim.revision} in the catalogue, {lock.claims[claim_id].revision} in checks.lock"
        for claim_id, claim in catalogue.claims.items()
        if claim_id in lock.claims and lock.claims[claim_id].revision != claim.revision
    ]
    return problems


def update(
    lock: Lock,
    catalogue: Catalogue,
    checks: Mapping[str, Collection[str]],
    controls: Mapping[str, Sequence[str]],
    reason: str | None = None,
) -> Lock:
    """The lock for what the suites hold now. Raises BadLock where the step is not allowed.

    checks: claim to the names of its tests. controls: claim to the ids of its controls, the preferred one first; the
    one that the lock names already stays while it is there. reason: why checks went, where some did.
    """
    claims: dict[str, Expected] = {}
    removed = list(lock.removed)
    for claim_id, claim in catalogue.claims.items():
        before = lock.claims.get(claim_id, Expected(claim.revision, planned=True))
        found = tuple(f"{claim_id} {test}" for test in sorted(checks.get(claim_id, ())))
        offered = controls.get(claim_id, ())
        control = before.control if before.control in offered else next(iter(offered), None)
        claims[claim_id] = Expected(claim.revision, found, planned=before.planned and not found, control=control)
        gone = [check for check in before.checks if check not in found]
        if gone and reason is None:
            raise BadLock(f"{claim_id}: {', '.join(gone)} went; raise the claim's revision and say why with --reason")
        removed += [Removed(check, claim.revision, reason) for check in gone if reason is not None]
    updated = replace(lock, claims=claims, removed=tuple(removed))
    if problems := compare(lock, updated):
        raise BadLock("checks.lock may not change like this: " + "; ".join(problems))
    return parse_lock(render_lock(updated))


def _quoted(text: str) -> str:
    """A basic string of TOML: JSON's is one, but for DEL, which TOML wants escaped."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _table(name: str, what: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise BadLock(f"{name}: {what} must be a table")
    return value


def _expected(name: str, claim_id: str, entry: Any) -> Expected:
    entry = dict(_table(name, claim_id, entry))
    revision, checks = entry.pop("revision", None), entry.pop("checks", [])
    planned, control = entry.pop("planned", False), entry.pop("control", None)
    if entry:
        raise BadLock(f"{name}: {claim_id}: unknown key {min(entry)!r}")
    if type(revision) is not int or revision < 1:
        raise BadLock(f"{name}: {claim_id}: revision must be a whole number from 1")
    if not isinstance(checks, list) or not all(isinstance(check, str) and _CHECK.fullmatch(check) for check in checks):
        raise BadLock(f'{name}: {claim_id}: checks must be a list of ids such as "{claim_id} test_..."')
    if foreign := [check for check in checks if not check.startswith(f"{claim_id} ")]:
        raise BadLock(f"{name}: {claim_id}: {foreign[0]!r} is a check of another claim")
    if len(set(checks)) != len(checks):
        raise BadLock(f"{name}: {claim_id}: a check stands twice")
    if type(planned) is not bool or planned == bool(checks):
        raise BadLock(f"{name}: {claim_id}: has either checks or planned = true")
    if control is not None and not isinstance(control, str):
        raise BadLock(f"{name}: {claim_id}: control must be the id of one")
    return Expected(revision, tuple(checks), planned, control)


def _removed(name: str, entry: Any) -> Removed:
    if not isinstance(entry, dict) or set(entry) != {"check", "revision", "reason"}:
        raise BadLock(f"{name}: a [[removed]] entry has check, revision and reason")
    check, revision, reason = entry["check"], entry["revision"], entry["reason"]
    if not isinstance(check, str) or not _CHECK.fullmatch(check):
        raise BadLock(f'{name}: [[removed]]: {check!r} is no id such as "LOCK-1 test_..."')
    if type(revision) is not int or revision < 1 or not isinstance(reason, str) or not reason.strip():
        raise BadLock(f"{name}: [[removed]] {check}: needs a revision from 1 and a reason")
    return Removed(check, revision, reason)
