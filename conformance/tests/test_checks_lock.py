"""checks.lock is reviewed data: it shrinks only on purpose, and planned never comes back."""

import subprocess
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from leaseproof.claims.catalogue import Catalogue, load_catalogue
from leaseproof.claims.lock import (
    BadLock,
    Expected,
    Lock,
    Removed,
    compare,
    default_path,
    disagreements,
    load_lock,
    parse_lock,
    render_lock,
    update,
)
from leaseproof.evidence.inspect import checks_by_claim

A, B = "LOCK-1 test_a", "LOCK-1 test_b"
OLD = Lock({"LOCK-1": Expected(1, (A, B), control="breaks_it")})
CATALOGUE = Catalogue({"LOCK-1": load_catalogue().claims["LOCK-1"]})
RAISED = Catalogue({"LOCK-1": CATALOGUE.claims["LOCK-1"].model_copy(update={"revision": 2})})


def versions() -> Iterator[str]:
    """The file in every commit that changed it, the oldest first, and as it lies here."""
    path = default_path()

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(path.parent), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout

    for commit in git("log", "--reverse", "--format=%H", "--", path.name).split():
        text = git("show", f"{commit}:./{path.name}")
        if text:
            yield text
    yield path.read_text()


def test_the_lock_and_the_catalogue_speak_of_the_same_claims() -> None:
    assert disagreements(load_catalogue(), load_lock()) == []


def test_the_lock_lists_what_the_suites_hold() -> None:
    found = checks_by_claim()
    listed = {name: sorted(one.tests) for name, one in load_lock().claims.items() if not one.planned}
    assert listed == {name: sorted(found.get(name, [])) for name in listed}


def test_every_step_of_the_file_in_history_was_allowed() -> None:
    locks = [parse_lock(text) for text in versions()]
    assert [compare(old, new) for old, new in pairwise(locks)] == [[]] * (len(locks) - 1)


def test_the_file_is_what_the_kit_would_write() -> None:
    assert render_lock(load_lock()) == default_path().read_text()


def test_a_lock_survives_its_file() -> None:
    lock = replace(OLD, removed=(Removed("LOCK-1 test_c", 1, 'never "real"\\ \x7f'),))
    assert parse_lock(render_lock(lock)) == lock
    assert parse_lock(render_lock(lock)).digest == lock.digest


@pytest.mark.parametrize(
    ("new", "problem"),
    [
        (Lock({}), "left checks.lock"),
        (Lock({"LOCK-1": Expected(1, (A,), control="breaks_it")}), f"lost {B} without a new revision"),
        (Lock({"LOCK-1": Expected(2, (A,), control="breaks_it")}), "not in [[removed]] with revision 2"),
        (
            Lock({"LOCK-1": Expected(2, (A,), control="breaks_it")}, (Removed(B, 1, "it was wrong"),)),
            "not in [[removed]] with revision 2",
        ),
        (Lock({"LOCK-1": Expected(2, planned=True)}, (Removed(A, 2, "x"), Removed(B, 2, "x"))), "planned again"),
        (Lock({"LOCK-1": Expected(1, (A, B))}), "lost its negative control"),
    ],
)
def test_a_lock_does_not_shrink_in_silence(new: Lock, problem: str) -> None:
    assert any(problem in one for one in compare(OLD, new))


def test_a_revision_does_not_go_back() -> None:
    later = Lock({"LOCK-1": replace(OLD.claims["LOCK-1"], revision=2)})
    assert compare(later, OLD) == ["LOCK-1: its revision went from 2 back to 1"]


def test_what_was_removed_stays_listed() -> None:
    assert compare(replace(OLD, removed=(Removed("LOCK-1 test_c", 1, "x"),)), OLD) == [
        "LOCK-1 test_c: left the list of removed checks"
    ]


@pytest.mark.parametrize(
    "new",
    [
        OLD,
        Lock({"LOCK-1": Expected(1, (A, B, "LOCK-1 test_c"), control="another")}),
        Lock({"LOCK-1": Expected(2, (A,), control="breaks_it")}, (Removed(B, 2, "it was wrong"),)),
    ],
)
def test_growing_and_removing_on_purpose_are_allowed(new: Lock) -> None:
    assert compare(OLD, new) == []


def test_an_update_takes_new_checks_and_the_first_control() -> None:
    planned = Lock({"LOCK-1": Expected(1, planned=True)})
    updated = update(planned, CATALOGUE, {"LOCK-1": ["test_b", "test_a"]}, {"LOCK-1": ["one", "two"]})
    assert updated.claims["LOCK-1"] == Expected(1, (A, B), control="one")


def test_an_update_keeps_a_control_that_is_still_there() -> None:
    updated = update(OLD, CATALOGUE, {"LOCK-1": ["test_a", "test_b"]}, {"LOCK-1": ["one", "breaks_it"]})
    assert updated.claims["LOCK-1"].control == "breaks_it"


def test_an_update_without_checks_leaves_a_claim_planned() -> None:
    planned = Lock({"LOCK-1": Expected(1, planned=True)})
    assert update(planned, CATALOGUE, {}, {}) == planned


@pytest.mark.parametrize("reason", [None, "it was wrong"])
def test_an_update_does_not_drop_a_check_of_the_same_revision(reason: str | None) -> None:
    with pytest.raises(BadLock, match="revision"):
        update(OLD, CATALOGUE, {"LOCK-1": ["test_a"]}, {"LOCK-1": ["breaks_it"]}, reason)


def test_an_update_drops_a_check_of_a_new_revision_for_a_reason() -> None:
    updated = update(OLD, RAISED, {"LOCK-1": ["test_a"]}, {"LOCK-1": ["breaks_it"]}, "it was wrong")
    assert updated == Lock({"LOCK-1": Expected(2, (A,), control="breaks_it")}, (Removed(B, 2, "it was wrong"),))


def test_an_update_never_plans_again() -> None:
    with pytest.raises(BadLock):
        update(OLD, RAISED, {}, {"LOCK-1": ["breaks_it"]}, "all were wrong")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("x = [", "checks.lock: "),
        ("x = 1", "holds 'x'"),
        ("claims = 1", "claims must be a table"),
        ("[claims.LOCK-1]\nplanned = true", "revision must be"),
        ("[claims.LOCK-1]\nrevision = true\nplanned = true", "revision must be"),
        ("[claims.LOCK-1]\nrevision = 1", "either checks or planned"),
        ('[claims.LOCK-1]\nrevision = 1\nplanned = true\nchecks = ["LOCK-1 test_a"]', "either checks or planned"),
        ('[claims.LOCK-1]\nrevision = 1\nchecks = ["test_a"]', "list of ids"),
        ('[claims.LOCK-1]\nrevision = 1\nchecks = ["LOCK-2 test_a"]', "of another claim"),
        ('[claims.LOCK-1]\nrevision = 1\nchecks = ["LOCK-1 test_a", "LOCK-1 test_a"]', "stands twice"),
        ("[claims.LOCK-1]\nrevision = 1\nplanned = true\nnote = 1", "unknown key 'note'"),
        ('[[removed]]\ncheck = "LOCK-1 test_a"\nrevision = 1', "has check, revision and reason"),
        ('[[removed]]\ncheck = "LOCK-1 test_a"\nrevision = 1\nreason = " "', "and a reason"),
    ],
)
def test_a_bad_file_is_refused_with_the_place(text: str, says: str) -> None:
    with pytest.raises(BadLock) as caught:
        parse_lock(text)
    assert says in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadLock, match="can't be read"):
        load_lock(tmp_path / "checks.lock")


def test_catalogue_and_lock_that_differ_are_told() -> None:
    assert disagreements(RAISED, OLD) == ["LOCK-1: revision 2 in the catalogue, 1 in checks.lock"]
    assert disagreements(CATALOGUE, Lock({})) == ["LOCK-1: in the catalogue, not in checks.lock"]
    assert disagreements(Catalogue({}), OLD) == ["LOCK-1: in checks.lock, not in the catalogue"]
