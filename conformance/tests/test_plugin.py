"""The pytest plug-in, each test with a run of its own: which checks are taken, and what counts as passed."""

from pathlib import Path

import pytest
import toy

from leaseproof.evidence.facts import read_logs
from leaseproof.evidence.plan import Item

PASSING = """
@claim("A-1")
async def test_a(system_under_test): pass

@claim("A-2")
async def test_b(system_under_test): pass
"""


@pytest.fixture(autouse=True)
def standing_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs start in the folder that holds the toy system."""
    monkeypatch.chdir(tmp_path)


def job_for(tmp_path: Path, body: str, checks: list[str], **plan: object) -> toy.Job:
    return toy.write_plan_job(tmp_path, toy.write_suite(tmp_path, body), checks, **plan)


def finished(job: toy.Job, check: str) -> dict[str, object]:
    facts = [fact for log in read_logs(job.folder) for fact in log.of("finished") if fact["check"] == check]
    assert len(facts) == 1
    return facts[0]


@pytest.mark.parametrize(
    ("body", "outcome", "because"),
    [
        ('expect(system_under_test.name == "toy", "wrong_system")', "passed", None),
        ('refute("55P03", "held")', "refuted", "55P03"),
        ('raise ExceptionGroup("g", [OSError(), ExceptionGroup("h", [Refuted("late", "")])])', "refuted", "late"),
        ('raise Undecided("lost")', "inconclusive", None),
        ("assert 1 == 2", "inconclusive", None),
        ('raise ExceptionGroup("g", [OSError(), ValueError()])', "inconclusive", None),
        ('pytest.skip("not today")', "skipped", None),
        ('pytest.xfail("known")', "inconclusive", None),
        ('pytest.fail("no")', "inconclusive", None),
        ("await anyio.sleep(60)", "inconclusive", None),
        ("try: await anyio.sleep(60)\n    finally: refute('cut_off', '')", "inconclusive", None),
    ],
)
def test_what_a_check_raises_decides_its_outcome(tmp_path: Path, body: str, outcome: str, because: str | None) -> None:
    suite = f'@claim("A-1", "A-2")\nasync def test_a(system_under_test):\n    {body}\n'
    job = job_for(tmp_path, suite, ["test_a"], deadline=2.0)
    toy.run_by_hand(job)
    fact = finished(job, "test_a")
    assert (fact["outcome"], fact["because"], fact["claims"]) == (outcome, because, ["A-1", "A-2"])


@pytest.mark.parametrize(
    ("call", "outcome", "because"),
    [("pass", "refuted", "leaked_session"), ("refute('first', '')", "refuted", "first"), ("1/0", "inconclusive", None)],
)
def test_a_refutation_at_teardown_counts_unless_the_call_was_cut_off(
    tmp_path: Path, call: str, outcome: str, because: str | None
) -> None:
    suite = f"""
@pytest.fixture
async def leaky(system_under_test):
    yield
    refute("leaked_session", "one is left")

@claim("A-1")
async def test_a(leaky):
    {call}
"""
    job = job_for(tmp_path, suite, ["test_a"])
    toy.run_by_hand(job)
    fact = finished(job, "test_a")
    assert (fact["outcome"], fact["because"]) == (outcome, because)


@pytest.mark.parametrize("when", ["setup", "teardown"])
def test_trouble_around_the_call_makes_the_check_inconclusive(tmp_path: Path, when: str) -> None:
    before, after = ("1/0", "pass") if when == "setup" else ("pass", "1/0")
    suite = f"""
@pytest.fixture
async def shaky(system_under_test):
    {before}
    yield
    {after}

@claim("A-1")
async def test_a(shaky): pass
"""
    job = job_for(tmp_path, suite, ["test_a"])
    toy.run_by_hand(job)
    fact = finished(job, "test_a")
    assert fact["outcome"] == "inconclusive"
    assert str(fact["detail"]).startswith(f"{when}: ZeroDivisionError")


@pytest.mark.parametrize(
    ("suite", "says"),
    [
        ('@claim("A-1")\ndef test_a(system_under_test): pass', "is not async"),
        ('@claim("A-1")\nasync def test_a(): pass', "uses no system"),
        ("async def test_a(system_under_test): pass", "names no claim"),
        ("@claim()\nasync def test_a(system_under_test): pass", "names no claim"),
        (
            '@claim("A-1")\n@pytest.mark.parametrize("n", [1])\nasync def test_a(system_under_test, n): pass',
            "is parametrised",
        ),
        ('class TestA:\n    @claim("A-1")\n    async def test_a(self, system_under_test): pass', "is a method"),
        (
            "@pytest.fixture(params=[1, 2])\ndef n(request): return request.param\n"
            '@claim("A-1")\nasync def test_a(system_under_test, n): pass',
            "is parametrised",
        ),
        ("import no_such_module", "can't collect"),
    ],
)
@pytest.mark.parametrize("workers", [0, 1])
def test_what_is_no_proper_check_stops_the_run_before_it_begins(
    tmp_path: Path, suite: str, says: str, workers: int
) -> None:
    toy.write_suite(tmp_path, suite, "test_other.py")
    job = toy.write_plan_job(
        tmp_path, toy.write_suite(tmp_path, PASSING.replace("test_a", "test_c")), ["test_a", "test_b"], workers=workers
    )
    assert toy.run_by_hand(job) != 0
    assert toy.outcomes(job) == {}
    assert any(says in trouble for trouble in toy.troubles(job))


def test_two_checks_of_one_name_stop_the_run(tmp_path: Path) -> None:
    toy.write_suite(tmp_path, PASSING, "test_other.py")
    job = job_for(tmp_path, PASSING, ["test_a"])
    toy.run_by_hand(job)
    assert toy.outcomes(job) == {}
    assert any("two checks are named test_a" in trouble for trouble in toy.troubles(job))


def test_only_the_plans_items_run_and_in_its_order(tmp_path: Path) -> None:
    suite = PASSING + '\n@claim("A-3", slow=True)\nasync def test_c(system_under_test): pass\n'
    job = job_for(tmp_path, suite, ["test_b", "test_c"])
    assert toy.run_by_hand(job) == 0
    (log,) = read_logs(job.folder)
    assert [fact["check"] for fact in log.of("started")] == ["test_c", "test_b"]
    assert log.complete


def test_a_control_that_is_not_there_is_inconclusive(tmp_path: Path) -> None:
    job = job_for(tmp_path, PASSING, [], items=(Item(system="no_such_control", check="test_a"),))
    toy.run_by_hand(job)
    assert finished(job, "test_a")["outcome"] == "inconclusive"


def test_notes_and_seed_reach_the_fact(tmp_path: Path) -> None:
    suite = """
@claim("A-1")
async def test_a(system_under_test, record_property):
    record_property("schedules", 14)
"""
    job = job_for(tmp_path, suite, ["test_a"], seed=7)
    toy.run_by_hand(job)
    fact = finished(job, "test_a")
    assert (fact["notes"], fact["seed"]) == ({"schedules": 14}, 7)


DRAWS = """
from hypothesis import given, strategies

@claim("A-1")
async def test_a(system_under_test, record_property):
    drawn = []
    @given(strategies.integers())
    def draw(number): drawn.append(number)
    draw()
    record_property("drawn", repr(drawn)[:300])
"""


def drawn(folder: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> str:
    """What Hypothesis draws in a run from a folder of its own."""
    folder.mkdir()
    monkeypatch.chdir(folder)
    job = job_for(folder, DRAWS, ["test_a"], seed=seed)
    toy.run_by_hand(job)
    notes = finished(job, "test_a")["notes"]
    assert isinstance(notes, dict)
    return str(notes["drawn"])


@pytest.mark.parametrize("seed", [0, 5])
def test_hypothesis_draws_the_same_for_the_same_seed(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert drawn(tmp_path / "one", seed, monkeypatch) == drawn(tmp_path / "two", seed, monkeypatch) != ""


def test_other_seeds_draw_otherwise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert drawn(tmp_path / "one", 1, monkeypatch) != drawn(tmp_path / "two", 2, monkeypatch)


def test_without_a_plan_checks_are_ordinary_tests(tmp_path: Path) -> None:
    suite = PASSING + '\n@claim("A-3")\nasync def test_c(system_under_test): refute("x", "y")\n'
    job = job_for(tmp_path, suite, [])
    command = job.command()
    at = command.index("--leaseproof-plan")
    del command[at : at + 4]
    toy_job = toy.run_command(job, command, LEASEPROOF_SYSTEM="toy_system:system")
    assert toy_job == 1
    assert "1 failed, 2 passed" in job.output_file.read_text()
    assert read_logs(job.folder) == ()
