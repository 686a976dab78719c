"""A subject is a clean commit or an untouched installation, and nothing hides a change from that."""

import base64
import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from leaseproof.evidence.subject import Identity, _recorded, identify, identify_kit, unaccounted

COMMITTED = {
    "acme/__init__.py": "",
    "acme/runs.py": "LEASE = 30\n",
    "bin/tool": "#!/bin/sh\n",
    ".gitignore": "ignored/\n*.log\n",
}


def git(folder: Path, *arguments: str) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    name = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "protocol.file.allow=always")
    command = ["git", "-C", str(folder), *name, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout.strip()


def repository(folder: Path) -> Path:
    for name, text in COMMITTED.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "bin/tool").chmod(0o755)
    (folder / "link").symlink_to("acme/runs.py")
    git(folder, "init", "-q")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "first")
    return folder


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A work tree with one commit."""
    folder = tmp_path / "tree"
    folder.mkdir()
    return repository(folder)


def identified(tree: Path) -> Identity:
    return identify(tree / "acme/runs.py", "acme", "1.0")


def seen(*files: Path) -> list[tuple[str, str]]:
    """These files as a process of a run reads them."""
    return [(str(file), hashlib.sha256(file.read_bytes()).hexdigest()) for file in files]


def changes(tree: Path) -> tuple[str, ...]:
    found = identified(tree).subject
    assert found.clean == (not found.changes)
    return found.changes


def test_a_clean_commit_is_identified(tree: Path) -> None:
    found = identified(tree).subject
    assert (found.kind, found.name, found.version, found.clean) == ("git", "acme", "1.0", True)
    assert found.commit == git(tree, "rev-parse", "HEAD")
    assert found.tree == git(tree, "rev-parse", "HEAD^{tree}")


def test_a_repository_of_the_other_hash_is_identified(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q", "--object-format=sha256")
    found = identified(repository(tmp_path)).subject
    assert found.clean
    assert len(found.commit or "") == 64


def test_a_linked_work_tree_is_identified(tree: Path, tmp_path: Path) -> None:
    git(tree, "worktree", "add", "-q", str(tmp_path / "linked"))
    assert identified(tmp_path / "linked").subject.clean
    (tmp_path / "linked/acme/runs.py").write_text("LEASE = 1\n")
    assert changes(tmp_path / "linked") == ("changed: acme/runs.py",)
    assert changes(tree) == ()


@pytest.mark.parametrize("bit", ["--assume-unchanged", "--skip-worktree"])
def test_bits_of_the_index_hide_nothing(tree: Path, bit: str) -> None:
    git(tree, "update-index", bit, "acme/runs.py")
    (tree / "acme/runs.py").write_text("LEASE = 31\n")
    assert git(tree, "status", "--porcelain") == ""
    assert changes(tree) == ("changed: acme/runs.py",)


def test_a_staged_change_is_a_change(tree: Path) -> None:
    (tree / "acme/runs.py").write_text("LEASE = 31\n")
    (tree / "acme/new.py").write_text("")
    git(tree, "add", "-A")
    assert changes(tree) == ("changed: acme/runs.py", "untracked: acme/new.py")


def test_untracked_deleted_and_retyped_files_are_changes(tree: Path) -> None:
    (tree / "acme/new.py").write_text("")
    (tree / "acme/__init__.py").unlink()
    (tree / "bin/tool").chmod(0o644)
    (tree / "link").unlink()
    (tree / "link").write_text("acme/runs.py")
    assert changes(tree) == (
        "deleted: acme/__init__.py",
        "mode changed: bin/tool",
        "mode changed: link",
        "untracked: acme/new.py",
    )


def test_a_folder_replaced_by_a_link_is_a_change(tree: Path, tmp_path: Path) -> None:
    (tree / "acme").rename(tmp_path / "elsewhere")
    (tree / "acme").symlink_to(tmp_path / "elsewhere")
    found = identify(tmp_path / "tree/bin/tool", "acme", "1").subject
    assert "reached through a link: acme/runs.py" in found.changes


def test_ignored_files_are_no_change_unless_imported(tree: Path) -> None:
    (tree / "ignored").mkdir()
    (tree / "ignored/secret.py").write_text("")
    assert changes(tree) == ()
    found = identified(tree)
    imported = found.with_imported(seen(tree / "acme/runs.py", tree / "ignored/secret.py"))
    assert not imported.clean
    assert imported.changes == ("imported, but not part of it: ignored/secret.py",)
    assert found.with_imported(seen(tree / "acme/runs.py", Path(os.__file__))).clean


@pytest.mark.parametrize("place", [".git/info/exclude", "excludes"])
def test_ignore_rules_outside_of_the_commit_hide_nothing(tree: Path, tmp_path: Path, place: str) -> None:
    rules = tree / ".git/info/exclude" if place.startswith(".git") else tmp_path / place
    rules.parent.mkdir(exist_ok=True)
    rules.write_text("*\n")
    git(tree, "config", "core.excludesFile", str(rules))
    (tree / "acme/new.py").write_text("")
    assert git(tree, "status", "--porcelain") == ""
    assert changes(tree) == ("untracked: acme/new.py",)


def test_a_filter_hides_nothing_and_nothing_is_run(tree: Path, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    hook = tmp_path / "hook"
    hook.write_text(f"#!/bin/sh\ntouch {ran}\nprintf 'LEASE = 30\\n'\n")
    hook.chmod(0o755)
    for name in ("core.fsmonitor", "filter.f.clean", "filter.f.process", "core.pager", "core.sshCommand"):
        git(tree, "config", name, str(hook))
    git(tree, "config", "core.hooksPath", str(tmp_path))
    (tree / ".git/info").mkdir(exist_ok=True)
    (tree / ".git/info/attributes").write_text("*.py filter=f\n")
    for name in ("post-index-change", "pre-commit"):
        (tmp_path / name).write_text(hook.read_text())
        (tmp_path / name).chmod(0o755)
    (tree / "acme/runs.py").write_text("LEASE = 31\n")
    assert changes(tree) == ("changed: acme/runs.py",)
    assert not ran.exists()


def test_the_caller_s_variables_mislead_nobody(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = tmp_path / "other"
    other.mkdir()
    repository(other)
    (tree / "acme/runs.py").write_text("LEASE = 31\n")
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    monkeypatch.setenv("GIT_WORK_TREE", str(other))
    monkeypatch.setenv("GIT_INDEX_FILE", str(other / ".git/index"))
    monkeypatch.setenv("GIT_OBJECT_DIRECTORY", str(other / ".git/objects"))
    assert changes(tree) == ("changed: acme/runs.py",)


def test_a_work_tree_named_in_the_configuration_misleads_nobody(tree: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    repository(other)
    git(tree, "config", "core.worktree", str(other))
    (tree / "acme/runs.py").write_text("LEASE = 31\n")
    assert changes(tree) == ("changed: acme/runs.py",)


def test_a_replaced_commit_misleads_nobody(tree: Path) -> None:
    first = git(tree, "rev-parse", "HEAD")
    (tree / "acme/runs.py").write_text("LEASE = 31\n")
    git(tree, "commit", "-q", "-a", "-m", "second")
    git(tree, "update-ref", "HEAD", first)
    git(tree, "replace", first, git(tree, "rev-parse", "HEAD@{1}"))
    assert changes(tree) == ("changed: acme/runs.py",)


def test_the_repository_is_left_as_it_was(tree: Path) -> None:
    (tree / "acme/new.py").write_text("new")
    before = sorted((path, path.stat().st_mtime_ns) for path in (tree / ".git").rglob("*"))
    identified(tree)
    assert sorted((path, path.stat().st_mtime_ns) for path in (tree / ".git").rglob("*")) == before


def test_a_submodule_counts_as_its_commit(tree: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    git(tree, "submodule", "add", "-q", str(repository(other)), "sub")
    git(tree, "commit", "-q", "-m", "submodule")
    assert changes(tree) == ()
    (tree / "sub/acme/runs.py").write_text("LEASE = 31\n")
    assert changes(tree) == ("changed submodule: sub",)


def test_a_tree_without_a_commit_is_not_identified(tmp_path: Path) -> None:
    (tmp_path / "acme").mkdir()
    (tmp_path / "acme/runs.py").write_text("")
    git(tmp_path, "init", "-q")
    found = identified(tmp_path).subject
    assert found.kind == "unidentified"
    assert "git rev-parse" in (found.reason or "")


def test_a_file_that_is_in_no_tree_is_not_identified(tmp_path: Path) -> None:
    (tmp_path / "acme").mkdir()
    (tmp_path / "acme/runs.py").write_text("")
    found = identified(tmp_path).subject
    assert (found.kind, found.clean) == ("unidentified", False)
    assert found.reason == "runs.py is in no git work tree and no installed distribution"


def test_a_system_that_is_not_in_the_commit_is_not_clean(tree: Path) -> None:
    (tree / "ignored").mkdir()
    (tree / "ignored/mine.py").write_text("")
    found = identify(tree / "ignored/mine.py", "acme", "1").subject
    assert (found.kind, found.clean, found.changes) == ("git", False, ("not in the commit: ignored/mine.py",))


def test_without_git_nothing_is_identified(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    found = identified(tree).subject
    assert (found.kind, found.reason) == ("unidentified", "git can't be run: No such file or directory")


def hashed(text: str) -> str:
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of installed packages with the distribution acme-runs."""
    site = tmp_path / "site"
    (site / "acme").mkdir(parents=True)
    (site / "acme/runs.py").write_text("LEASE = 30\n")
    info = site / "acme_runs-2.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-runs\nVersion: 2.0\n")
    (info / "RECORD").write_text(
        f"acme/runs.py,{hashed('LEASE = 30' + chr(10))},11\n{info.name}/METADATA,,\n{info.name}/RECORD,,\n"
    )
    monkeypatch.syspath_prepend(str(site))
    _recorded.cache_clear()
    return site


def test_an_installed_distribution_is_identified(installed: Path) -> None:
    found = identify(installed / "acme/runs.py", "acme", "1.0").subject
    assert (found.kind, found.clean, found.distribution, found.version) == ("distribution", True, "acme-runs", "2.0")
    record = (installed / "acme_runs-2.0.dist-info/RECORD").read_bytes()
    assert found.record_sha256 == hashlib.sha256(record).hexdigest()


def test_a_changed_installation_is_not_clean(installed: Path) -> None:
    (installed / "acme/runs.py").write_text("LEASE = 31\n")
    assert identify(installed / "acme/runs.py", "acme", "1.0").subject.changes == ("changed: acme/runs.py",)


def test_a_module_beside_an_installation_is_none_of_it(installed: Path) -> None:
    (installed / "acme/more.py").write_text("")
    (installed / "other.py").write_text("")
    found = identify(installed / "acme/runs.py", "acme", "1.0")
    assert unaccounted(found, [installed / "acme/runs.py", installed / "acme/more.py", installed / "other.py"]) == [
        "acme/more.py"
    ]


def test_an_environment_inside_of_the_tree_is_set_aside(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tree / "ignored/lib").mkdir(parents=True)
    (tree / "ignored/lib/package.py").write_text("")
    found = identified(tree)
    assert unaccounted(found, [tree / "ignored/lib/package.py"]) == ["ignored/lib/package.py"]
    monkeypatch.setattr(sys, "prefix", str(tree / "ignored"))
    assert unaccounted(found, [tree / "ignored/lib/package.py"]) == []


def test_the_kit_knows_itself() -> None:
    kit = identify_kit().subject
    assert kit.name == "leaseproof"
    assert kit.kind in {"git", "distribution"}


def test_a_link_out_of_the_commit_is_a_change(tree: Path, tmp_path: Path) -> None:
    (tree / "ignored").mkdir()
    (tree / "ignored/secret.py").write_text("")
    for name, target in {"out": tmp_path / "elsewhere.py", "in": "ignored/secret.py", "git": ".git/HEAD"}.items():
        (tree / name).symlink_to(target)
    (tree / "folder").symlink_to("acme")
    git(tree, "add", "-A")
    git(tree, "commit", "-q", "-m", "links")
    assert changes(tree) == tuple(f"link to what is not in the commit: {name}" for name in ("git", "in", "out"))


def test_an_uncommitted_ignore_file_hides_nothing_and_not_itself(tree: Path) -> None:
    (tree / "acme/.gitignore").write_text("*\n")
    (tree / "ignored").mkdir()
    (tree / "ignored/.gitignore").write_text("*\n")
    assert changes(tree) == ("untracked: acme/.gitignore",)


def test_names_are_ignored_by_their_letters_case(tree: Path) -> None:
    git(tree, "config", "core.ignoreCase", "true")
    (tree / "IGNORED").mkdir()
    (tree / "IGNORED/secret.py").write_text("")
    assert changes(tree) == ("untracked: IGNORED/secret.py",)


def test_code_that_nothing_identifies_makes_the_subject_unclean(tree: Path, installed: Path, tmp_path: Path) -> None:
    (tmp_path / "stray.py").write_text("")
    (installed / "acme/more.py").write_text("")
    found, kit = identified(tree), identify_kit()
    good = seen(tree / "acme/runs.py", installed / "acme/runs.py", Path(os.__file__), Path(pytest.__file__))
    assert found.with_imported(good, kit).clean
    for stray in (tmp_path / "stray.py", installed / "acme/more.py"):
        wanted = (f"imported from outside the subject: {stray}",)
        assert found.with_imported([*good, *seen(stray)], kit).changes == wanted
    changed = [(str(installed / "acme/runs.py"), "0" * 64)]
    assert not found.with_imported(changed, kit).clean
    assert found.holds(installed / "acme/runs.py")
    assert not found.holds(tmp_path / "stray.py")


def test_a_folder_that_shadows_a_module_of_a_distribution_is_none_of_it(installed: Path) -> None:
    (installed / "acme/runs").mkdir()
    (installed / "acme/runs/__init__.py").write_text("")
    found = identify(installed / "acme/runs.py", "acme", "1.0")
    assert not found.with_imported(seen(installed / "acme/runs/__init__.py"), identify_kit()).clean


def test_a_file_that_was_another_one_while_it_was_imported_is_a_change(tree: Path) -> None:
    found = identified(tree)
    meanwhile = [*seen(tree / "acme/runs.py"), (str(tree / "acme/runs.py"), "0" * 64)]
    assert found.with_imported(meanwhile).changes == ("imported in another state: acme/runs.py",)
