"""The pytest plugin: makes items of the checks as a plan lists them, and records what became of each.

Owns collection, deadlines and the recording of facts; must not judge claims. Loaded by `-p leaseproof.evidence.plugin`.
Without `--leaseproof-plan` every check is an ordinary test of the default system, and nothing is recorded.
"""

import faulthandler
import functools
import hashlib
import os
import sys
import sysconfig
import time
from collections.abc import Awaitable, Callable, Generator, Mapping
from pathlib import Path
from typing import Any, cast

import anyio
import hypothesis
import pytest

from leaseproof.checks import Undecided
from leaseproof.evidence import collect, lifeline
from leaseproof.evidence.facts import FactLog, FactsNotWritten, bounded
from leaseproof.evidence.outcome import ending
from leaseproof.evidence.plan import SUBJECT, BadPlan, Plan
from leaseproof.evidence.systems import Systems
from leaseproof.loading import WrongSystem, append_path, default_system
from leaseproof.system import System

HARD_DEADLINE_FACTOR = 2
"""A phase that does not even let its own deadline fire (it blocks the event loop) ends its process after this much."""

SYSTEMS = pytest.StashKey[Systems]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of the runner; a person does not need them."""
    group = parser.getgroup("leaseproof")
    group.addoption("--leaseproof-plan", metavar="FILE", help="run the items of this plan and record facts")
    group.addoption("--leaseproof-facts", metavar="DIR", help="folder of the fact logs")
    group.addoption("--leaseproof-path", metavar="DIR", help="folder whose modules are found after all others")
    group.addoption("--leaseproof-lifeline", metavar="FD", type=int, help="end with the other end of this pipe")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Hold the lifeline, settle the system and the plan, open the fact log."""
    if config.option.leaseproof_lifeline is not None and not hasattr(config, "workerinput"):
        lifeline.hold(config.option.leaseproof_lifeline)
    if sys.flags.optimize:
        raise pytest.UsageError("Python runs with -O or PYTHONOPTIMIZE, which takes checks out; run without it")
    if config.option.leaseproof_path is not None:
        append_path(config.option.leaseproof_path)
    hypothesis.settings.register_profile("leaseproof", derandomize=True, database=None, deadline=None)
    if config.option.leaseproof_plan is None:
        hypothesis.settings.load_profile("leaseproof")
        return
    try:
        plan = Plan.read(Path(config.option.leaseproof_plan))
        config.stash[SYSTEMS] = Systems(plan.system)
        process = cast("Mapping[str, str]", getattr(config, "workerinput", {})).get("workerid", "main")
        log = FactLog(Path(config.option.leaseproof_facts or "."), process, run=plan.run, plan_sha256=plan.sha256)
    except (BadPlan, FactsNotWritten) as error:
        raise pytest.UsageError(str(error)) from error
    seeded = hypothesis.settings(database=None, deadline=None, derandomize=plan.seed == 0)
    hypothesis.settings.register_profile("leaseproof", seeded)
    hypothesis.settings.load_profile("leaseproof")
    config.pluginmanager.register(Recorder(config, plan, log), "leaseproof-recorder")


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(collector: pytest.Collector, name: str, obj: object) -> None:
    """Checks are async, and need no mark for it."""
    if collect.is_check(obj):
        pytest.mark.usefixtures("anyio_backend")(obj)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One item of a check for each system on which the plan tries it."""
    if not collect.is_check(metafunc.function) or collect.SYSTEM_FIXTURE not in metafunc.fixturenames:
        return
    recorder = cast("Recorder | None", metafunc.config.pluginmanager.get_plugin("leaseproof-recorder"))
    systems = recorder.plan.systems_of(metafunc.function.__name__) if recorder else [SUBJECT]
    unplanned = [""]
    metafunc.parametrize(collect.SYSTEM_FIXTURE, systems or unplanned, indirect=True, scope="function")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Without a plan: refuse what is no proper check."""
    if not config.pluginmanager.has_plugin("leaseproof-recorder"):
        wrong = collect.refusals(items, only_checks=False)
        if wrong:
            raise pytest.UsageError("\n".join(wrong))


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Checks run on asyncio with its default options."""
    return "asyncio"


@pytest.fixture
def system_under_test(request: pytest.FixtureRequest) -> System:
    """The system that this item is tried on."""
    config = request.config
    try:
        if SYSTEMS not in config.stash:
            config.stash[SYSTEMS] = Systems(default_system())
        return config.stash[SYSTEMS].get(request.param)
    except WrongSystem as error:
        raise Undecided(str(error)) from error


class Recorder:
    """Writes the facts of one process of a planned run."""

    def __init__(self, config: pytest.Config, plan: Plan, log: FactLog) -> None:
        self.plan = plan
        self._config = config
        self._log = log
        self._stderr = os.dup(2)
        self._raised: dict[str, BaseException | None] = {}
        self._began = 0.0
        self._sound = True
        self._modules: dict[str, str] = {}

    # collection

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, session: pytest.Session, items: list[pytest.Item]) -> None:
        """Keep the plan's items in its order; where a check is refused or a file is broken, keep none."""
        wrong = collect.refusals(items, only_checks=True)
        items[:] = collect.in_plan(items, self.plan)
        for problem in wrong:
            self._trouble(problem)
        if wrong or session.testsfailed:
            items.clear()
        self._note_modules()

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A file that can't be collected is trouble."""
        if report.failed:
            lines = report.longreprtext.splitlines()
            said = [line.removeprefix("E").strip() for line in lines if line.startswith("E ")]
            self._trouble(f"can't collect {report.nodeid}: {' '.join(said or lines[-3:])}")

    # running

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None]:
        self._raised = {}
        self._began = time.perf_counter()
        self._write("started", system=collect.system_id(item), check=collect.check_name(item))
        self._arm()
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None]:
        self._arm()
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None]:
        self._arm()
        return (yield)

    @pytest.hookimpl(tryfirst=True)
    def pytest_pyfunc_call(self, pyfuncitem: pytest.Function) -> None:
        """Bound the check by the plan's deadline."""
        pyfuncitem.obj = _within(self.plan.deadline, pyfuncitem.obj)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Collect what each phase raised; after the teardown the check has ended."""
        report = yield
        self._raised[call.when] = call.excinfo.value if call.excinfo else None
        self._note_modules()
        if call.when == "teardown":
            faulthandler.cancel_dump_traceback_later()
            end = ending(self._raised)
            self._write(
                "finished",
                system=collect.system_id(item),
                check=collect.check_name(item),
                claims=collect.claims_of(item),
                outcome=end.outcome,
                because=bounded(end.because),
                detail=bounded(end.detail),
                seconds=round(time.perf_counter() - self._began, 4),
                seed=self.plan.seed,
                notes=bounded(dict(item.user_properties)),
                attachments=[],
            )
        return report

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Generator[None, object, object]:
        """Record which servers the checks ran on."""
        result = yield
        if fixturedef.argname == "cluster":
            self._write("servers", servers=bounded(cast("Any", result).describe()))
        return result

    # the processes of a run

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object | None) -> None:
        """A worker ended; with an error, it crashed."""
        if error:
            *_, last = str(error).strip().splitlines() or ["it says nothing"]
            self._trouble(f"worker {node.gateway.id} ended early: {last}")

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self, crashitem: str) -> None:
        """A worker died while it ran this item."""
        self._trouble(f"a worker crashed while it ran {crashitem.rpartition('::')[2]}")

    def pytest_internalerror(self, excrepr: object) -> None:
        """pytest itself failed."""
        self._trouble(f"pytest failed: {str(excrepr)[-2000:]}")

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, exitstatus: int) -> None:
        """Note the modules that took part, and whether this process ended well."""
        well = self._sound and int(exitstatus) in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
        if well:
            now = {file: _sha256(file) for file in _imported()}
            changed = {file: digest for file, digest in now.items() if self._modules.get(file) != digest}
            self._write("modules", files=changed, system=_file_of(self.plan.system.partition(":")[0]))
        self._log.close(well=well)
        os.close(self._stderr)

    # writing

    def _note_modules(self) -> None:
        """Note the files of modules that are new since the last look, as they are on the disk now."""
        new = {file: _sha256(file) for file in _imported() if file not in self._modules}
        if new:
            self._modules |= new
            self._write("modules", files=new)

    def _trouble(self, what: str) -> None:
        self._sound = False
        self._write("trouble", what=bounded(what))

    def _write(self, kind: str, **fields: object) -> None:
        try:
            self._log.write(kind, **fields)
        except FactsNotWritten as error:
            self._sound = False
            pytest.exit(str(error), returncode=pytest.ExitCode.INTERRUPTED)

    def _arm(self) -> None:
        seconds = self.plan.deadline * HARD_DEADLINE_FACTOR
        faulthandler.dump_traceback_later(seconds, file=self._stderr, exit=True)


def _within(seconds: float, function: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    """The check with a deadline of the harness: past it nothing that the check raises counts."""

    @functools.wraps(function)
    async def bounded_check(**arguments: object) -> None:
        with anyio.move_on_after(seconds) as scope:
            try:
                await function(**arguments)
            except Exception as error:
                if scope.cancel_called:
                    raise Undecided(f"the deadline of {seconds:g} s passed") from error
                raise
        if scope.cancelled_caught:
            raise Undecided(f"the deadline of {seconds:g} s passed")

    return bounded_check


def _imported() -> list[str]:
    """Files of the imported modules, but for those of Python itself."""
    library = tuple(f"{sysconfig.get_path(kind)}{os.sep}" for kind in ("stdlib", "platstdlib"))
    packages = tuple(f"{place}{name}{os.sep}" for place in library for name in ("site-packages", "dist-packages"))
    files = {file for module in [*sys.modules.values()] if isinstance(file := getattr(module, "__file__", None), str)}
    return sorted(file for file in files if not file.startswith(library) or file.startswith(packages))


def _file_of(module: str) -> str | None:
    return getattr(sys.modules.get(module), "__file__", None)


def _sha256(file: str) -> str:
    """The digest of the file, and nothing where it can't be read."""
    try:
        return hashlib.sha256(Path(file).read_bytes()).hexdigest()
    except OSError:
        return ""
