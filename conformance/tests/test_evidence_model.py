"""The evidence file has a published form, is bounded, and comes back as it was written."""

import json
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import jsonschema
import pytest
from samples import CHECKS, CLEAN, KIT, control_of, finished, good_facts, log_of, plan_of, row, sample

from leaseproof.evidence import model
from leaseproof.evidence.model import BadEvidence, Evidence, clip, parse_evidence, read_evidence, schema_text, utc
from leaseproof.evidence.subject import Identity

GOOD = sample()


def test_the_published_schema_is_that_of_the_model() -> None:
    published = Path(model.__file__).with_name("schema.json").read_text()
    assert published == schema_text(), "run `leaseproof matrix schema` and put its output into evidence/schema.json"


def test_evidence_fits_its_schema() -> None:
    schema = json.loads(schema_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.Draft202012Validator(schema).validate(json.loads(GOOD.text))
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(json.loads(GOOD.text) | {"extra": 1}, schema)


def test_evidence_survives_its_file(tmp_path: Path) -> None:
    GOOD.write(tmp_path / "evidence.json")
    again = read_evidence(tmp_path / "evidence.json")
    assert again == GOOD
    assert again.digest() == GOOD.sha256
    assert [path.name for path in tmp_path.iterdir()] == ["evidence.json"]


def test_times_are_utc() -> None:
    told = json.loads(GOOD.text)["started"]
    assert told == "2026-01-02T03:04:05Z"
    east = datetime(2026, 1, 2, 5, 4, 5, tzinfo=timezone(timedelta(hours=2)))
    assert json.loads(Evidence.model_validate({**GOOD.model_dump(), "started": east}).text)["started"] == told
    assert utc("2026-01-02T05:04:05+02:00") == datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert utc("2026-01-02T05:04:05") is None
    assert utc("yesterday") is None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is no leaseproof.evidence/1 file"),
        ("[]", "is no leaseproof.evidence/1 file"),
        ("{}", "Field required"),
        (GOOD.text.replace("leaseproof.evidence/1", "leaseproof.evidence/2"), "schema"),
        (GOOD.text.replace('"seconds": 0.07', '"seconds": -1', 1), "seconds"),
        (GOOD.text.replace('"seconds": 0.07', '"seconds": NaN', 1), "is no leaseproof.evidence/1 file"),
        (GOOD.text.replace('"result": "Passed"', '"result": "passed"', 1), "result"),
        (GOOD.text.replace('"detail": ""', '"detail": "' + "x" * 9000 + '"', 1), "detail"),
        (GOOD.text.replace('"started"', '"begun"', 1), "environments.0.started"),
        ("[" * 100_000, "is no leaseproof.evidence/1 file"),
    ],
)
def test_what_is_no_evidence_is_refused_with_the_place(text: str, says: str) -> None:
    with pytest.raises(BadEvidence) as caught:
        parse_evidence(text, "file.json")
    assert says in str(caught.value)
    assert str(caught.value).startswith("file.json")
    assert len(str(caught.value)) < 1000


def test_a_missing_or_huge_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadEvidence, match="No such file"):
        read_evidence(tmp_path / "evidence.json")
    monkeypatch.setattr(model, "MAX_FILE", 10)
    GOOD.write(tmp_path / "evidence.json")
    with pytest.raises(BadEvidence, match="is larger than"):
        read_evidence(tmp_path / "evidence.json")


def test_texts_are_cut_and_cleaned() -> None:
    assert clip("x" * 9000) == "x" * 7999 + "…"
    assert clip("a\ud800b") == "a\\ud800b"


def test_a_projection_is_the_same_each_time() -> None:
    assert sample().text == GOOD.text


def test_secrets_of_a_log_do_not_reach_the_file() -> None:
    facts = good_facts()
    facts[0] |= {
        "detail": "at postgresql://u:hunter2@h/db",
        "notes": {"dsn": "redis://:hunter2@h", "password": "hunter2"},
    }
    evidence = sample([*facts, {"kind": "trouble", "what": "can't reach postgresql://u:hunter2@h/db"}])
    assert "hunter2" not in evidence.text


def test_hostile_lines_of_a_log_do_not_stop_the_projection() -> None:
    facts = [
        *good_facts(),
        finished("x" * 5000, "LOCK-1", detail="y" * 20_000, notes={"a": "\ud800"}),
        finished("test_odd", "LOCK-1", outcome=["passed"]),
        {"kind": "finished"},
        {"kind": "started"},
        {"kind": "modules", "files": "none"},
        {"kind": "servers", "servers": ["none"]},
        {"kind": "trouble"},
    ]
    evidence = sample(facts)
    assert row(evidence, "LOCK-1").result == "Inconclusive"
    assert read_back(evidence) == evidence


def read_back(evidence: Evidence) -> Evidence:
    return parse_evidence(evidence.text, "evidence.json")


def test_servers_and_controls_are_taken_from_log_and_plan() -> None:
    servers = {
        "embedded": True,
        "postgresql": {"version": "18.6", "settings": {}, "settings_sha256": "a" * 64},
        "redis": {"version": "Valkey 9.1.2"},
    }
    facts = [{"kind": "servers", "servers": servers}, *good_facts()]
    evidence = sample(logs=[log_of(plan_of(), facts)], environment=None)
    environment = evidence.environments[0]
    assert environment.id == "pg18"
    assert environment.postgresql is not None
    assert (environment.postgresql.version, environment.postgresql.source) == ("18.6", "embedded")
    assert {one.id for one in environment.controls} == {control_of(claim).id for claim in CHECKS}
    assert row(evidence, "LOCK-1").planned_controls == ("breaks_lock_1",)


def test_an_imported_stranger_makes_the_subject_unclean(tmp_path: Path) -> None:
    identity = Identity(CLEAN, tmp_path, {"acme/runs.py": "e" * 64})
    facts = [*good_facts(), {"kind": "modules", "files": {str(tmp_path / "acme/stray.py"): "e" * 64}}]
    evidence = sample(facts, before=identity, after=identity)
    assert {one.reason for one in evidence.claims} == {"uncommitted changes"}
    assert evidence.subject.changes == ("imported, but not part of it: acme/stray.py",)


def test_a_process_that_tried_another_system_than_the_identified_one_decides_nothing(tmp_path: Path) -> None:
    identity = Identity(CLEAN, file=tmp_path / "acme.py")
    wrong = [*good_facts(), {"kind": "modules", "files": {}, "system": str(tmp_path / "other/acme.py")}]
    evidence = sample(wrong, before=identity, after=identity)
    assert row(evidence, "LOCK-1").result == "Inconclusive"
    right = [*good_facts(), {"kind": "modules", "files": {}, "system": str(tmp_path / "acme.py")}]
    assert row(sample(right, before=identity, after=identity), "LOCK-1").result == "Passed"


def test_a_kit_that_was_another_one_after_the_run_is_no_evidence() -> None:
    other = KIT.model_copy(update={"clean": False, "changes": ("changed: leaseproof/checks.py",)})
    assert row(sample(kit_after=Identity(other)), "LOCK-1").code == "kit"
