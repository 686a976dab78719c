"""Several evidence files into one matrix: environments stand side by side. Must not judge; verdicts do.

One subject: a file of another commit of it is kept, and its rows are Stale; a file of another system is refused.
"""

from collections.abc import Sequence

from leaseproof.evidence.model import ClaimRow, Environment, Evidence
from leaseproof.evidence.verdicts import recompute


class CannotMerge(Exception):
    """The files don't belong together. The text says which and why."""


def merge(files: Sequence[tuple[str, Evidence]]) -> Evidence:
    """The matrix of these files (name, evidence); the first one's subject and claims are the matrix's own.

    Raises CannotMerge for another system, for a run that stands twice with other facts, and where promises differ.
    """
    if not files:
        raise CannotMerge("no evidence files to merge; name at least one")
    first_name, first = files[0]
    environments: dict[tuple[str, str], Environment] = {}
    for name, evidence in files:
        _same_system(first_name, first, name, evidence)
        for environment in evidence.environments:
            key = (environment.id, environment.run)
            if environments.setdefault(key, environment) != environment:
                raise CannotMerge(f"run {environment.run} stands in two files with other facts, the second {name}")
    merged = first.model_copy(
        update={
            "environments": tuple(environments.values()),
            "claims": _claims(files),
            "footnotes": tuple(dict.fromkeys(note for _, evidence in files for note in evidence.footnotes)),
            "started": min(evidence.started for _, evidence in files),
            "finished": max(evidence.finished for _, evidence in files),
        }
    )
    return recompute(merged)


def _same_system(first_name: str, first: Evidence, name: str, other: Evidence) -> None:
    if other.subject.name != first.subject.name:
        raise CannotMerge(
            f"{name} is about {other.subject.name}, {first_name} about {first.subject.name}; merge files of one system"
        )
    same_subject = other.subject.key == first.subject.key
    if same_subject and other.not_promised != first.not_promised:
        raise CannotMerge(f"{name} and {first_name} differ in what {first.subject.name} promises, at one commit")
    same_rules = (other.catalogue_sha256, other.checks_lock_sha256) == (
        first.catalogue_sha256,
        first.checks_lock_sha256,
    )
    if same_rules and same_subject and [_stated(row) for row in other.claims] != [_stated(row) for row in first.claims]:
        raise CannotMerge(f"{name} and {first_name} state other claims under one catalogue and checks.lock")
    records = [[(row.id, row.title, row.claims) for row in one.records] for one in (first, other)]
    if first.catalogue_sha256 == other.catalogue_sha256 and records[0] != records[1]:
        raise CannotMerge(f"{name} and {first_name} state other records under one catalogue")


def _stated(row: ClaimRow) -> tuple[object, ...]:
    """What a row states apart from results and from what each machine looked up."""
    return (row.id, row.revision, row.must, row.tier, row.requires, row.planned, row.expected, row.control)


def _claims(files: Sequence[tuple[str, Evidence]]) -> tuple[ClaimRow, ...]:
    """The first file's claims, each in the highest revision that any file knows: evidence of a lower one is Stale."""
    newest = {row.id: row for row in files[0][1].claims}
    for _, evidence in files[1:]:
        for row in evidence.claims:
            if row.id in newest and row.revision > newest[row.id].revision:
                newest[row.id] = row
    return tuple(newest.values())
