"""`leaseproof matrix` and `leaseproof claims`: words and exit codes."""

import hashlib
import html
import json
from importlib.metadata import version
from pathlib import Path

import pytest
from samples import CATALOGUE, CLEAN, KIT, good_facts, log_of, plan_of, sample
from typer.testing import CliRunner, Result

from leaseproof.claims.lock import default_path, load_lock
from leaseproof.cli.app import app
from leaseproof.cli.prepare import Kit
from leaseproof.evidence.facts import read_logs
from leaseproof.evidence.model import Evidence, Producer
from leaseproof.evidence.verdicts import recompute

GOOD = sample()


def leaseproof(*arguments: str | Path, kit: Kit | None = None) -> Result:
    return CliRunner().invoke(app, [str(one) for one in arguments], obj=kit)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A good evidence file."""
    GOOD.write(tmp_path / "evidence.json")
    return tmp_path / "evidence.json"


def test_a_file_whose_results_follow_is_verified_and_called_unsigned(file: Path) -> None:
    done = leaseproof("matrix", "verify", file)
    assert "unsigned; every result follows from the facts in it" in done.output
    assert "4 of 65 claims passed, none failed" in done.output


def test_a_file_made_under_other_rules_says_so_everywhere_and_is_exit_code_3(file: Path) -> None:
    told = "Made under other rules than this kit's"
    done = leaseproof("matrix", "verify", file)
    assert (done.exit_code, told in done.output) == (3, True)
    for form, begin in (("html", "</section>"), ("md", "| record")):
        first_screen = html.unescape(leaseproof("matrix", "render", file, "--format", form).output).partition(begin)[0]
        assert told in first_screen
    assert told in leaseproof("matrix", "merge", file, "-o", file.with_name("merged.json")).output
    assert told in leaseproof("claims", "--evidence", file).output
    sample(lock=load_lock()).write(file)
    done = leaseproof("matrix", "verify", file)
    assert (done.exit_code, told in done.output) == (0, False)
    assert told not in html.unescape(leaseproof("matrix", "render", file).output)
    assert told not in leaseproof("claims", "--evidence", file).output


@pytest.mark.parametrize("command", ["verify", "render", "merge"])
def test_rows_and_records_that_are_not_those_of_the_named_rules_are_exit_code_1(file: Path, command: str) -> None:
    own = sample(lock=load_lock())
    records = tuple(one.model_copy(update={"claims": one.claims[:1]}) for one in own.records)
    trimmed = tuple(one.model_copy(update={"expected": one.expected[:-1]}) for one in own.claims)
    for changed in ({"records": records}, {"claims": trimmed}, {"claims": own.claims[:-1]}):
        recompute(own.model_copy(update=changed)).write(file)
        assert leaseproof("matrix", command, file).exit_code == 1


@pytest.mark.parametrize("command", ["verify", "render", "merge"])
@pytest.mark.parametrize(
    "changed",
    [
        {"subject": CLEAN.model_copy(update={"commit": "f" * 40})},
        {"kit": KIT.model_copy(update={"clean": False})},
        {"producer": Producer(name="leaseproof", version="9.9")},
        {"catalogue_sha256": "b" * 64},
    ],
)
def test_a_head_that_is_not_that_of_an_environment_is_exit_code_1(
    file: Path, command: str, changed: dict[str, object]
) -> None:
    recompute(GOOD.model_copy(update=changed)).write(file)
    assert leaseproof("matrix", command, file).exit_code == 1


def test_a_stated_result_that_does_not_follow_is_exit_code_1(file: Path) -> None:
    file.write_text(file.read_text().replace('"Not run"', '"Passed"'))
    done = leaseproof("matrix", "verify", file)
    assert done.exit_code == 1
    assert "LOCK-3: states Passed (planned), but it follows Not run (planned)" in done.output
    assert leaseproof("matrix", "render", file).exit_code == 1
    assert leaseproof("matrix", "merge", file).exit_code == 1


def test_rows_that_are_not_those_of_the_named_lock_are_exit_code_1(file: Path) -> None:
    own = sample(lock=load_lock())
    own.write(file)
    assert leaseproof("matrix", "verify", file).exit_code == 0
    unplanned = tuple(one.model_copy(update={"planned": not one.planned}) for one in own.claims)
    recompute(own.model_copy(update={"claims": unplanned})).write(file)
    done = leaseproof("matrix", "verify", file)
    assert (done.exit_code, "LOCK-1: does not expect what the checks.lock" in done.output) == (1, True)


@pytest.mark.parametrize("text", ["", "{}", "[]"])
@pytest.mark.parametrize("command", ["verify", "render", "merge"])
def test_what_is_no_evidence_is_exit_code_2(file: Path, command: str, text: str) -> None:
    file.write_text(text)
    done = leaseproof("matrix", command, file)
    assert done.exit_code == 2
    assert "is no leaseproof.evidence/1 file" in done.output
    assert leaseproof("matrix", command, file.with_name("nothing")).exit_code == 2


@pytest.fixture
def logged(file: Path) -> Evidence:
    """The evidence of logs that lie beside the file, with trouble and a check that did not finish."""
    facts = [*good_facts(), {"kind": "trouble", "what": "lost a worker"}]
    facts.append({"kind": "started", "system": "subject", "check": "test_begun"})
    plan = plan_of()
    plan.write(file.with_name("plan.json"))
    *lines, closed = log_of(plan, facts).facts
    text = "".join(json.dumps(line) + "\n" for line in lines)
    closing = json.dumps({**closed, "sha256": hashlib.sha256(text.encode()).hexdigest()})
    file.with_name("main.jsonl").write_text(f"{text}{closing}\n")
    evidence = sample(logs=read_logs(file.parent), lock=load_lock())
    evidence.write(file)
    return evidence


def with_facts(file: Path) -> tuple[int, str]:
    done = leaseproof("matrix", "verify", file, "--facts", file.parent)
    return done.exit_code, done.output


@pytest.mark.usefixtures("logged")
def test_evidence_that_follows_from_its_logs_is_verified(file: Path) -> None:
    assert with_facts(file)[0] == 0


def test_facts_are_compared_with_those_of_the_logs(file: Path, logged: Evidence) -> None:
    environment = logged.environments[0]
    first, *rest = environment.facts
    refuted = first.model_copy(update={"outcome": "refuted"})
    for changed, told in (
        ({"facts": (refuted, *rest)}, "don't hold what the evidence states of test_root_before_descendants on subject"),
        ({"facts": (first, first, *rest)}, "don't hold what the evidence states"),
        ({"facts": tuple(rest)}, "does not state what the logs hold of test_root_before_descendants on subject"),
        ({"trouble": ()}, "leaves out trouble: lost a worker"),
        ({"logs": ()}, "leaves out the logs of main"),
        ({"logs": (environment.logs[0].model_copy(update={"state": "unfinished"}),)}, "does not end as the evidence"),
        ({"plan_sha256": "b" * 64}, "is not the one of run r0000001"),
    ):
        recompute(logged.model_copy(update={"environments": (environment.model_copy(update=changed),)})).write(file)
        code, output = with_facts(file)
        assert (code, told in output) == (1, True), (told, output)


@pytest.mark.usefixtures("logged")
def test_logs_are_compared_with_their_digests(file: Path) -> None:
    log, plan = file.with_name("main.jsonl"), file.with_name("plan.json")
    log.with_name("gw0.jsonl").write_text("{}\n")
    assert "leaves out the logs of gw0" in with_facts(file)[1]
    log.write_text(log.read_text().replace("0.07", "0.08"))
    assert "is not the one that the evidence was made from" in with_facts(file)[1]
    log.unlink()
    assert with_facts(file) == (1, with_facts(file)[1])
    assert "main.jsonl is not in" in with_facts(file)[1]
    plan.unlink()
    code, output = with_facts(file)
    assert (code, "can't read the plan" in output) == (1, True)


@pytest.mark.parametrize(
    ("form", "begins"), [("html", "<!doctype html>"), ("md", "## 4 of 65"), ("json", '{\n "schema"')]
)
def test_a_report_is_rendered_to_the_output_or_to_a_file(file: Path, form: str, begins: str) -> None:
    shown = leaseproof("matrix", "render", file, "--format", form)
    assert (shown.exit_code, shown.output.startswith(begins)) == (0, True)
    target = file.with_name("report")
    assert leaseproof("matrix", "render", file, "--format", form, "-o", target).exit_code == 0
    assert target.read_text() == shown.output


def test_a_report_that_can_t_be_written_is_exit_code_2(file: Path) -> None:
    done = leaseproof("matrix", "render", file, "-o", file.parent / "missing" / "report.html")
    assert done.exit_code == 2
    assert "can't write" in done.output


def test_files_are_merged(file: Path) -> None:
    other, target = file.with_name("other.json"), file.with_name("merged.json")
    sample(run="r0000002", environment="pg15").write(other)
    done = leaseproof("matrix", "merge", file, other, "-o", target)
    assert done.exit_code == 0
    assert [one["id"] for one in json.loads(target.read_text())["environments"]] == ["pg18", "pg15"]
    assert "every result follows" in leaseproof("matrix", "verify", target).output


def test_files_that_do_not_belong_together_are_exit_code_2(file: Path) -> None:
    other = file.with_name("other.json")
    sample(good_facts()[1:]).write(other)
    done = leaseproof("matrix", "merge", file, other)
    assert done.exit_code == 2
    assert "stands in two files with other facts" in done.output


def test_the_schema_is_printed() -> None:
    assert json.loads(leaseproof("matrix", "schema").output)["$id"] == "leaseproof.evidence/1"


def test_claims_are_listed_with_the_results_of_a_file(file: Path) -> None:
    listed = leaseproof("claims", "--evidence", file)
    assert listed.exit_code == 0
    first = (
        "results of sample 1.0, commit cccccccccccc (clean), 2026-01-02 03:04 UTC: Stale, the system is now agentrun"
    )
    assert listed.output.startswith(first)
    line = next(line for line in listed.output.splitlines() if line.startswith("LOCK-1 "))
    assert "Stale" in line
    assert "Passed" not in line
    assert all(f"\n{name} " in listed.output for name in CATALOGUE.claims if name != "LOCK-1")


def test_a_result_of_another_revision_is_stale(file: Path) -> None:
    rows = tuple(one.model_copy(update={"revision": 9}) for one in GOOD.claims)
    GOOD.model_copy(update={"claims": rows}).write(file)
    assert "Stale" in leaseproof("claims", "--evidence", file).output


def test_a_claim_is_shown_whole() -> None:
    shown = leaseproof("claims", "LOCK-2")
    assert shown.exit_code == 0
    for told in ("LOCK-2, core, revision 1, T1", "level by level", "deadlock", "run repository", "execution_tree"):
        assert told in " ".join(shown.output.split())


def test_a_family_is_shown_whole() -> None:
    shown = leaseproof("claims", "shape", "LOCK-2")
    assert shown.exit_code == 0
    first = [line.split()[1].rstrip(",") for line in shown.output.splitlines() if line.startswith("claim ")]
    assert first == [name for name in CATALOGUE.claims if name.startswith("SHAPE-") or name == "LOCK-2"]


def test_the_version_is_told() -> None:
    told = leaseproof("--version")
    assert (told.exit_code, told.output) == (0, f"leaseproof {version('leaseproof')}\n")


def test_an_unknown_claim_is_exit_code_2() -> None:
    done = leaseproof("claims", "LOKC-2")
    assert done.exit_code == 2
    assert "no claim 'LOKC-2'; did you mean LOCK-2?" in done.output


@pytest.fixture
def kit(tmp_path: Path) -> Kit:
    """A kit with the catalogue, a lock in which all is planned, and one suite."""
    claims, suites = tmp_path / "claims", tmp_path / "suites"
    claims.mkdir()
    suites.mkdir()
    for path in default_path().parent.glob("*.toml"):
        (claims / path.name).write_text(path.read_text())
    planned = [f"[claims.{name}]\nrevision = 1\nplanned = true\n" for name in CATALOGUE.claims]
    (claims / default_path().name).write_text("\n".join(planned))
    (suites / "test_lock.py").write_text('@claim("LOCK-1")\nasync def test_a(world): ...\n')
    return Kit(suites=suites, claims=claims)


def test_the_lock_is_brought_up_to_date(kit: Kit) -> None:
    done = leaseproof("claims", "--update-lock", kit=kit)
    assert done.exit_code == 0
    assert "checks.lock: 1 claims with 1 checks, 64 planned" in done.output
    assert "without a negative control, so never Passed: LOCK-1" in done.output
    assert '"LOCK-1 test_a"' in (kit.claims / default_path().name).read_text()


def test_a_check_that_went_needs_a_new_revision_and_a_reason(kit: Kit) -> None:
    leaseproof("claims", "--update-lock", kit=kit)
    before = (kit.claims / default_path().name).read_text()
    (kit.suites / "test_lock.py").write_text('@claim("LOCK-1")\nasync def test_b(world): ...\n')
    done = leaseproof("claims", "--update-lock", kit=kit)
    assert (done.exit_code, "raise the claim's revision" in done.output) == (2, True)
    assert leaseproof("claims", "--update-lock", "--reason", "renamed", kit=kit).exit_code == 2
    assert (kit.claims / default_path().name).read_text() == before
    catalogue = kit.claims / "lock.toml"
    catalogue.write_text(catalogue.read_text().replace("revision = 1", "revision = 2", 1))
    assert leaseproof("claims", kit=kit).exit_code == 2
    assert leaseproof("claims", "--update-lock", "--reason", "renamed", kit=kit).exit_code == 0
    assert 'check = "LOCK-1 test_a"\nrevision = 2\nreason = "renamed"' in (kit.claims / default_path().name).read_text()


def test_a_check_of_an_unknown_claim_is_exit_code_2(kit: Kit) -> None:
    (kit.suites / "test_lock.py").write_text('@claim("LOCK-99")\nasync def test_a(world): ...\n')
    done = leaseproof("claims", "--update-lock", kit=kit)
    assert (done.exit_code, "LOCK-99" in done.output) == (2, True)
