"""Which tiers this machine can run, and what would make the others run. Owns the probes; must not start anything."""

import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

from leaseproof.claims.catalogue import TIERS, Tier
from leaseproof.servers import account, folders, postgres, valkey
from leaseproof.servers.errors import ServersError

DEFAULT: tuple[Tier, ...] = ("static", "pg", "pg+redis", "e2e")
"""What runs without being asked for: nothing but Python is needed."""


@dataclass(frozen=True)
class Given:
    """Servers that the user names; None for embedded ones."""

    dsn: str | None = None
    redis_url: str | None = None
    pg_bin: str | None = None


@dataclass(frozen=True)
class Probe:
    """Whether a tier can run here. `found` says by what; `lacking` why not and what would change it."""

    tier: Tier
    found: str
    lacking: str | None = None

    @property
    def can_run(self) -> bool:
        return self.lacking is None


def chosen(names: list[str]) -> tuple[Tier, ...]:
    """The tiers that `--tier` names, in order; `all` is every one. Raises ValueError for an unknown one."""
    known: dict[str, Tier] = {tier: tier for tier in TIERS}
    unknown = sorted(set(names) - set(known) - {"all"})
    if unknown:
        raise ValueError(f"no tier {', '.join(unknown)}; there are {', '.join(TIERS)} and all")
    if "all" in names:
        return TIERS
    return tuple(tier for tier in TIERS if tier in names) if names else DEFAULT


def probe(given: Given) -> dict[Tier, Probe]:
    """Every tier, tried by looking only."""
    database, redis = _postgresql(given), _redis(given)
    servers = Probe("e2e", f"{database.found}, {redis.found}", database.lacking or redis.lacking)
    probes = (
        Probe("static", "Python"),
        database,
        Probe("pg+redis", servers.found, servers.lacking),
        servers,
        _kube_api(),
        _kind(),
    )
    return {one.tier: one for one in probes}


def reasons(probes: Mapping[Tier, Probe]) -> dict[Tier, str | None]:
    """Each tier with the reason why it can't run here; None where it can."""
    return {tier: one.lacking for tier, one in probes.items()}


def _postgresql(given: Given) -> Probe:
    if given.dsn is not None:
        return Probe("pg", "the PostgreSQL of --dsn")
    try:
        binaries = postgres.find(given.pg_bin)
        folders.choose(account.choose())
    except ServersError as error:
        return Probe("pg", "", str(error))
    return Probe("pg", f"PostgreSQL {binaries.version} in {binaries.bin_dir}")


def _redis(given: Given) -> Probe:
    if given.redis_url is not None:
        return Probe("pg+redis", "the Redis of --redis-url")
    try:
        return Probe("pg+redis", f"Valkey in {valkey.find().parent}")
    except ServersError as error:
        return Probe("pg+redis", "", str(error))


def _kube_api() -> Probe:
    missing = [program for program in ("kube-apiserver", "etcd") if shutil.which(program) is None]
    if not missing:
        return Probe("kube-api", "kube-apiserver and etcd on the path")
    go = "Go is there to build them" if shutil.which("go") else "without Go they can't be built here either"
    return Probe(
        "kube-api", "", f"no {' and no '.join(missing)} on the path; install Kubernetes' server binaries ({go})"
    )


def _kind() -> Probe:
    if docker() is None:
        return Probe("kind", "Docker")
    if os.geteuid() == 0:
        return Probe("kind", "root, no Docker", f"{docker()}; a cluster without Docker is not supported yet")
    return Probe("kind", "", f"{docker()}, and not root; start Docker and let this user use it")


def docker() -> str | None:
    """Why Docker can't be used; None when its daemon answers."""
    program = shutil.which("docker")
    if program is None:
        return "no Docker"
    try:
        answer = subprocess.run(
            [program, "info", "--format", "{{.ServerVersion}}"], capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return "Docker does not answer"
    return None if answer.returncode == 0 else "no Docker daemon"
