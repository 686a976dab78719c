"""Which system is tried where none is named, and what the evidence of another one is worth."""

from pathlib import Path

import pytest
import toy

from leaseproof.cli import prepare
from leaseproof.loading import WrongSystem

SUITE = """
@claim("TOY-1")
async def test_a(system_under_test): expect(not system_under_test.broken, "broken")
"""
SYSTEM = ("--system", "toy_system:system")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The toy's work tree: the reference, which is installed, is no code of it."""
    toy.write_project(tmp_path, SUITE, {"TOY-1": ["test_a"]})
    return tmp_path


@pytest.mark.parametrize("arguments", [["verify"], ["controls"], ["claims", "--update-lock"]])
def test_another_projects_system_is_not_tried_unasked(project: Path, arguments: list[str]) -> None:
    done = toy.leaseproof(project, *arguments)
    assert done.returncode == 2
    assert "the only system installed is agentrun-reference (agentrun_reference.conformance:system)" in done.stderr
    assert f"no code of the project in {project}" in done.stderr
    assert "--system package.module:attribute" in done.stderr


def test_the_default_is_tried_where_it_is_meant(
    project: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    monkeypatch.chdir(project)
    with pytest.raises(WrongSystem):
        prepare.system(None)
    monkeypatch.chdir(tmp_path_factory.mktemp("outside of any work tree"))
    outside = prepare.system(None)
    monkeypatch.chdir(outside.file.parent)
    assert prepare.system(None) == outside
    monkeypatch.chdir(project)
    monkeypatch.setenv("LEASEPROOF_SYSTEM", outside.name)
    assert prepare.system(None) == outside


def test_a_package_of_an_environment_is_no_code_of_the_project_around_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = tmp_path / ".venv" / "site-packages"
    monkeypatch.setattr(prepare.sysconfig, "get_path", lambda kind: str(packages))
    assert not prepare._of_project(packages / "other" / "adapter.py", tmp_path)
    assert prepare._of_project(tmp_path / "own" / "adapter.py", tmp_path)


def claims(project: Path, *arguments: str) -> list[str]:
    done = toy.leaseproof(project, "claims", *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def of_toy(lines: list[str]) -> tuple[str, str]:
    """What the results are of, and the row of the toy's claim."""
    return lines[0], next(line for line in lines if line.startswith("TOY-1"))


def test_results_are_shown_with_what_they_are_of_and_stale_where_that_is_another(project: Path) -> None:
    assert "result" not in claims(project)[0]
    assert toy.leaseproof(project, "verify", *SYSTEM, "-n", "0").returncode == 0
    first, row = of_toy(claims(project, *SYSTEM))
    assert first.startswith("results of toy 1, commit ")
    assert first.endswith(" UTC")
    assert "Passed" in row

    (project / "new.txt").write_text("new")
    first, row = of_toy(claims(project, *SYSTEM))
    assert "UTC: Stale, the system is now toy 1, commit " in first
    assert first.endswith("(uncommitted changes)")
    assert "Stale" in row
    assert "Passed" not in row

    toy.commit(project)
    first, row = of_toy(claims(project, *SYSTEM))
    assert "UTC: Stale, the system is now toy 1, commit " in first
    assert first.endswith("(clean)")
    assert "Passed" not in row
    assert any(
        line.startswith("result ") and "Stale (the system is now" in line for line in claims(project, "TOY-1", *SYSTEM)
    )


def test_results_are_stale_where_no_system_is_there_to_compare(project: Path) -> None:
    assert toy.leaseproof(project, "verify", *SYSTEM, "-n", "0").returncode == 0
    first, row = of_toy(claims(project))
    assert "UTC: Stale, with no system to compare: the only system installed is agentrun-reference" in first
    assert "Passed" not in row
    assert toy.leaseproof(project, "claims", "--system", "nothing:here").returncode == 2


@pytest.mark.parametrize(
    ("file", "old", "new", "line", "says"),
    [
        ("toy_system.py", "Cap.lease,", "Cap.fifo,", "PROMISED = frozenset({Cap.fifo", "AttributeError: fifo"),
        ("toy_system.py", "broken = False", "broken = nothing", "    broken = nothing", "NameError"),
        ("toy_system.py", "broken = False", "broken = = 1", "    broken = = 1", "SyntaxError"),
        ("toy_system.py", "system = Toy()", "import no_such_module", "import no_such_module", "ModuleNotFoundError"),
        ("toy_system.py", "system = Toy()", "int('x')", "int('x')", "ValueError"),
        ("toy_controls.py", "broken = True", "broken = nothing", "    broken = nothing", "NameError"),
    ],
)
def test_a_mistake_in_an_adapter_is_told_with_its_place(
    project: Path, file: str, old: str, new: str, line: str, says: str
) -> None:
    path = project / file
    path.write_text(path.read_text().replace(old, new))
    number = next(n for n, text in enumerate(path.read_text().splitlines(), 1) if text.startswith(line))
    done = toy.leaseproof(project, "verify", *SYSTEM, "-n", "0", COLUMNS="1000")
    assert done.returncode == 2
    assert f"{file}:{number}: {says}" in done.stderr
    assert "Install it" not in done.stderr


def test_a_module_that_is_not_there_is_told_so(project: Path) -> None:
    done = toy.leaseproof(project, "verify", "--system", "no_such_module.adapter:system")
    assert done.returncode == 2
    assert "Install it, or run from the folder that holds it" in done.stderr
