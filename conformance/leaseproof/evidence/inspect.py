"""What stands in the source at this commit: owners' symbols, checks, controls. Read by ast, never by importing.

Owns the look-up and its digests; must not run anything. "Inspected" says that owner, checks and wiring of a claim were
found; it never says that the claim holds.
"""

import ast
import hashlib
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import PathFinder
from importlib.metadata import entry_points
from pathlib import Path
from typing import Final

from leaseproof.claims.catalogue import Catalogue
from leaseproof.claims.lock import Lock
from leaseproof.controls.registry import GROUP
from leaseproof.evidence.model import Found, Inspection, clip

SUITES: Final = Path(__file__).parents[1] / "suites"

_Defined = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(frozen=True)
class CheckFound:
    """A function of the suites that says to decide these claims; `slow` as its `@claim` has it."""

    name: str
    claims: tuple[str, ...]
    found: Found
    slow: bool = False


def inspect_claims(
    catalogue: Catalogue, lock: Lock, owners: Mapping[str, str], root: Path | None, suites: Path = SUITES
) -> dict[str, Inspection]:
    """For each claim what was found of its owner, its expected checks and its control.

    owners: the symbol ("module:qualified.name") for each name of an owner. root: the folder that files are shown
    relative to.
    """
    symbols = {name: find_symbol(symbol, root) for name, symbol in owners.items()}
    checks = {check.name: check for check in find_checks(suites, root)}
    wired = find_controls({one.control for one in lock.claims.values() if one.control}, root)
    inspections = {}
    for claim in catalogue.claims.values():
        expected = lock.claims[claim.id]
        missing = []
        owner = symbols.get(claim.semantic_owner)
        if owner is None:
            missing.append(f"owner {owners.get(claim.semantic_owner, claim.semantic_owner)}")
        there = [checks[test] for test in expected.tests if test in checks and claim.id in checks[test].claims]
        missing += [f"check {test}" for test in expected.tests if test not in {check.name for check in there}]
        controls = [wired[expected.control]] if expected.control in wired else []
        if expected.control is not None and not controls:
            missing.append(f"control {expected.control}")
        inspections[claim.id] = Inspection(
            owner=owner,
            checks=tuple(check.found for check in there),
            controls=tuple(controls),
            missing=tuple(clip(one, 300) for one in missing),
        )
    return inspections


def checks_by_claim(suites: Path = SUITES) -> dict[str, list[str]]:
    """Claim to the names of the checks that the suites hold for it."""
    found: dict[str, list[str]] = defaultdict(list)
    for check in find_checks(suites, None):
        for claim in check.claims:
            found[claim].append(check.name)
    return dict(found)


def find_checks(suites: Path, root: Path | None) -> Iterator[CheckFound]:
    """Every function below `suites` that is decorated with @claim(...)."""
    for file in sorted(suites.rglob("test_*.py")):
        source = _read(file)
        for node in ast.walk(source.tree) if source else ():
            if source and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                claims = tuple(one for decorator in node.decorator_list for one in _claims(decorator))
                if claims:
                    found = source.found(node, f"{file.stem}:{node.name}", root)
                    yield CheckFound(node.name, claims, found, any(map(_slow, node.decorator_list)))


def find_symbol(symbol: str, root: Path | None) -> Found | None:
    """Where "module:qualified.name" is defined; None where it is not, or is only imported there."""
    module, colon, qualified = symbol.partition(":")
    file = module_file(module) if colon and qualified else None
    source = _read(file) if file else None
    if source is None:
        return None
    body: Sequence[ast.stmt] = source.tree.body
    node: ast.stmt | None = None
    for part in qualified.split("."):
        node = next((one for one in body if part in _names(one)), None)
        if node is None:
            return None
        body = node.body if isinstance(node, _Defined) else ()
    return source.found(node, symbol, root) if node is not None else None


def find_controls(ids: Iterable[str], root: Path | None) -> dict[str, Found]:
    """Where these controls are registered: in the packages of the entry points, as a text of their own."""
    wanted = set(ids)
    found: dict[str, Found] = {}
    for module in sorted({point.module for point in entry_points(group=GROUP)}):
        file = module_file(module)
        if file is None or not wanted:
            continue
        files = sorted(file.parent.rglob("*.py")) if file.name == "__init__.py" else [file]
        for one in files:
            source = _read(one)
            for statement in source.tree.body if source else ():
                for node in ast.walk(statement):
                    if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in wanted:
                        name = next(iter(_names(statement)), module)
                        if source:
                            found.setdefault(node.value, source.found(statement, f"{one.stem}:{name}", root))
    return found


@dataclass(frozen=True)
class _Source:
    file: Path
    lines: tuple[str, ...]
    tree: ast.Module

    def found(self, node: ast.stmt, symbol: str, root: Path | None) -> Found:
        """The node with the digest of its own lines, decorators included."""
        decorators = node.decorator_list if isinstance(node, _Defined) else []
        first = min([node.lineno, *(one.lineno for one in decorators)])
        text = "\n".join(self.lines[first - 1 : node.end_lineno])
        digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
        return Found(symbol=clip(symbol, 300), file=clip(_shown(self.file, root), 300), line=node.lineno, sha256=digest)


def _read(file: Path) -> _Source | None:
    """The file's syntax tree; None where it can't be read or is no Python."""
    try:
        text = file.read_text(encoding="utf-8")
        return _Source(file, tuple(text.splitlines()), ast.parse(text))
    except (OSError, ValueError, SyntaxError, RecursionError):
        return None


def _claims(decorator: ast.expr) -> Iterator[str]:
    """LOCK-1 of @claim("LOCK-1") and of @checks.claim("LOCK-1")."""
    if isinstance(decorator, ast.Call):
        called = decorator.func
        name = called.attr if isinstance(called, ast.Attribute) else called.id if isinstance(called, ast.Name) else ""
        if name == "claim":
            for argument in decorator.args:
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                    yield argument.value


def _slow(decorator: ast.expr) -> bool:
    """Whether the decorator says slow=True."""
    return isinstance(decorator, ast.Call) and any(
        word.arg == "slow" and isinstance(word.value, ast.Constant) and word.value.value is True
        for word in decorator.keywords
    )


def _names(node: ast.stmt) -> list[str]:
    if isinstance(node, _Defined):
        return [node.name]
    if isinstance(node, ast.Assign):
        return [target.id for target in node.targets if isinstance(target, ast.Name)]
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return [node.target.id]
    return []


def module_file(module: str) -> Path | None:
    """The source of a module: where it was loaded from, else where it would be; nothing is imported."""
    loaded = getattr(sys.modules.get(module), "__file__", None)
    if loaded:
        return Path(loaded)
    places: list[str] | None = None
    origin = None
    for number in range(1, module.count(".") + 2):
        spec = PathFinder.find_spec(".".join(module.split(".")[:number]), places)
        if spec is None:
            return None
        origin = spec.origin
        places = list(spec.submodule_search_locations or ())
    return Path(origin) if origin and origin.endswith(".py") else None


def _shown(file: Path, root: Path | None) -> str:
    """The file without what is this machine's own: relative to the subject, else to the import path, else its name."""
    file = file.resolve()
    for place in [root, *map(Path, sys.path)]:
        if place is not None and str(place) and file.is_relative_to(place.resolve()):
            return file.relative_to(place.resolve()).as_posix()
    return file.name
