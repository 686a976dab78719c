"""Owners and controls count from the subject's commit alone: any other makes no row Passed, and report and terminal
say why."""

import subprocess
from pathlib import Path

import pytest
import toy

from leaseproof.evidence.model import read_evidence

CLAIMS = {f"TOY-{number}": ["test_a"] for number in range(1, 7)}
SUITE = f"""
@claim({str([*CLAIMS])[1:-1]})
async def test_a(system_under_test): expect(not system_under_test.broken, "broken")
"""
OWNERS = {
    "TOY-1": ("run repository", "toy_system:Toy"),
    "TOY-2": ("attempts", None),
    "TOY-3": ("run shape", "no_such_module:Runs"),
    "TOY-4": ("creation service", "toy_system:Runs"),
    "TOY-5": ("worker", "toy_ignored:Runs"),
    "TOY-6": ("signals", "toy_elsewhere:Runs"),
}
"""Claim to the name of its semantic owner, and to the symbol that the system names for it."""


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """A folder on the import path that is part of no commit."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    return folder


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A committed toy whose one check decides all of the claims."""
    folder = tmp_path / "project"
    folder.mkdir()
    toy.write_project(folder, SUITE, CLAIMS)
    replace(folder / "toy_controls.py", 'frozenset({"TOY-2"})', f"frozenset({set(CLAIMS)})")
    toy.commit(folder)
    return folder


def replace(file: Path, old: str, new: str) -> None:
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))


def verify(project: Path, elsewhere: Path) -> "subprocess.CompletedProcess[str]":
    return toy.leaseproof(
        project,
        *("verify", "--system", "toy_system:system", "-n", "0"),
        PYTHONPATH=str(elsewhere),
        COLUMNS="1000",
    )


def test_a_claim_whose_owner_is_not_in_the_commit_is_not_passed(project: Path, elsewhere: Path) -> None:
    claims = project / "claims" / "toy.toml"
    for claim, (owner, _) in OWNERS.items():
        before, row, after = claims.read_text().partition(f'id = "{claim}"')
        claims.write_text(before + row + after.replace("run repository", owner, 1))
    named = {owner: symbol for owner, symbol in OWNERS.values() if symbol}
    replace(project / "toy_system.py", '{"run repository": "toy_system:Toy"}', repr(named))
    with (project / ".gitignore").open("a") as rules:
        rules.write("toy_ignored.py\n")
    toy.commit(project)
    for file in (project / "toy_ignored.py", elsewhere / "toy_elsewhere.py"):
        file.write_text("class Runs: ...\n")

    done = verify(project, elsewhere)
    assert (done.returncode, done.stderr) == (3, "")
    found = toy.results(project)
    assert found.pop("TOY-1") == "Passed: 1 check passed; broken caught (broken)"
    assert found == {
        "TOY-2": "Inconclusive: the system names no symbol for its attempts",
        "TOY-3": "Inconclusive: semantic owner no_such_module:Runs is not in the source",
        "TOY-4": "Inconclusive: semantic owner toy_system:Runs is not in the source",
        "TOY-5": "Inconclusive: semantic owner toy_ignored:Runs is not in the source",
        "TOY-6": "Inconclusive: semantic owner toy_elsewhere:Runs is not in the source",
    }
    for claim, said in found.items():
        row = next(line for line in done.stdout.splitlines() if line.startswith(claim))
        assert all(part in row for part in said.split(": "))


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("untracked", "imported, but not part of it: toy_controls.py"),
        ("ignored", "imported, but not part of it: toy_controls.py"),
        ("a package elsewhere", "imported from outside the subject: {elsewhere}/toy_controls/__init__.py"),
    ],
)
def test_controls_that_are_not_in_the_commit_count_for_nothing(
    project: Path, elsewhere: Path, place: str, said: str
) -> None:
    controls = project / "toy_controls.py"
    text = controls.read_text()
    controls.unlink()
    if place == "ignored":
        with (project / ".gitignore").open("a") as rules:
            rules.write("toy_controls.py\n")
    toy.commit(project)
    if place == "a package elsewhere":
        controls = elsewhere / "toy_controls" / "__init__.py"
        controls.parent.mkdir()
    controls.write_text(text)

    done = verify(project, elsewhere)
    assert (done.returncode, done.stderr) == (0, "")
    assert toy.results(project) == dict.fromkeys(CLAIMS, "Not run: uncommitted changes")
    change = said.format(elsewhere=elsewhere)
    assert change in read_evidence(project / "reports" / "evidence.json").subject.changes
    assert f"uncommitted changes: every row reads Not run, the outcomes below are provisional ({change}" in done.stdout
    assert "\nTOY-1  Passed (provisional)" in done.stdout
