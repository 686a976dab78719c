"""What the command and its run import: never the caller's namesake of a module, never bytecode of another source."""

import importlib.util
import os
import subprocess
import sys
from importlib._bootstrap_external import _code_to_timestamp_pyc  # type: ignore[attr-defined]
from pathlib import Path

import pytest
import toy

from leaseproof.evidence.model import read_evidence

SUITE = """
@claim("TOY-1")
async def test_a(system_under_test): expect(not system_under_test.broken, "broken")
"""
SYSTEM = ("--system", "toy_system:system")
NAMESAKES = ("json", "yaml", "pydantic", "random", "signal", "typing", "pytest", "xdist", "wave")
"""Modules of Python and of distributions; nothing but the adapter imports the last one."""
LEAVE = "import os\nos.write(2, b'the namesake of {name} ran')\nos._exit(99)\n"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A toy whose folder holds namesakes of modules, one of which its adapter imports; and an adapter without promises,
    on which no command tries anything."""
    folder = tmp_path_factory.mktemp("project")
    for name in NAMESAKES:
        (folder / f"{name}.py").write_text(LEAVE.format(name=name))
    toy.write_project(folder, SUITE, {"TOY-1": ["test_a"]})
    adapter = folder / "toy_system.py"
    adapter.write_text("import wave\n" + adapter.read_text())
    promises = "PROMISED = frozenset({Cap.lease, Cap.execution_tree_cancel})"
    assert promises in adapter.read_text()
    (folder / "toy_that_promises_nothing.py").write_text(
        adapter.read_text().replace(promises, "PROMISED = frozenset()")
    )
    toy.commit(folder)
    return folder


@pytest.mark.parametrize(
    ("command", "path"),
    [
        ([sys.executable, "-m", "leaseproof"], None),
        ([sys.executable, "-m", "leaseproof"], "."),
        ([str(Path(sys.executable).with_name("leaseproof"))], "."),
    ],
    ids=["module", "module and PYTHONPATH", "script and PYTHONPATH"],
)
def test_the_command_imports_no_namesake_and_finds_the_system(
    project: Path, command: list[str], path: str | None
) -> None:
    environment = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "PYTHONSAFEPATH"}}
    done = subprocess.run(
        [*command, "verify", "--system", "toy_that_promises_nothing:system"],
        cwd=project,
        env={**environment, "PYTHONDONTWRITEBYTECODE": "1", **({"PYTHONPATH": path} if path else {})},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr.partition(";")[0]) == (
        3,
        "leaseproof: no claim was tried, so nothing is decided",
    )
    assert " · toy 1 · commit " in done.stdout


def test_the_processes_of_a_run_import_no_namesake_and_find_the_system(project: Path) -> None:
    done = toy.leaseproof(project, "verify", *SYSTEM, "-n", "1")
    assert (done.returncode, done.stderr) == (0, "")
    assert toy.results(project)["TOY-1"].startswith("Passed")


def version_found(folder: Path) -> str:
    """What Python itself takes for the toy's version."""
    program = "import sys; sys.path.append('.'); from toy_system import system; print(system.version)"
    done = subprocess.run([sys.executable, "-P", "-c", program], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_bytecode_that_only_claims_to_be_of_the_source_is_not_run(tmp_path: Path) -> None:
    toy.write_project(tmp_path, SUITE, {"TOY-1": ["test_a"]})
    adapter = tmp_path / "toy_system.py"
    whole = adapter.read_text().replace('version = "1"', 'version = "forged"')
    adapter.write_text(adapter.read_text().replace("broken = False", "broken = True"))
    toy.commit(tmp_path)
    forged = Path(importlib.util.cache_from_source(str(adapter)))
    forged.parent.mkdir()
    seen = adapter.stat()
    forged.write_bytes(_code_to_timestamp_pyc(compile(whole, adapter, "exec"), int(seen.st_mtime), seen.st_size))
    assert version_found(tmp_path) == "forged"

    assert toy.leaseproof(tmp_path, "verify", *SYSTEM, "-n", "1").returncode == 1
    assert toy.results(tmp_path)["TOY-1"].startswith("Failed: test_a")
    subject = read_evidence(tmp_path / "reports" / "evidence.json").subject
    assert (subject.version, subject.clean) == ("1", True)
    assert version_found(tmp_path) == "forged"
