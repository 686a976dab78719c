"""The catalogue of claims: what is promised, and to which record each promise belongs.

Owns the claims and their form; must not know of results, checks or systems. The text lies in one TOML file a family.
"""

import hashlib
import json
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator

from leaseproof.capabilities import Cap

FAMILIES: Final = ("LOCK", "CANCEL", "SIGNAL", "SHAPE", "ATTEMPT", "CREATE", "WORKER", "KUBE", "COLD")

Tier = Literal["static", "pg", "pg+redis", "e2e", "kube-api", "kind"]
TIERS: Final[tuple[Tier, ...]] = ("static", "pg", "pg+redis", "e2e", "kube-api", "kind")
"""From the lowest to the highest; a lower one never stands in for a higher one."""

Owner = Literal[
    "run repository", "attempts", "run shape", "creation service", "worker", "signals", "provisioner", "assembled path"
]

_Sentence = Annotated[str, StringConstraints(strip_whitespace=True, min_length=12, max_length=1000)]
_Id = Annotated[str, StringConstraints(pattern=r"^[A-Z]{2,12}-[1-9][0-9]?$")]
_Name = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]*$")]


class BadCatalogue(Exception):
    """The catalogue can't be used. The text names the file, the claim and what to mend."""


class Claim(BaseModel):
    """One promise. `must` is the promise itself; `requires` are the capabilities without which it says nothing."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: _Id
    revision: Annotated[int, Field(ge=1)]
    kind: Literal["core", "extended"]
    records: Annotated[tuple[str, ...], Field(min_length=1)]
    must: _Sentence
    failure_surface: _Sentence
    semantic_owner: Owner
    tier: Tier
    requires: Annotated[tuple[Cap, ...], Field(min_length=1)]
    negative_case: _Sentence
    controls: tuple[_Name, ...] = ()

    @property
    def family(self) -> str:
        """LOCK of LOCK-1."""
        return self.id.rpartition("-")[0]

    @model_validator(mode="after")
    def _nothing_twice(self) -> "Claim":
        for field in ("records", "requires", "controls"):
            values = getattr(self, field)
            if len(set(values)) != len(values):
                raise ValueError(f"{field} names something twice")
        return self


@dataclass(frozen=True)
class Record:
    """A row of the design records; Passed only when all its claims are."""

    id: str
    title: str
    claims: tuple[str, ...]


_TITLES: Final = {
    "T1": "Cancel order",
    "T2": "Run shape",
    "T3": "Worker boundary",
    "T4": "Inventory",
    "T5": "Cold start",
    "A1": "Attempt integration",
    "A2": "Lease behaviour unchanged",
    "A3": "Attempts on the real worker path",
}


@dataclass(frozen=True)
class Catalogue:
    """All claims by id, in the order of their families."""

    claims: Mapping[str, Claim]

    @cached_property
    def records(self) -> tuple[Record, ...]:
        """The records' own rows, T1 to A3, with their claims; one without any is left out."""
        rows = (
            Record(row, title, tuple(claim.id for claim in self.claims.values() if row in claim.records))
            for row, title in _TITLES.items()
        )
        return tuple(row for row in rows if row.claims)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the claims as canonical JSON: layout and comments of the files don't count."""
        return canonical_sha256([claim.model_dump(mode="json") for claim in self.claims.values()])

    def named(self, ids: Iterable[str]) -> dict[str, Claim]:
        """These claims, in the catalogue's order. Raises BadCatalogue for an id that there is not."""
        wanted = set(ids)
        if unknown := sorted(wanted - set(self.claims)):
            raise BadCatalogue(f"no claim {', '.join(unknown)}; `leaseproof claims` lists them")
        return {claim.id: claim for claim in self.claims.values() if claim.id in wanted}


def canonical_sha256(value: Any) -> str:
    """SHA-256 of a JSON value in its canonical form: sorted keys, no spaces, UTF-8."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def load_catalogue(folder: Path | None = None) -> Catalogue:
    """Read every TOML file of `folder` (the kit's own by default). Raises BadCatalogue."""
    folder = folder or Path(__file__).parent
    claims: dict[str, Claim] = {}
    for path in sorted(folder.glob("*.toml"), key=_family_order):
        for claim in _read(path):
            if claim.id in claims:
                raise BadCatalogue(f"{path.name}: claim {claim.id} stands twice; give one of them another id")
            claims[claim.id] = claim
    if not claims:
        raise BadCatalogue(f"no claims in {folder}; it should hold a TOML file a family")
    return Catalogue(claims)


def _family_order(path: Path) -> tuple[int, str]:
    name = path.stem.upper()
    return (FAMILIES.index(name) if name in FAMILIES else len(FAMILIES), name)


def _read(path: Path) -> list[Claim]:
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BadCatalogue(f"{path.name}: can't be read: {error}") from error
    entries = data.pop("claim", None)
    if data or not isinstance(entries, list) or not entries:
        raise BadCatalogue(f"{path.name}: must hold [[claim]] entries and nothing else")
    return [_claim(path, number, entry) for number, entry in enumerate(entries, 1)]


def _claim(path: Path, number: int, entry: Any) -> Claim:
    name = entry.get("id", number) if isinstance(entry, dict) else number
    try:
        claim = Claim.model_validate(entry)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"]) or "entry"
        raise BadCatalogue(f"{path.name}: claim {name}: {field}: {first['msg']}") from error
    if claim.family.lower() != path.stem:
        raise BadCatalogue(f"{path.name}: claim {claim.id} belongs in {claim.family.lower()}.toml")
    if unknown := [record for record in claim.records if record not in _TITLES]:
        raise BadCatalogue(f"{path.name}: claim {claim.id}: no record {unknown[0]}; there are {', '.join(_TITLES)}")
    return claim
