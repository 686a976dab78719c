"""Asking git about a work tree without running anything that the tree or its configuration names.

Owns the safe call and the comparison with HEAD; must not write to the repository. Files are compared byte for byte
with HEAD's blobs, past the index: bits such as assume-unchanged hide nothing, and no filter, hook or monitor runs.
A checkout that converts content (line ends, large-file filters) is therefore not clean.
"""

import hashlib
import os
import stat
import subprocess
import tempfile
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_SAFE: Final = (
    "core.fsmonitor=false",
    "core.ignoreCase=false",
    "core.excludesFile=/dev/null",
    "core.hooksPath=/dev/null",
    "core.untrackedCache=false",
    "core.splitIndex=false",
    "core.sparseCheckout=false",
    "core.alternateRefsCommand=",
    "core.pager=cat",
    "index.sparse=false",
    "gc.auto=0",
    "protocol.allow=never",
)
_ENVIRONMENT: Final = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
    "LC_ALL": "C",
}


class GitFailed(Exception):
    """git is missing, or could not answer; the text is its own."""


@dataclass(frozen=True)
class Head:
    """The commit that a work tree stands at, and its files: path relative to the top, to (mode, blob id)."""

    commit: str
    tree: str
    files: Mapping[str, tuple[str, str]]


def work_tree(path: Path) -> Path | None:
    """The top of the innermost work tree around `path`, or None."""
    for folder in path.resolve().parents:
        if (folder / ".git").exists():
            return folder
    return None


def read_head(top: Path) -> Head:
    """HEAD of the work tree at `top`. Raises GitFailed."""
    commit = _git(top, "rev-parse", "--verify", "HEAD^{commit}").decode().strip()
    tree = _git(top, "rev-parse", "--verify", f"{commit}^{{tree}}").decode().strip()
    files = {}
    for entry in _git(top, "ls-tree", "-r", "-z", "--full-tree", tree).split(b"\0")[:-1]:
        meta, _, name = entry.partition(b"\t")
        mode, _, blob = meta.decode().split()
        files[os.fsdecode(name)] = (mode, blob)
    return Head(commit, tree, files)


def changes(top: Path, head: Head) -> list[str]:
    """How the work tree at `top` differs from `head`: "changed: path" and the like; untracked files are included, but
    for those that a committed .gitignore names; rules that lie anywhere else don't count. Raises GitFailed."""
    return compare(top, head)[0]


def compare(top: Path, head: Head) -> tuple[list[str], dict[str, str]]:
    """The changes, and the SHA-256 of each file whose bytes are the commit's. Raises GitFailed."""
    found, digests = [], {}
    for name, (mode, blob) in head.files.items():
        what, content = _differs(top, head, name, mode, blob)
        if what is not None:
            found.append(f"{what}: {_shown(name)}")
        elif content is not None:
            digests[name] = hashlib.sha256(content).hexdigest()
    return sorted([*found, *(f"untracked: {_shown(name)}" for name in _untracked(top, head))]), digests


def _differs(top: Path, head: Head, name: str, mode: str, blob: str) -> tuple[str | None, bytes | None]:
    """What is wrong with the file, and its content as it was read."""
    path = top / name
    if mode == "160000":
        return _submodule_differs(path, blob), None
    try:
        found = path.lstat()
        if stat.S_ISLNK(found.st_mode):
            if not _leads_to_committed(top, head, path):
                return "link to what is not in the commit", None
            content, kind = os.fsencode(path.readlink()), "120000"
        elif stat.S_ISREG(found.st_mode):
            content, kind = path.read_bytes(), "100755" if found.st_mode & stat.S_IXUSR else "100644"
        else:
            return "no file any more", None
        if not path.parent.resolve().is_relative_to(top.resolve()):
            return "reached through a link", None
    except (FileNotFoundError, NotADirectoryError):
        return "deleted", None
    except OSError as error:
        return f"unreadable ({error.strerror})", None
    if kind != mode:
        return "mode changed", None
    digest = hashlib.sha256 if len(blob) == 64 else _sha1
    same = digest(b"blob %d\0" % len(content) + content).hexdigest() == blob
    return (None, content) if same else ("changed", None)


def _leads_to_committed(top: Path, head: Head, link: Path) -> bool:
    """Whether a link ends at a file of the commit, at a folder of it, or at nothing inside of the tree."""
    top, target = top.resolve(), Path(os.path.realpath(link))
    if not target.is_relative_to(top) or target.is_relative_to(top / ".git"):
        return False
    name = target.relative_to(top).as_posix()
    if not target.exists() or name in head.files or target == top:
        return True
    in_submodule = any(head.files.get(folder.as_posix(), ("",))[0] == "160000" for folder in Path(name).parents)
    return in_submodule or (target.is_dir() and any(one.startswith(f"{name}/") for one in head.files))


def _sha1(content: bytes) -> "hashlib._Hash":
    return hashlib.sha1(content, usedforsecurity=False)


def _submodule_differs(path: Path, commit: str) -> str | None:
    """A submodule is as committed when it is not checked out, or is a clean checkout of that commit."""
    if not (path / ".git").exists():
        return None if not path.exists() or (path.is_dir() and not any(path.iterdir())) else "changed submodule"
    head = read_head(path)
    return None if head.commit == commit and not changes(path, head) else "changed submodule"


def _untracked(top: Path, head: Head) -> Iterator[str]:
    """Files that HEAD does not have, asked with an index of its own that holds HEAD's tree.

    A .gitignore that HEAD does not have is one of them unless HEAD's own rules cover it, so it can't hide itself.
    """
    with tempfile.TemporaryDirectory(prefix="leaseproof-") as folder:
        index = {"GIT_INDEX_FILE": str(Path(folder, "index"))}
        _git(top, "read-tree", head.tree, more=index)
        listed = _git(top, "ls-files", "--others", "--exclude-per-directory=.gitignore", "-z", more=index)
        rules = _git(top, "ls-files", "--others", "-z", "--", ":(glob)**/.gitignore", more=index)
        names = rules.split(b"\0")[:-1]
        arguments = ("check-ignore", "--verbose", "--non-matching", "--no-index", "-z", "--stdin")
        answers = _git(top, *arguments, more=index, given=rules, good=(0, 1)).split(b"\0") if names else []
    # four fields a path: the file with the rule, its line, the rule, the path
    hidden = {
        answers[start + 3]
        for start in range(0, len(answers) - 3, 4)
        if os.fsdecode(answers[start]) in head.files and not answers[start + 2].startswith(b"!")
    }
    for name in sorted({*listed.split(b"\0")[:-1], *(one for one in names if one not in hidden)}):
        yield os.fsdecode(name)


def _git(
    top: Path,
    *arguments: str,
    more: Mapping[str, str] | None = None,
    given: bytes = b"",
    good: Collection[int] = (0,),
) -> bytes:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    options = [part for setting in _SAFE for part in ("-c", setting)]
    command = ["git", "--no-pager", *options, f"--git-dir={top / '.git'}", f"--work-tree={top}", *arguments]
    try:
        done = subprocess.run(
            command,
            cwd=top,
            env={**inherited, **_ENVIRONMENT, **(more or {})},
            input=given,
            capture_output=True,
            check=False,
        )
    except OSError as error:
        raise GitFailed(f"git can't be run: {error.strerror}") from error
    if done.returncode not in good:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        raise GitFailed(f"git {arguments[0]}: {said[-1] if said else f'exit code {done.returncode}'}")
    return done.stdout


def _shown(name: str) -> str:
    return os.fsencode(name).decode("utf-8", "backslashreplace")
