"""What a report says of an evidence file, in words: headline, records, matrix. From the file alone.

Owns the wording that HTML, Markdown and terminal share; must not know of their markup, and must not judge.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from leaseproof.claims.rules import digests
from leaseproof.evidence.model import (
    ClaimRow,
    Code,
    ControlSeen,
    Environment,
    Evidence,
    InEnvironment,
    RecordRow,
    Result,
)
from leaseproof.evidence.verdicts import WORST

_UNSEEN: Final = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\uffa0\ufe00-\ufe0f\U000e0100-\U000e01ef]"
)
"""Characters without a shape that Python calls printable."""
BEST_FIRST: tuple[Result, ...] = tuple(reversed(WORST))


@dataclass(frozen=True)
class View:
    """An evidence file as its reader meets it."""

    evidence: Evidence

    @property
    def name(self) -> str:
        """The subject's name and version."""
        return f"{self.evidence.subject.name} {self.evidence.subject.version}"

    @cached_property
    def provisional(self) -> bool:
        """Whether the outcomes are only provisional: the subject is no clean commit."""
        return any(row.provisional for row in self.evidence.claims)

    @cached_property
    def counts(self) -> dict[Result, int]:
        """Claims by result, the best result first; provisional ones where only those say something."""
        summary = self.evidence.summary
        counted = (summary.provisional or summary.results) if summary else {}
        return {result: counted.get(result, 0) for result in BEST_FIRST}

    @cached_property
    def verdict(self) -> Result:
        """The result that the headline is about: the worst that was found, or Passed where something passed."""
        if self.provisional:
            return "Not run"
        for result in ("Failed", "Inconclusive", "Stale"):
            if self.counts[result]:
                return result
        return "Passed" if self.counts["Passed"] else "Not run"

    @property
    def headline(self) -> str:
        """The verdict in one sentence."""
        passed, failed = self.counts["Passed"], self.counts["Failed"]
        if self.provisional:
            reason = next(row.reason for row in self.evidence.claims if row.provisional)
            return f"Not evidence: {reason}"
        if failed:
            return f"{failed} of {_claims(self.total)} failed"
        if self.counts["Inconclusive"]:
            return f"Nothing failed, but {_claims(self.counts['Inconclusive'])} could not be decided"
        if self.counts["Stale"]:
            return f"{_claims(self.counts['Stale'])} rest on stale evidence"
        if not passed:
            return "No claim was tried"
        return f"{passed} of {_claims(self.total)} passed, none failed"

    @property
    def under_headline(self) -> str:
        """What has to be known beside it."""
        counted = ", ".join(f"{number} {result}" for result, number in self.counts.items() if number)
        if self.provisional:
            return f"Every claim is Not run. Provisional outcomes: {counted}."
        return f"{counted}."

    @property
    def core(self) -> str:
        """How many of the core claims say something about this system, and how many of them Passed."""
        return f"{self.core_applying}, {self.core_passed}" if self.evidence.summary else ""

    @property
    def core_applying(self) -> str:
        """How many of the core claims say something about this system."""
        summary = self.evidence.summary
        return f"{summary.core_applying} of {summary.core} core claims apply" if summary else ""

    @property
    def core_passed(self) -> str:
        """How many of the core claims Passed; provisionally where only that says something."""
        core = [row for row in self.evidence.claims if row.kind == "core"]
        passed = sum((provisional_of(row) or row.result) == "Passed" for row in core)
        return f"{passed} of {len(core)} core claims Passed{' (provisional)' if self.provisional else ''}"

    @property
    def undecided_records(self) -> str:
        """That no record can be decided on yet, where that is so; else nothing."""
        if any(record.result in {"Passed", "Failed"} for record in self.evidence.records):
            return ""
        return "No design record is complete, so a decision on a record is not possible yet."

    def reason_of_record(self, record: RecordRow) -> str:
        """Why the record has its result, short: how many of its claims Passed, and the worst of the others."""
        passed, of = self.passed_of(record)
        left = [row for row in self.evidence.claims if row.id in record.claims and row.result != "Passed"]
        first = min(left, key=lambda row: WORST.index(row.result), default=None)
        if first is None:
            return f"{passed} of {_claims(of)} Passed"
        more = f", and {len(left) - 1} more" if len(left) > 1 else ""
        return f"{passed} of {_claims(of)} Passed; {first.id} {first.result} ({_word_of(first.code)}){more}"

    @property
    def rules(self) -> str:
        """That the file was made under other rules than the kit's own, where that is so; else nothing."""
        stated = {(one.catalogue_sha256, one.checks_lock_sha256) for one in self.evidence.environments}
        if stated | {(self.evidence.catalogue_sha256, self.evidence.checks_lock_sha256)} == {digests()}:
            return ""
        return (
            "Made under other rules than this kit's: catalogue or checks.lock are others, "
            "so claims and expected checks are taken as the file states them."
        )

    @property
    def total(self) -> int:
        """How many claims there are."""
        return len(self.evidence.claims)

    @cached_property
    def families(self) -> dict[str, list[ClaimRow]]:
        """The claims by family, in their order."""
        found: dict[str, list[ClaimRow]] = {}
        for row in self.evidence.claims:
            found.setdefault(row.id.rpartition("-")[0], []).append(row)
        return found

    def passed_of(self, record: RecordRow) -> tuple[int, int]:
        """How many of a record's claims Passed, of how many."""
        rows = [row for row in self.evidence.claims if row.id in record.claims]
        return sum(row.result == "Passed" for row in rows), len(record.claims)


def label(row: ClaimRow | InEnvironment | RecordRow) -> str:
    """The row's result with what belongs beside it: "Inspected · Not run"."""
    if isinstance(row, ClaimRow) and row.result == "Not run" and row.inspected and row.provisional is None:
        return "Inspected · Not run"
    return row.result


def provisional_of(row: ClaimRow | InEnvironment | RecordRow) -> str | None:
    """The provisional result, where there is one."""
    if row.provisional is None:
        return None
    return row.provisional if isinstance(row.provisional, str) else row.provisional.result


def reason_of(row: ClaimRow | InEnvironment) -> str:
    """The reason that tells a reader most: the provisional one under uncommitted changes."""
    return row.provisional.reason if row.provisional else row.reason


def short_reason_of(row: ClaimRow) -> str:
    """The reason in a few words, for a table: what a check said stands in the claim's own part."""
    shown = row.provisional or row
    return _word_of(shown.code) if shown.result in {"Failed", "Inconclusive"} else shown.reason


def first_sentence(text: str) -> str:
    """A text up to the end of its first sentence."""
    sentence, dot, _ = text.partition(". ")
    return sentence + dot.strip()


def plain(text: str, keep: str = "") -> str:
    """A text as it may be shown: no character moves the cursor, changes colours or order, or can't be seen.

    Such a character is shown as its escape; those of `keep` stay.
    """
    return "".join(
        one if one in keep or (one.isprintable() and not _UNSEEN.match(one)) else ascii(one)[1:-1] for one in text
    )


def evidence_of(row: ClaimRow) -> str:
    """What was done for the row: "3 checks", with schedules where they were counted."""
    parts = []
    for seen in _told(row.by_environment):
        checks = len(seen.checks)
        text = f"{checks} check{'' if checks == 1 else 's'}"
        schedules = [check.notes["schedules"] for check in seen.checks if "schedules" in check.notes]
        counted = [one for one in schedules if isinstance(one, int)]
        parts.append(text + (f", {sum(counted)} schedules" if counted else "") if checks else "")
    return " · ".join(dict.fromkeys(part for part in parts if part))


def negative_of(row: ClaimRow) -> str:
    """What became of the row's negative controls: "locks_children_first caught (55P03)"."""
    told = (control_told(control) for seen in _told(row.by_environment) for control in seen.controls)
    return ", ".join(dict.fromkeys(told))


def control_told(control: ControlSeen) -> str:
    """One control in a few words."""
    outcome = control.outcome.replace("_", " ")
    return f"{control.id} {outcome}" + (f" ({control.because})" if control.because else "")


def took(row: ClaimRow) -> float:
    """Seconds that the row's checks took, in all environments."""
    return sum(check.seconds for seen in row.by_environment for check in seen.checks)


def servers_of(environment: Environment) -> str:
    """The servers and the machine of an environment, in a line."""
    parts = [f"Python {environment.python}"]
    if environment.postgresql:
        parts.insert(0, f"PostgreSQL {environment.postgresql.version}")
    if environment.redis:
        named = environment.redis.version[:1].isalpha()
        parts.insert(1, environment.redis.version.capitalize() if named else f"Redis {environment.redis.version}")
    if environment.kubernetes:
        parts.insert(0, f"Kubernetes {environment.kubernetes.version}")
    cores = environment.cores
    return " · ".join([*parts, environment.platform, *([f"{cores} core{'' if cores == 1 else 's'}"] if cores else [])])


def _told(seen: Sequence[InEnvironment]) -> Iterator[InEnvironment]:
    yield from (one for one in seen if one.checks or one.controls)


def _word_of(code: Code) -> str:
    return code.replace("_", " ")


def _claims(number: int) -> str:
    return f"{number} claim{'' if number == 1 else 's'}"
