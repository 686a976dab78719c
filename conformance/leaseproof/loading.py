"""From a name to a system under test. Owns the look-up and the check of what the adapter says of itself.

Must not call any of the system's operations. The caller's folder comes last on the path (`cli.path`): `--system
mine:system` works from where one stands, and no file there takes the place of an installed module.
"""

import importlib
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NoReturn

from leaseproof.report.view import plain
from leaseproof.system import Cap, Facts, Policy, Style, System, Timeouts

GROUP = "leaseproof.systems"
VARIABLE = "LEASEPROOF_SYSTEM"
LONGEST = 100
"""Characters of a system's name or version: they head every report."""


@dataclass(frozen=True)
class Loaded:
    """A system, its name in the form package.module:attribute, and the file of that module."""

    name: str
    system: System
    file: Path


class WrongSystem(Exception):
    """The system can't be tried as it is named or described. The text says what to do."""


def append_path(folder: str) -> None:
    """Let modules of this folder be found after all others."""
    if folder not in sys.path:
        sys.path.append(folder)


def default_system() -> str:
    """LEASEPROOF_SYSTEM, else the only installed entry point of `leaseproof.systems`."""
    named = os.environ.get(VARIABLE)
    if named:
        return named
    points = {point.name: point.value for point in entry_points(group=GROUP)}
    if len(points) == 1:
        return next(iter(points.values()))
    if points:
        listed = ", ".join(f"{name} ({value})" for name, value in sorted(points.items()))
        raise WrongSystem(f"several systems are installed: {listed}. Choose one with --system")
    raise WrongSystem(f"no system is installed (entry points {GROUP}). Name one: --system package.module:attribute")


def load_system(name: str) -> Loaded:
    """The system at "package.module:attribute", or of the entry point of that name. Raises WrongSystem."""
    points = {point.name: point.value for point in entry_points(group=GROUP)}
    name = points.get(name, name)
    module_name, colon, path = name.partition(":")
    if not colon or not module_name or not path:
        raise WrongSystem(f"--system {name!r} has not the form package.module:attribute")
    module = _import(module_name, name)
    found: object = module
    for part in path.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise WrongSystem(f"--system {name!r}: {module_name} has no {path!r}; check its spelling") from None
        except Exception as error:
            raise WrongSystem(f"--system {name!r}: reading {path!r} raised {type(error).__name__}: {error}") from error
    if inspect.isclass(found):
        raise WrongSystem(f"--system {name!r} is a class; name an instance of it, such as `system = {path}()`")
    if not isinstance(found, System):
        raise WrongSystem(f"--system {name!r} is a {type(found).__name__}, not a leaseproof.system.System")
    _check(found, name)
    return Loaded(name, found, Path(module.__file__ or ""))


def _import(module_name: str, name: str) -> ModuleType:
    try:
        with _no_way_out():
            return importlib.import_module(module_name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        problem = f"{type(error).__name__}: {error}"
        if isinstance(error, ModuleNotFoundError) and f"{module_name}.".startswith(f"{error.name}."):
            remedy = "Install it, or run from the folder that holds it"
            raise WrongSystem(f"--system {name!r}: can't import {module_name} ({problem}). {remedy}") from error
        raise WrongSystem(
            f"--system {name!r}: {module_name} raised while it was imported{raised_at(error)}: {problem}. Mend it there"
        ) from error


@contextmanager
def _no_way_out() -> Iterator[None]:
    """`os._exit` raises SystemExit here: a module may not end the command, silently and with its own exit code."""
    leave, process = os._exit, os.getpid()
    inside = True

    def refuse(status: int) -> NoReturn:
        if inside and os.getpid() == process:
            raise SystemExit(status)
        leave(status)

    os._exit = refuse
    try:
        yield
    finally:
        os._exit, inside = leave, False


def raised_at(error: BaseException) -> str:
    """ " at file:line": where the innermost module that was being imported raised; empty where no module was."""
    if isinstance(error, SyntaxError) and error.filename:
        return f" at {error.filename}:{error.lineno}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<")]
    modules = [frame.filename for frame in frames if frame.name == "<module>"]
    if not modules:
        return ""
    return " at " + next(f"{one.filename}:{one.lineno}" for one in reversed(frames) if one.filename == modules[-1])


def _texts(values: object) -> bool:
    return isinstance(values, Sequence) and all(isinstance(value, str) and value.strip() for value in values)


ATTRIBUTES: Final[Mapping[str, tuple[Callable[[Any], bool], str]]] = {
    "name": (lambda value: isinstance(value, str), "a text"),
    "version": (lambda value: isinstance(value, str), "a text"),
    "schema": (lambda value: isinstance(value, str) and bool(value.strip()), "a text that is not empty"),
    "facts": (lambda value: isinstance(value, Facts), "a leaseproof.system.Facts"),
    "releases": (
        lambda value: not isinstance(value, str) and _texts(value) and len(value) > 0,
        "a tuple of names of releases, the current one last",
    ),
    "capabilities": (lambda value: isinstance(value, AbstractSet | Sequence), "a frozenset of leaseproof.system.Cap"),
    "not_promised": (lambda value: isinstance(value, Mapping), "a mapping of leaseproof.system.Cap to reasons"),
    "owners": (
        lambda value: isinstance(value, Mapping) and _texts([*value, *value.values()]),
        "a mapping of side effects to symbols, both texts",
    ),
    "style": (lambda value: isinstance(value, Style), "a leaseproof.system.Style"),
    "timeouts": (lambda value: isinstance(value, Timeouts), "a leaseproof.system.Timeouts"),
    "policy": (lambda value: isinstance(value, Policy), "a leaseproof.system.Policy"),
}
"""What an adapter says of itself, whether a value of it will do, and what it must be."""


def _check(system: System, name: str) -> None:
    """Every attribute is there, and every Cap is either promised or left out with its reason."""
    for attribute, (fits, kind) in ATTRIBUTES.items():
        try:
            value = getattr(system, attribute)
            right = fits(value)
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
            raise WrongSystem(
                f"--system {name!r}: its {attribute!r} can't be read ({why}); it must be {kind}"
            ) from error
        if not right:
            raise WrongSystem(f"--system {name!r}: its {attribute!r} must be {kind}, not a {type(value).__name__}")
    _check_heading(system, name)
    promised: list[object] = [*system.capabilities]
    left_out: dict[object, object] = dict(system.not_promised.items())
    if foreign := [cap for cap in [*promised, *left_out] if not isinstance(cap, Cap)]:
        raise WrongSystem(f"--system {name!r}: {_listed(foreign)}: no such capability (leaseproof.system.Cap)")
    if both := [cap for cap in Cap if cap in promised and cap in left_out]:
        raise WrongSystem(
            f"--system {name!r}: {_listed(both)}: both in 'capabilities' and in 'not_promised'; take out of one"
        )
    if neither := [cap for cap in Cap if cap not in promised and cap not in left_out]:
        raise WrongSystem(
            f"--system {name!r}: {_listed(neither)}: neither in 'capabilities' nor in 'not_promised' (with its reason)"
        )
    if silent := [cap for cap, reason in left_out.items() if not (isinstance(reason, str) and reason.strip())]:
        raise WrongSystem(f"--system {name!r}: {_listed(silent)}: 'not_promised' without a reason; give one")


def _check_heading(system: System, name: str) -> None:
    """Name and version are short, and each of their characters can be seen."""
    for attribute in ("name", "version"):
        text: str = getattr(system, attribute)
        if not text.strip() or len(text) > LONGEST or plain(text) != text:
            raise WrongSystem(
                f"--system {name!r}: its {attribute!r} must be 1 to {LONGEST} characters that can be seen, "
                f"not {plain(text[:LONGEST])!r}"
            )


def _listed(names: Iterable[object]) -> str:
    return ", ".join(sorted(str(name) for name in names))
