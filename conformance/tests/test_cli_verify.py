"""`leaseproof verify` from end to end on a toy: exit codes, evidence, and that trouble never reads as Passed."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import toy
from typer.testing import CliRunner

from leaseproof.cli.app import app
from leaseproof.cli.prepare import Kit

WHOLE = """
@claim("TOY-1")
async def test_a(system_under_test): expect(not system_under_test.broken, "broken")

@claim("TOY-2")
async def test_b(system_under_test): expect(system_under_test.name == "toy", "name")
"""
EXPECTED = {"TOY-1": ["test_a"]}
BOTH = {"TOY-1": ["test_a"], "TOY-2": ["test_b"]}
SYSTEM = ("--system", "toy_system:system")


def verify(folder: Path, *arguments: str, workers: int = 0, **variables: str) -> subprocess.CompletedProcess[str]:
    done = toy.leaseproof(folder, "verify", *SYSTEM, "-n", str(workers), *arguments, **variables)
    assert "Traceback" not in done.stderr + done.stdout
    return done


def test_a_whole_toy_passes_and_leaves_its_evidence(tmp_path: Path) -> None:
    toy.write_project(tmp_path, WHOLE, EXPECTED)
    done = toy.leaseproof(tmp_path, "verify", *SYSTEM)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("leaseproof verify · 1 of 1 core claims apply · toy 1 · commit ")
    assert "broken caught (broken)" in done.stdout
    assert toy.results(tmp_path)["TOY-1"].startswith("Passed")
    assert {path.name for path in (tmp_path / "reports").glob("evidence.*")} == {
        "evidence.json",
        "evidence.html",
        "evidence.md",
    }


def test_a_refuted_claim_fails_with_1(tmp_path: Path) -> None:
    toy.write_project(
        tmp_path, WHOLE.replace('expect(not system_under_test.broken, "broken")', 'refute("x", "y")'), EXPECTED
    )
    assert verify(tmp_path).returncode == 1
    assert toy.results(tmp_path) == {"TOY-1": "Failed: test_a: x: y"}


def test_an_uncommitted_failure_is_provisional_and_fails_with_1(tmp_path: Path) -> None:
    toy.write_project(
        tmp_path, WHOLE.replace('expect(not system_under_test.broken, "broken")', 'refute("x", "y")'), EXPECTED
    )
    (tmp_path / "new.txt").write_text("new")
    done = verify(tmp_path)
    assert done.returncode == 1
    assert "Failed (provisional)" in done.stdout
    assert toy.results(tmp_path) == {"TOY-1": "Not run: uncommitted changes"}


@pytest.mark.parametrize("change", ["new.txt", "toy_system.py"])
def test_uncommitted_changes_make_every_row_not_run(tmp_path: Path, change: str) -> None:
    toy.write_project(tmp_path, WHOLE, EXPECTED)
    with (tmp_path / change).open("a") as file:
        file.write("\n")
    assert verify(tmp_path).returncode == 0
    assert verify(tmp_path, "--strict").returncode == 3
    assert toy.results(tmp_path) == {"TOY-1": "Not run: uncommitted changes"}


def test_a_defect_that_is_not_caught_makes_the_claim_inconclusive(tmp_path: Path) -> None:
    toy.write_project(tmp_path, WHOLE.replace('expect(not system_under_test.broken, "broken")', "pass"), EXPECTED)
    assert verify(tmp_path).returncode == 3
    assert toy.results(tmp_path)["TOY-1"].startswith("Inconclusive")


def test_claims_not_tried_are_no_failure_unless_strict(tmp_path: Path) -> None:
    toy.write_project(tmp_path, WHOLE, {**EXPECTED, "TOY-2": []})
    assert verify(tmp_path).returncode == 0
    assert toy.results(tmp_path)["TOY-2"] == "Not run: planned"
    assert verify(tmp_path, "--strict").returncode == 3


def test_a_chosen_claim_alone_is_tried(tmp_path: Path) -> None:
    toy.write_project(tmp_path, WHOLE, BOTH)
    assert verify(tmp_path).returncode == 3  # TOY-2 has no control of its own
    whole = toy.results(tmp_path)
    done = verify(tmp_path, "--claim", "TOY-1")
    assert done.returncode == 0
    assert "reports/partial/evidence.html" in "".join(done.stdout.split())
    assert toy.results(tmp_path, "partial/evidence.json")["TOY-2"] == "Not run: not selected"
    assert toy.results(tmp_path) == whole


def test_what_needs_another_tier_is_not_run(tmp_path: Path) -> None:
    toy.write_project(tmp_path, WHOLE, EXPECTED)
    assert verify(tmp_path).returncode == 0
    done = verify(tmp_path, "--tier", "static")
    assert (done.returncode, done.stderr) == (3, "leaseproof: no claim was tried, so nothing is decided\n")
    assert toy.results(tmp_path, "partial/evidence.json")["TOY-1"].startswith("Not run: needs tier pg")
    assert toy.results(tmp_path)["TOY-1"].startswith("Passed")


@pytest.mark.parametrize("arguments", [[], ["--claim", "TOY-1"], ["--strict"]])
def test_a_system_that_promises_too_little_is_not_decided_on(tmp_path: Path, arguments: list[str]) -> None:
    toy.write_project(tmp_path, WHOLE, BOTH)
    file = tmp_path / "toy_system.py"
    file.write_text(file.read_text().replace("{Cap.lease, Cap.execution_tree_cancel}", "{Cap.execution_tree_cancel}"))
    toy.commit(tmp_path)
    done = verify(tmp_path, *arguments)
    assert (done.returncode, done.stderr) == (
        3,
        "leaseproof: no claim was tried, so nothing is decided; "
        "claims would apply to a system that also promises lease (TOY-1, TOY-2)\n",
    )


@pytest.mark.parametrize(
    ("meddle", "result", "code"),
    [
        (lambda suite: suite.partition('@claim("TOY-2")')[0], "Not run: expected check absent", 3),
        (lambda suite: suite.replace("test_b", "test_renamed"), "Not run: expected check absent", 3),
        (lambda suite: suite.replace('expect(system_under_test.name == "toy", "name")', "pytest.skip('x')"), "Inc", 3),
        (lambda suite: suite.replace('expect(system_under_test.name == "toy", "name")', "os._exit(1)"), "Inc", 3),
        (lambda suite: suite.replace('expect(system_under_test.name == "toy", "name")', "os.killpg(0, 9)"), "Inc", 3),
    ],
    ids=["deleted", "renamed", "skipped", "worker crashed", "run killed"],
)
def test_a_check_that_did_not_run_to_its_end_never_passes(
    tmp_path: Path, meddle: object, result: str, code: int
) -> None:
    toy.write_project(tmp_path, meddle(WHOLE), BOTH)  # type: ignore[operator]
    assert verify(tmp_path, workers=1).returncode == code
    assert toy.results(tmp_path)["TOY-2"].startswith(result)


def test_the_callers_folder_and_environment_change_no_verdict(tmp_path: Path) -> None:
    toy.write_project(
        tmp_path, WHOLE.replace('expect(system_under_test.name == "toy", "name")', 'refute("x", "y")'), BOTH
    )
    (tmp_path / "conftest.py").write_text("import os\nos._exit(0)\n")
    (tmp_path / "json.py").write_text("import os\nos._exit(0)\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -k nothing\n")
    toy.commit(tmp_path)
    done = verify(tmp_path, PYTHONOPTIMIZE="2", PYTEST_ADDOPTS="-k nothing --reruns 2", PYTEST_PLUGINS="conftest")
    assert done.returncode == 1
    assert {claim: result[:6] for claim, result in toy.results(tmp_path).items()} == {
        "TOY-1": "Passed",
        "TOY-2": "Failed",
    }


def test_an_earlier_runs_evidence_does_not_outlive_a_run_that_could_not_start(tmp_path: Path) -> None:
    toy.write_project(tmp_path, WHOLE, EXPECTED)
    assert verify(tmp_path).returncode == 0
    toy.write_suite(tmp_path, "import no_such_module")
    done = verify(tmp_path)
    assert done.returncode == 2
    assert "nothing could start" in done.stderr
    assert "no_such_module" in done.stderr
    assert not (tmp_path / "reports" / "evidence.json").exists()


def put_earlier_evidence(folder: Path) -> None:
    """Files of an earlier run, where whole runs and where those of picked claims leave theirs."""
    for place in (folder / "reports", folder / "reports" / "partial"):
        place.mkdir(parents=True)
        for kind in ("json", "html", "md"):
            (place / f"evidence.{kind}").write_text("of an earlier run")


def evidence_left(folder: Path) -> dict[str, int]:
    """How many of these files are there in the folder of whole runs, and in that of picked claims."""
    places = {"whole": folder / "reports", "partial": folder / "reports" / "partial"}
    return {name: len([*place.glob("evidence.*")]) for name, place in places.items()}


NO_SERVERS = {"LEASEPROOF_TMP": "/nowhere"}


@pytest.mark.parametrize(
    ("arguments", "variables", "broken", "left"),
    [
        ([], NO_SERVERS, False, {"whole": 0, "partial": 3}),
        (["--claim", "TOY-1"], NO_SERVERS, False, {"whole": 3, "partial": 0}),
        (["--pg-bin", "/nowhere"], {}, False, {"whole": 0, "partial": 3}),
        (["--dsn", "host=/nowhere"], {}, False, {"whole": 0, "partial": 3}),
        ([], {}, True, {"whole": 0, "partial": 3}),
        (["--claim", "TOY-1"], {}, True, {"whole": 3, "partial": 0}),
    ],
    ids=["no servers", "no servers, claim", "no PostgreSQL", "no given server", "broken adapter", "broken, claim"],
)
def test_no_earlier_evidence_is_left_where_a_run_can_not_start(
    tmp_path: Path, arguments: list[str], variables: dict[str, str], broken: bool, left: dict[str, int]
) -> None:
    toy.write_project(tmp_path, WHOLE, EXPECTED)
    put_earlier_evidence(tmp_path)
    if broken:
        (tmp_path / "toy_system.py").write_text("1 / 0\n")
    assert verify(tmp_path, *arguments, **variables).returncode == 2
    assert evidence_left(tmp_path) == left


def test_wrong_options_leave_earlier_evidence_alone(tmp_path: Path, here: Callable[..., tuple[int, str]]) -> None:
    toy.write_project(tmp_path, WHOLE, EXPECTED)
    put_earlier_evidence(tmp_path)
    for wrong in (["-n", "many"], ["--tier", "moon"], ["--claim", "TOY-9"]):
        assert here(tmp_path, *SYSTEM, *wrong)[0] == 2
    assert evidence_left(tmp_path) == {"whole": 3, "partial": 3}


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, str]]:
    """Runs `verify` in this process, where it ends before anything is started; exit code and message."""

    def run(folder: Path, *arguments: str) -> tuple[int, str]:
        monkeypatch.chdir(folder)
        monkeypatch.setattr(sys, "path", [*sys.path])
        for module in ("toy_system", "toy_controls"):
            monkeypatch.delitem(sys.modules, module, raising=False)
        kit = Kit(folder / "suites", folder / "claims", toy.PLUGINS)
        done = CliRunner().invoke(app, ["verify", *arguments], obj=kit)
        assert done.exception is None or isinstance(done.exception, SystemExit)
        return done.exit_code, " ".join(done.stderr.split())

    return run


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--system", "nothing"], "has not the form package.module:attribute"),
        (["--system", "no_such_module:system"], "can't import no_such_module"),
        (["--system", "toy_system:nothing"], "has no 'nothing'"),
        (["--system", "toy_system:Toy"], "is a class"),
        (["--system", "toy_system:PROMISED"], "is a frozenset"),
        ([*SYSTEM, "--claim", "TOY-9"], "no claim 'TOY-9'; did you mean TOY-1?"),
        ([*SYSTEM, "--tier", "moon"], "no tier moon; there are static, pg"),
        ([*SYSTEM, "-n", "many"], "-n 'many' is no number of workers"),
        ([*SYSTEM, "-n", "-1"], "-n '-1' is no number of workers"),
        ([*SYSTEM, "--seed", "x"], "--seed"),
        ([*SYSTEM, "--nonsense"], "--nonsense"),
        ([*SYSTEM, "--reports", "toy_system.py"], "can't use the reports' folder toy_system.py: File exists"),
        ([*SYSTEM, "--reports", "/proc/nowhere"], "can't use the reports' folder /proc/nowhere"),
        ([*SYSTEM, "--dsn", "host=/nowhere user=me password=hunter2"], "PostgreSQL can't be reached"),
        ([*SYSTEM, "--redis-url", "redis://:hunter2@127.0.0.1:1/0"], "does not answer"),
        ([*SYSTEM, "--pg-bin", "/nowhere"], "no PostgreSQL in /nowhere"),
    ],
)
def test_wrong_use_ends_with_2_and_one_message(
    tmp_path: Path, here: Callable[..., tuple[int, str]], arguments: list[str], says: str
) -> None:
    toy.write_project(tmp_path, WHOLE, EXPECTED)
    code, said = here(tmp_path, *arguments)
    assert (code, says in said) == (2, True), said
    assert says in said
    assert "hunter2" not in said
    assert not (tmp_path / "reports" / "evidence.json").exists()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (('"a toy"', '"" if cap == "signals" else "a toy"'), "signals: 'not_promised' without a reason"),
        (("if cap not in PROMISED", "if cap != 'signals'"), "execution_tree_cancel, lease: both in"),
        (("if cap not in PROMISED", "if cap not in PROMISED and cap != 'signals'"), "signals: neither in"),
        (("PROMISED = frozenset({", "PROMISED = frozenset({'flying', "), "flying: no such capability"),
        (('    version = "1"\n', ""), "its 'version' can't be read"),
        (("facts = Facts", "facts = dict"), "its 'facts' must be"),
        (
            ("from leaseproof.system", "raise SystemExit(0)\nfrom leaseproof.system"),
            "toy_system raised while it was imported at",
        ),
    ],
)
def test_a_broken_adapter_ends_with_2_and_one_message(
    tmp_path: Path, here: Callable[..., tuple[int, str]], change: tuple[str, str], says: str
) -> None:
    toy.write_project(tmp_path, WHOLE, EXPECTED)
    file = tmp_path / "toy_system.py"
    assert change[0] in file.read_text()
    file.write_text(file.read_text().replace(*change))
    code, said = here(tmp_path, *SYSTEM)
    assert (code, says in said) == (2, True), said
    assert says in said


@pytest.mark.skipif(os.geteuid() != 0, reason="a file system of its own takes root")
def test_no_room_at_the_start_ends_with_2(tmp_path: Path) -> None:
    toy.write_project(tmp_path, WHOLE, EXPECTED)
    reports = tmp_path / "reports"
    reports.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(reports)], check=True)
    try:
        done = verify(tmp_path)
    finally:
        subprocess.run(["umount", str(reports)], check=True)
    assert done.returncode == 2
    assert "No space left on device" in done.stderr
    assert "--reports" in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="a file system of its own takes root")
def test_a_disk_that_fills_during_the_run_is_inconclusive_with_3(tmp_path: Path) -> None:
    fill = """
import glob
@claim("TOY-1")
async def test_a(system_under_test, record_property):
    (folder,) = glob.glob("reports/facts/*")
    record_property("long", "x" * 4000)
    with open(f"{folder}/filler", "wb", buffering=0) as file:
        try:
            while True: file.write(b"x" * 65536)
        except OSError: pass
"""
    toy.write_project(tmp_path, fill, EXPECTED)
    reports = tmp_path / "reports"
    reports.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=80m", "tmpfs", str(reports)], check=True)
    try:
        done = verify(tmp_path, workers=1)
        evidence = reports / "evidence.json"
        said = toy.results(tmp_path)["TOY-1"] if evidence.exists() else ""
    finally:
        subprocess.run(["umount", str(reports)], check=True)
    assert done.returncode == 3
    assert said.startswith("Inconclusive") or "can't write the evidence" in done.stderr


def test_json_of_the_grid_names_every_control(tmp_path: Path) -> None:
    toy.write_project(tmp_path, WHOLE, BOTH)
    done = toy.leaseproof(tmp_path, "controls", *SYSTEM, "-n", "0", "--json", "grid.json")
    assert (done.returncode, done.stderr) == (0, "")
    assert "1 of 1 defects caught as named · 1 of 1 variants passed" in done.stdout
    grid = json.loads((tmp_path / "grid.json").read_text())
    assert [(one["id"], one["refutes"], one["outcome"]) for one in grid["defects"]] == [("broken", "TOY-1", "caught")]
    assert [(one["id"], one["outcome"]) for one in grid["variants"]] == [("same", "passed")]


def test_a_control_that_is_missed_fails_with_1(tmp_path: Path) -> None:
    toy.write_project(tmp_path, WHOLE.replace('expect(not system_under_test.broken, "broken")', "pass"), BOTH)
    done = toy.leaseproof(tmp_path, "controls", *SYSTEM, "-n", "0")
    assert done.returncode == 1
    assert "broken: missed: test_a passed it" in done.stdout


def test_a_variant_that_fails_fails_with_1(tmp_path: Path) -> None:
    toy.write_project(tmp_path, WHOLE.replace('system_under_test.name == "toy"', "False"), BOTH)
    done = toy.leaseproof(tmp_path, "controls", *SYSTEM, "-n", "0", "--control", "same")
    assert done.returncode == 1
    assert "same: failed" in done.stdout


def test_doctor_names_every_tier(tmp_path: Path) -> None:
    toy.write_project(tmp_path, WHOLE, EXPECTED)
    done = toy.leaseproof(tmp_path, "doctor")
    assert (done.returncode, done.stderr) == (0, "")
    first = [line.split()[0] for line in done.stdout.splitlines() if line and not line.startswith(" ")]
    assert first[1:7] == ["static", "pg", "pg+redis", "e2e", "kube-api", "kind"]


def test_a_reader_that_goes_away_is_no_error(tmp_path: Path) -> None:
    toy.write_project(tmp_path, WHOLE, EXPECTED)
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as closed:
        done = subprocess.run(
            [*toy.cli(tmp_path), "doctor"], cwd=tmp_path, stdout=closed, stderr=subprocess.PIPE, text=True, check=False
        )
    assert "Traceback" not in done.stderr
