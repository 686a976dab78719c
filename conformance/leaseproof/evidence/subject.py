"""Which code was tried: a git commit, or an installed distribution. Owns the identification; must not run the code.

Evidence speaks of a commit whose work tree holds that commit and nothing else, or of a distribution whose files are
those that its RECORD lists. Taken before and after a run, of the system's own module; the kit's identity is apart.
"""

import base64
import hashlib
import sys
import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distributions, version
from pathlib import Path
from typing import Final

import leaseproof
from leaseproof.evidence.git import GitFailed, changes, read_head, work_tree
from leaseproof.evidence.model import Subject, clip

_SHOWN: Final = 20


@dataclass(frozen=True)
class Identity:
    """A subject, with what is needed to ask whether a file belongs to it: its folder and the files that it accounts
    for, relative to that folder."""

    subject: Subject
    root: Path | None = None
    files: frozenset[str] = frozenset()

    def with_imported(self, imported: Iterable[str | Path]) -> Subject:
        """The subject, not clean where a module that was really imported is none of its files."""
        strangers = [f"imported, but not part of it: {name}" for name in unaccounted(self, imported)]
        if not strangers:
            return self.subject
        return self.subject.model_copy(
            update={"clean": False, "changes": _limited([*strangers, *self.subject.changes])}
        )


def identify(module_file: Path, name: str, subject_version: str) -> Identity:
    """The subject that holds this file of its code."""
    file = module_file.resolve()
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
        differing = changes(top, head)
    except GitFailed as error:
        return _unidentified(name, subject_version, str(error))
    files = frozenset(head.files)
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
    differing, files = [], set()
    for entry in distribution.files or ():
        path = str(entry)
        files.add(path)
        if entry.hash is None:
            if path.endswith((".py", ".so", ".pyd")):
                differing.append(f"no hash in RECORD: {path}")
            continue
        differing += [
            f"{what}: {path}" for what in _compare(Path(str(entry.locate())), entry.hash.mode, entry.hash.value)
        ]
    subject = Subject(
        kind="distribution",
        name=name,
        version=number,
        clean=not differing,
        distribution=title,
        record_sha256=hashlib.sha256(record.encode()).hexdigest(),
        changes=_limited(sorted(differing)),
    )
    return Identity(subject, Path(str(distribution.locate_file(""))).resolve(), frozenset(files))


def _compare(file: Path, algorithm: str, wanted: str) -> list[str]:
    if algorithm not in {"sha256", "sha384", "sha512"}:
        return [f"hash of RECORD is {algorithm}"]
    try:
        digest = hashlib.new(algorithm, file.read_bytes()).digest()
    except OSError as error:
        return [f"unreadable ({error.strerror})"]
    return [] if base64.urlsafe_b64encode(digest).rstrip(b"=").decode() == wanted else ["changed"]


def _unidentified(name: str, subject_version: str, reason: str) -> Identity:
    return Identity(Subject(kind="unidentified", name=name, version=subject_version, reason=clip(reason, 300)))


def _limited(differing: list[str]) -> tuple[str, ...]:
    shown = [clip(line, 300) for line in differing[:_SHOWN]]
    if len(differing) > _SHOWN:
        shown.append(f"and {len(differing) - _SHOWN} more")
    return tuple(shown)
