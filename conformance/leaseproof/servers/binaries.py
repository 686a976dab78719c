"""Programs within reach of the servers' account. Owns the cache of copies; must not start anything.

The environment of root often lies where nobody can't go; then the programs are copied, once a version and machine.
"""

import hashlib
import os
import shutil
import stat
import tempfile
from pathlib import Path

from leaseproof.servers.account import Account
from leaseproof.servers.errors import ServersError


def within_reach(program: Path, parts: list[Path], account: Account | None) -> Path:
    """A path by which `account` can run the program.

    `parts` are the folders or files that make it up, relative to each other as they lie; they are copied together.
    """
    if account is None or account.can_run(program):
        return program
    root = Path(os.path.commonpath(parts)) if len(parts) > 1 else parts[0].parent
    cache = _cache(account)
    final = cache / _key(program)
    if not final.exists():
        fresh = Path(tempfile.mkdtemp(prefix=".new-", dir=cache))
        try:
            for part in parts:
                _copy(part, fresh / part.relative_to(root))
            _open_to_all(fresh)
            fresh.rename(final)
        except OSError as error:
            if not final.exists():  # else another run was first
                raise ServersError(
                    f"{program.name} could not be copied to {cache}, where the servers' account can run it "
                    f"({error.strerror}): free some space there, or give a server with --dsn"
                ) from error
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
    return final / program.relative_to(root)


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, symlinks=True, ignore=shutil.ignore_patterns("include", "__pycache__"))
    else:
        shutil.copy(source, target)


def _open_to_all(root: Path) -> None:
    for path in (root, *root.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or path.stat().st_mode & stat.S_IXUSR else 0o644)


def _key(program: Path) -> str:
    seen = program.stat()
    return hashlib.sha256(f"{program.resolve()} {seen.st_size} {seen.st_mtime_ns}".encode()).hexdigest()[:16]


def _cache(account: Account) -> Path:
    reasons = []
    for place in dict.fromkeys([Path(tempfile.gettempdir()), Path("/tmp"), Path("/var/tmp")]):  # noqa: S108
        reason = _objection(place, account)
        if reason is not None:
            reasons.append(f"{place}: {reason}")
            continue
        cache = place / f"leaseproof-cache-{os.geteuid()}"
        cache.mkdir(mode=0o755, exist_ok=True)
        seen = cache.lstat()
        if stat.S_ISDIR(seen.st_mode) and seen.st_uid == os.geteuid() and not seen.st_mode & 0o022:
            cache.chmod(0o755)
            return cache
        reasons.append(f"{cache}: somebody else's")
    raise ServersError(
        f"no folder for copies of the servers' programs ({'; '.join(reasons)}): "
        "point TMPDIR to one that every account can search, or give a server with --dsn"
    )


def _objection(place: Path, account: Account) -> str | None:
    try:
        if os.statvfs(place).f_flag & os.ST_NOEXEC:
            return "mounted noexec"
    except OSError as error:
        return (error.strerror or "can't be read").lower()
    if not os.access(place, os.W_OK | os.X_OK):
        return "not writable"
    return None if account.can_search(place) else "the servers' account can't reach it"
