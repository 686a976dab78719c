"""The catalogue says what the specification claims, and refuses what it can't use."""

from collections import Counter
from pathlib import Path

import pytest

from leaseproof.claims.catalogue import FAMILIES, BadCatalogue, load_catalogue

CLAIM = """
[[claim]]
id = "LOCK-1"
revision = 1
kind = "core"
records = ["T1"]
must = "The root is locked first."
failure_surface = "A deadlock of two cancels."
semantic_owner = "run repository"
tier = "pg"
requires = ["execution_tree_cancel"]
negative_case = "The root is held elsewhere."
controls = []
"""
EXTENDED = {
    "LOCK": {6, 7, 8, 9, 10},
    "CANCEL": {2, 3, 4, 5},
    "SIGNAL": {3},
    "SHAPE": {6, 7, 8},
    "ATTEMPT": {12, 14, 15, 18},
    "CREATE": {2},
    "WORKER": {4, 5},
    "KUBE": {3, 4, 5, 7, 8},
    "COLD": {3, 5},
}
NUMBERS = {
    "LOCK": 10,
    "CANCEL": 5,
    "SIGNAL": 3,
    "SHAPE": 8,
    "ATTEMPT": 18,
    "CREATE": 3,
    "WORKER": 5,
    "KUBE": 8,
    "COLD": 5,
}


def written(folder: Path, text: str = CLAIM, name: str = "lock.toml") -> Path:
    (folder / name).write_text(text)
    return folder


def test_every_claim_of_the_specification_is_there_in_order() -> None:
    wanted = [f"{family}-{number}" for family in FAMILIES for number in range(1, NUMBERS[family] + 1)]
    assert list(load_catalogue().claims) == wanted


def test_extended_claims_are_those_that_public_failure_reports_teach() -> None:
    extended: dict[str, set[int]] = {}
    for claim in load_catalogue().claims.values():
        if claim.kind == "extended":
            extended.setdefault(claim.family, set()).add(int(claim.id.rpartition("-")[2]))
    assert extended == EXTENDED


def test_records_hold_the_claims_that_the_specification_gives_them() -> None:
    records = {record.id: record.claims for record in load_catalogue().records}
    families = {name: Counter(claim.rpartition("-")[0] for claim in claims) for name, claims in records.items()}
    assert families == {
        "T1": {"LOCK": 10, "CANCEL": 5, "SIGNAL": 3},
        "T2": {"SHAPE": 8, "CREATE": 3},
        "T3": {"WORKER": 5},
        "T4": {"KUBE": 8},
        "T5": {"COLD": 5},
        "A1": {"ATTEMPT": 17},
        "A2": {"ATTEMPT": 1},
        "A3": {"COLD": 1},
    }
    assert records["A2"] == ("ATTEMPT-13",)
    assert records["A3"] == ("COLD-1",)
    assert "ATTEMPT-13" not in records["A1"]


def test_the_digest_depends_on_the_claims_and_not_on_the_layout(tmp_path: Path) -> None:
    first = load_catalogue(written(tmp_path)).digest
    assert load_catalogue(written(tmp_path, "# a comment\n\n" + CLAIM)).digest == first
    assert load_catalogue(written(tmp_path, CLAIM.replace("locked first", "locked last"))).digest != first


@pytest.mark.parametrize(
    ("text", "name", "says"),
    [
        ("[[claim", "lock.toml", "lock.toml: can't be read"),
        ("", "lock.toml", "must hold [[claim]] entries"),
        (CLAIM + 'extra = "x"\n', "lock.toml", "claim LOCK-1: extra"),
        (CLAIM.replace("revision = 1", "revision = 0"), "lock.toml", "claim LOCK-1: revision"),
        (CLAIM.replace('tier = "pg"', 'tier = "cloud"'), "lock.toml", "claim LOCK-1: tier"),
        (CLAIM.replace("execution_tree_cancel", "telepathy"), "lock.toml", "claim LOCK-1: requires.0"),
        (CLAIM.replace('"run repository"', '"somebody"'), "lock.toml", "claim LOCK-1: semantic_owner"),
        (CLAIM.replace('["T1"]', '["T9"]'), "lock.toml", "no record T9"),
        (CLAIM.replace('["T1"]', '["T1", "T1"]'), "lock.toml", "records names something twice"),
        (CLAIM.replace('"LOCK-1"', '"LOCK 1"'), "lock.toml", "claim LOCK 1: id"),
        (CLAIM, "shape.toml", "claim LOCK-1 belongs in lock.toml"),
        (CLAIM + CLAIM, "lock.toml", "claim LOCK-1 stands twice"),
    ],
)
def test_what_is_wrong_is_named_with_file_and_claim(tmp_path: Path, text: str, name: str, says: str) -> None:
    with pytest.raises(BadCatalogue) as caught:
        load_catalogue(written(tmp_path, text, name))
    assert says in str(caught.value)
    assert name in str(caught.value)


def test_an_empty_folder_is_no_catalogue(tmp_path: Path) -> None:
    with pytest.raises(BadCatalogue, match="no claims in"):
        load_catalogue(tmp_path)


def test_an_unknown_claim_is_refused() -> None:
    with pytest.raises(BadCatalogue, match="no claim LOCK-99"):
        load_catalogue().named(["LOCK-1", "LOCK-99"])
