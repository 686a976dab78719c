"""The catalogue and the reference's controls name each other."""

from collections import defaultdict

from leaseproof.claims.catalogue import load_catalogue
from leaseproof.claims.lock import load_lock
from leaseproof.controls.registry import load_controls

CONTROLS = load_controls("agentrun-reference")
CATALOGUE = load_catalogue()


def test_catalogue_names_just_the_controls_that_there_are() -> None:
    there: dict[str, list[str]] = defaultdict(list)
    for control in CONTROLS.values():
        if control.kind == "defect":
            there[str(control.refutes)].append(control.id)
    assert {claim.id: sorted(claim.controls) for claim in CATALOGUE.claims.values() if claim.controls} == {
        claim: sorted(ids) for claim, ids in there.items()
    }


def test_each_built_claim_has_its_controls() -> None:
    built = [claim for claim, entry in load_lock().claims.items() if not entry.planned]
    few = {
        claim: CATALOGUE.claims[claim].controls
        for claim in built
        if len(CATALOGUE.claims[claim].controls) < (2 if CATALOGUE.claims[claim].kind == "core" else 1)
    }
    assert (few, len(CONTROLS) >= 50) == ({}, True)


def test_a_defect_is_caught_by_a_check_that_its_claim_expects() -> None:
    claims = load_lock().claims
    strays = {
        control.id
        for control in CONTROLS.values()
        if control.kind == "defect" and control.caught_by not in claims[str(control.refutes)].tests
    }
    assert strays == set()


def test_there_are_correct_variants() -> None:
    assert sum(control.kind == "variant" for control in CONTROLS.values()) >= 6
