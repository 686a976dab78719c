"""Which code was tried: a git commit, or an installed distribution. Owns the identification; must not run the code.

Evidence speaks of a commit whose work tree holds that commit and nothing else, or of a distribution whose files are
those that its RECORD lists. Taken before and after a run, of the system's own module; the kit's identity is apart.
"""

import base64
import csv
import functools
import hashlib
import os
import sys
import sysconfig
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from importlib.metadata import Distribution, PackageNotFoundError, distributions, version
from pathlib import Path
from typing import Final

import leaseproof
from leaseproof.evidence.git import GitFailed, compare, read_head, work_tree
from leaseproof.evidence.model import Subject, clip

_SHOWN: Final = 20


Imported = Iterable[tuple[str, str]]
"""Files of imported modules, each with the SHA-256 that a process of the run read there."""


@dataclass(frozen=True)
class Identity:
    """A subject, with what is needed to ask whether a file belongs to it: its folder, and the files that it accounts
    for, relative to that folder, with their SHA-256. `file` is the module that it was identified by."""

    subject: Subject
    root: Path | None = None
    files: Mapping[str, str] = field(default_factory=dict)
    file: Path | None = None

    def with_imported(self, imported: Imported, *others: "Identity") -> Subject:
        """The subject, not clean where a module that was really imported is none of its files, or not as they are.

        With `others` (the kit), a module that belongs to none of them, to no installed distribution and not to Python
        counts too.
        """
        seen = list(imported)
        names = [name for name, _ in seen]
        strangers = [f"imported, but not part of it: {name}" for name in unaccounted(self, names)]
        strangers += [f"imported in another state: {name}" for name in _altered(self, seen)]
        outside = _outside((self, *others), seen) if others else []
        strangers += [f"imported from outside the subject: {name}" for name in outside]
        if not strangers:
            return self.subject
        return self.subject.model_copy(
            update={"clean": False, "changes": _limited([*strangers, *self.subject.changes])}
        )

    def holds(self, file: Path) -> bool:
        """Whether the file belongs to the subject, or to an installed distribution that it stands on."""
        root = (self.root or Path(os.devnull)).resolve()
        return file.resolve() in {root / name for name in self.files} or _key(file) in _recorded()


def identify(module_file: Path, name: str, subject_version: str) -> Identity:
    """The subject that holds this file of its code."""
    return replace(_identified(module_file.resolve(), name, subject_version), file=module_file.resolve())


def _identified(file: Path, name: str, subject_version: str) -> Identity:
    top = work_tree(file)
    if top is not None:
        found = _in_git(top, file, name, subject_version)
        if found.subject.kind == "git" and file.relative_to(top).as_posix() in found.files:
            return found
    installed = _distribution_of(file)
    if installed is not None:
        return _installed(installed, name)
    if top is not None:
        return found
    return _unidentified(name, subject_version, f"{file.name} is in no git work tree and no installed distribution")


def identify_kit(suites: Path | None = None) -> Identity:
    """The kit's own identity: that of its package, or of the suites that stand in the place of its own."""
    try:
        own = version("leaseproof")
    except PackageNotFoundError:
        own = "unknown"
    package = Path(leaseproof.__file__)
    if suites is None or suites.is_relative_to(package.parent):
        return identify(package, "leaseproof", own)
    return identify(min(suites.glob("*.py"), default=suites), "leaseproof", own)


def unaccounted(identity: Identity, imported: Iterable[str | Path]) -> list[str]:
    """Imported files that lie in the subject's folder, and are none of its files; relative to the folder.

    A Python environment inside the folder holds other people's packages and is set aside.
    """
    if identity.root is None:
        return []
    root = identity.root.resolve()
    environments = [folder for folder in _environments() if folder.is_relative_to(root) and folder != root]
    found = set()
    for name in imported:
        file = Path(name).resolve()
        if not file.is_relative_to(root) or (
            identity.subject.kind == "git" and any(file.is_relative_to(one) for one in environments)
        ):
            continue
        path = file.relative_to(root).as_posix()
        if identity.subject.kind == "distribution" and path.partition("/")[0] not in _tops(identity.files):
            continue
        if path not in identity.files:
            found.add(path)
    return sorted(found)


def _altered(identity: Identity, imported: Imported) -> list[str]:
    """The subject's files that a process of the run read with other bytes than the subject's."""
    if identity.root is None:
        return []
    root, found = identity.root.resolve(), set()
    for name, digest in imported:
        file = Path(name).resolve()
        path = file.relative_to(root).as_posix() if file.is_relative_to(root) else ""
        if path in identity.files and identity.files[path] != digest:
            found.add(path)
    return sorted(found)


def _outside(identities: Iterable[Identity], imported: Imported) -> list[str]:
    """Imported files that belong to nothing that is identified: no subject, no kit, no installation, not to Python.

    Of an installed distribution a file counts as its RECORD has it.
    """
    roots = [one.root.resolve() for one in identities if one.root is not None and one.subject.kind == "git"]
    environments = _environments()
    package = Path(leaseproof.__file__).resolve()
    installed = any(package.is_relative_to(one) for one in environments)
    roots.append(package.parent if installed else work_tree(package) or package.parent)
    found = set()
    for name, digest in imported:
        file = Path(name).resolve()
        inside = any(
            file.is_relative_to(root)
            and not any(file.is_relative_to(one) for one in environments if one != root and one.is_relative_to(root))
            for root in roots
        )
        if not inside and not _of_python(Path(name)) and _recorded().get(_key(Path(name))) not in {"", digest}:
            found.add(name)
    return sorted(found)


def _of_python(file: Path) -> bool:
    """Whether it is a module of the standard library, or the one that virtualenv adds to every environment."""
    for kind in ("stdlib", "platstdlib"):
        place = Path(sysconfig.get_path(kind))
        if file.is_relative_to(place) and not {"site-packages", "dist-packages"} & {*file.relative_to(place).parts}:
            return True
    return file == Path(sysconfig.get_path("purelib"), "_virtualenv.py")


def _key(file: Path) -> str:
    """A file by its real folder; installers may make the file itself a link."""
    return str(Path(os.path.realpath(file.parent), file.name))


@functools.cache
def _recorded() -> dict[str, str]:
    """Every file of every installed distribution, with the SHA-256 that its RECORD gives; empty where it gives none."""
    found: dict[str, str] = {}
    for distribution in distributions():
        base = Path(str(distribution.locate_file(""))).resolve()
        for path, digest, *_ in csv.reader((distribution.read_text("RECORD") or "").splitlines()):
            algorithm, _, encoded = digest.partition("=")
            value = base64.urlsafe_b64decode(encoded + "==").hex() if algorithm == "sha256" else ""
            if value or not path.endswith((".py", ".so", ".pyd")):
                found[os.path.normpath(base / path)] = value
    return found


def _environments() -> list[Path]:
    places = [sys.prefix, sys.base_prefix, *(sysconfig.get_path(kind) for kind in ("purelib", "platlib", "stdlib"))]
    return [Path(place).resolve() for place in places]


def _tops(files: Iterable[str]) -> set[str]:
    """The packages at the top of a distribution; its metadata and scripts aside."""
    tops = {name.partition("/")[0] for name in files}
    return {top for top in tops if top not in {"..", "__pycache__"} and not top.endswith((".dist-info", ".data"))}


def _in_git(top: Path, file: Path, name: str, subject_version: str) -> Identity:
    try:
        head = read_head(top)
        differing, digests = compare(top, head)
    except GitFailed as error:
        return _unidentified(name, subject_version, str(error))
    files = {path: digests.get(path, "") for path in head.files}
    own = file.relative_to(top).as_posix()
    if own not in files:
        differing = [f"not in the commit: {own}", *differing]
    subject = Subject(
        kind="git",
        name=name,
        version=subject_version,
        clean=not differing,
        commit=head.commit,
        tree=head.tree,
        changes=_limited(differing),
    )
    return Identity(subject, top, files)


def _distribution_of(file: Path) -> Distribution | None:
    for distribution in distributions():
        base = Path(str(distribution.locate_file(""))).resolve()
        if file.is_relative_to(base):
            path = file.relative_to(base).as_posix()
            if any(str(entry) == path for entry in distribution.files or ()):
                return distribution
    return None


def _installed(distribution: Distribution, name: str) -> Identity:
    title, number = distribution.metadata["Name"], distribution.version
    record = distribution.read_text("RECORD")
    if record is None:
        return _unidentified(name, number, f"the installed distribution {title} has no RECORD")
    differing, files = [], {}
    for entry in distribution.files or ():
        path = str(entry)
        files[path] = ""
        if entry.hash is None:
            if path.endswith((".py", ".so", ".pyd")):
                differing.append(f"no hash in RECORD: {path}")
            continue
        what, files[path] = _compare(Path(str(entry.locate())), entry.hash.mode, entry.hash.value)
        if what is not None:
            differing.append(f"{what}: {path}")
    subject = Subject(
        kind="distribution",
        name=name,
        version=number,
        clean=not differing,
        distribution=title,
        record_sha256=hashlib.sha256(record.encode()).hexdigest(),
        changes=_limited(sorted(differing)),
    )
    return Identity(subject, Path(str(distribution.locate_file(""))).resolve(), files)


def _compare(file: Path, algorithm: str, wanted: str) -> tuple[str | None, str]:
    """What is wrong with the file, and its SHA-256 where nothing is."""
    if algorithm not in {"sha256", "sha384", "sha512"}:
        return f"hash of RECORD is {algorithm}", ""
    try:
        content = file.read_bytes()
    except OSError as error:
        return f"unreadable ({error.strerror})", ""
    if _encoded(hashlib.new(algorithm, content).digest()) != wanted:
        return "changed", ""
    return None, hashlib.sha256(content).hexdigest()


def _encoded(digest: bytes) -> str:
    """A digest as RECORD writes it."""
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def _unidentified(name: str, subject_version: str, reason: str) -> Identity:
    return Identity(Subject(kind="unidentified", name=name, version=subject_version, reason=clip(reason, 300)))


def _limited(differing: list[str]) -> tuple[str, ...]:
    shown = [clip(line, 300) for line in differing[:_SHOWN]]
    if len(differing) > _SHOWN:
        shown.append(f"and {len(differing) - _SHOWN} more")
    return tuple(shown)
