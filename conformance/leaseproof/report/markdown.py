"""The evidence as Markdown for a pull request: short table first, details folded. From the file alone.

Owns the text; must not judge. Every text of the file is escaped: it can't make markup, links, mentions or table cells.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Final

from leaseproof.evidence.model import ClaimRow, Evidence
from leaseproof.report.view import (
    View,
    evidence_of,
    label,
    negative_of,
    plain,
    provisional_of,
    reason_of,
    servers_of,
    short_reason_of,
)

_SPECIAL: Final = re.compile(r"[\\`*\[\]|~<>&@#!$]|(?<!\w)_|_(?!\w)|:(?=//|[\w+\-]+:)")
_JOINED: Final = re.compile(r"(&#(?:58|64|35);)(?=[\w+\-])")
"""What a forge would still link or draw after entities are read (:emoji:, @name, #1): a break stands behind it."""
_WWW: Final = re.compile(r"(www)\.", re.IGNORECASE)
_CELL: Final = 300


def render_markdown(evidence: Evidence) -> str:
    """The whole text."""
    view = View(evidence)
    return "\n".join(
        [
            f"## {escape(view.headline)}",
            "",
            f"**{escape(view.name)}**, {escape(evidence.subject.label)}. "
            f"{escape(view.under_headline)} {escape(view.core)}.",
            "",
            *([f"**{escape(view.rules)}**", ""] if view.rules else []),
            *([f"**{escape(view.undecided_records)}**", ""] if view.undecided_records else []),
            *(f"- {escape(one.id)}: {escape(servers_of(one))}" for one in evidence.environments),
            "",
            *_records(view),
            "",
            *_open(view),
            *_details("Matrix", _matrix(evidence.claims)),
            *_details("Checks", _checks(evidence)),
            *(f"<sub>{escape(note)}</sub>  " for note in evidence.footnotes),
            f"<sub>evidence sha256 {evidence.sha256}</sub>",
            "",
        ]
    )


def escape(text: str, limit: int = _CELL) -> str:
    """One line of plain text in Markdown."""
    line = plain(" ".join(text.split()))
    line = line if len(line) <= limit else line[: limit - 1] + "…"
    escaped = _SPECIAL.sub(lambda match: f"&#{ord(match.group())};", line)
    return _WWW.sub(r"\1&#46;", _JOINED.sub(r"\1&#8203;", escaped))


def _records(view: View) -> Iterator[str]:
    yield "| record | | result | claims passed |"
    yield "|---|---|---|---|"
    for record in view.evidence.records:
        passed, of = view.passed_of(record)
        shown = record.result + (f" (provisional: {record.provisional})" if record.provisional else "")
        yield f"| {escape(record.id)} | {escape(record.title)} | {escape(shown)} | {passed} of {of} |"


def _open(view: View) -> Iterator[str]:
    """The rows that need somebody: failed, undecided or stale, provisional ones included."""
    rows = [
        row
        for row in view.evidence.claims
        if (provisional_of(row) or row.result) in {"Failed", "Inconclusive", "Stale"}
    ]
    if rows:
        yield from ("### Needs attention", "")
        yield from (f"- **{escape(row.id)}** {escape(_shown(row))}: {escape(reason_of(row))}" for row in rows)
        yield ""


def _matrix(rows: Iterable[ClaimRow]) -> Iterator[str]:
    yield "| claim | result | reason | evidence | negative control |"
    yield "|---|---|---|---|---|"
    for row in rows:
        cells = (row.id, _shown(row), short_reason_of(row), evidence_of(row), negative_of(row))
        yield f"| {' | '.join(escape(cell) for cell in cells)} |"


def _checks(evidence: Evidence) -> Iterator[str]:
    yield "| environment | check | outcome | seconds | because |"
    yield "|---|---|---|---|---|"
    for row in evidence.claims:
        for seen in row.by_environment:
            for check in seen.checks:
                cells = (seen.environment, check.id, check.outcome, f"{check.seconds:.2f}", check.because or "")
                yield f"| {' | '.join(escape(cell) for cell in cells)} |"


def _details(title: str, lines: Iterable[str]) -> Iterator[str]:
    yield from (f"<details><summary>{title}</summary>", "", *lines, "", "</details>", "")


def _shown(row: ClaimRow) -> str:
    provisional = provisional_of(row)
    return label(row) + (f" (provisional: {provisional})" if provisional else "")
