"""The evidence file, "leaseproof.evidence/1": its form, its bounds, its digest. Must not judge or render.

What a run states stands in `environments` and in the upper half of each claim; what `verdicts.recompute` derives from
that is written beside it for the reader, and can be computed again by anyone. Every text in it is untrusted.
"""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    PlainSerializer,
    StringConstraints,
    ValidationError,
)

from leaseproof.claims.catalogue import Tier, canonical_sha256
from leaseproof.files import write_text

SCHEMA: Final = "leaseproof.evidence/1"
MAX_FILE: Final = 64 * 1024 * 1024

Result = Literal["Passed", "Failed", "Inconclusive", "Not run", "Stale"]
Code = Literal[
    "passed",
    "refuted",
    # Inconclusive
    "missing",
    "duplicate",
    "unlisted",
    "skipped",
    "unfinished",
    "undecided",
    "wrong_tier",
    "log_unfinished",
    "trouble",
    "owner_not_found",
    "no_control",
    "control_not_caught",
    # Not run
    "not_promised",
    "planned",
    "not_selected",
    "tier",
    "static",
    "absent",
    "uncommitted",
    "unidentified",
    "kit",
    "not_tried",
    # Stale
    "other_subject",
    "other_revision",
]
"""Why a row has its result, as a word for programs; `reason` says it for people."""

Word = Annotated[str, StringConstraints(max_length=300)]
Text = Annotated[str, StringConstraints(max_length=8000)]
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Hex = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{40}([0-9a-f]{24})?$")]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Time = Annotated[
    AwareDatetime,
    AfterValidator(lambda time: time.astimezone(UTC)),
    PlainSerializer(lambda time: time.isoformat().replace("+00:00", "Z"), return_type=str),
]


class BadEvidence(Exception):
    """The file is no evidence file, or can't be read. The text names it and says what is wrong."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", serialize_by_alias=True, validate_by_name=True)


class Subject(_Part):
    """What was tried, or the kit that tried it. `changes` names what differs from the commit or from RECORD."""

    kind: Literal["git", "distribution", "unidentified"]
    name: Word
    version: Word
    clean: bool = False
    commit: Hex | None = None
    tree: Hex | None = None
    distribution: Word | None = None
    record_sha256: Sha256 | None = None
    changes: Annotated[tuple[Word, ...], Field(max_length=50)] = ()
    reason: Word | None = None

    @property
    def key(self) -> str:
        """What two runs must share to speak of one subject."""
        if self.kind == "git":
            return f"{self.name} commit {self.commit} tree {self.tree}"
        if self.kind == "distribution":
            return f"{self.name} distribution {self.distribution} {self.version} RECORD {self.record_sha256}"
        return f"{self.name} unidentified"

    @property
    def label(self) -> str:
        """The same for people, short."""
        if self.kind == "git":
            return f"commit {(self.commit or '')[:12]} ({'clean' if self.clean else 'uncommitted changes'})"
        if self.kind == "distribution":
            state = "as installed" if self.clean else "files changed"
            return f"{self.distribution} {self.version}, RECORD {(self.record_sha256 or '')[:12]} ({state})"
        return f"not identified: {self.reason}"


class Attachment(_Part):
    """A file that a check left, by name and digest."""

    name: Word
    sha256: Sha256


class Fact(_Part):
    """How one check ended on one system: the subject or a control. `unfinished`: it began and nothing more is known.

    tier: the tier in which it ran, where the run knows better than the claim.
    """

    system: Word
    check: Word
    claims: Annotated[tuple[Word, ...], Field(max_length=100)] = ()
    outcome: Literal["passed", "refuted", "inconclusive", "skipped", "unfinished"]
    because: Word | None = None
    detail: Text = ""
    seconds: Seconds = 0.0
    seed: int | None = None
    tier: Tier | None = None
    notes: dict[Word, JsonValue] = {}
    attachments: Annotated[tuple[Attachment, ...], Field(max_length=100)] = ()
    process: Word


class Log(_Part):
    """One process' fact log. `finished`: how many results it says it holds; unfinished logs decide nothing."""

    process: Word
    sha256: Sha256
    state: Literal["closed", "unfinished"]
    finished: Annotated[int, Field(ge=0)]


class Trouble(_Part):
    """Something that went wrong around the checks: nothing of that run is decided."""

    process: Word
    what: Text


class PlannedControl(_Part):
    """A negative control that this run was to catch, and by what."""

    id: Word
    kind: Literal["defect", "variant"]
    says: Text
    refutes: Word | None
    caught_by: Word | None
    because: Word | None
    also: tuple[Word, ...] = ()


class Selection(_Part):
    """What the user asked for: claims (null: all) and tiers."""

    claims: tuple[Word, ...] | None = None
    tiers: tuple[Tier, ...]


class Server(_Part):
    """A server that took part."""

    version: Word
    settings_sha256: Sha256 | None = None
    source: Word | None = None


class Environment(_Part):
    """One run in one environment, and all that it saw. `tiers`: those that can't run here, and why."""

    id: Word
    run: Word
    mode: Literal["verify", "controls"] = "verify"
    python: Word
    platform: Word
    cores: Annotated[int, Field(ge=1)] | None = None
    postgresql: Server | None = None
    redis: Server | None = None
    kubernetes: Server | None = None
    tiers: dict[Tier, Word] = {}
    plugins: Annotated[tuple[Word, ...], Field(max_length=200)] = ()
    seed: int = 0
    subject: Subject
    subject_after: Subject | None
    kit: Subject
    catalogue_sha256: Sha256
    checks_lock_sha256: Sha256
    revisions: dict[Word, int]
    selection: Selection
    plan_sha256: Sha256
    controls: Annotated[tuple[PlannedControl, ...], Field(max_length=2000)] = ()
    logs: Annotated[tuple[Log, ...], Field(max_length=1000)] = ()
    trouble: Annotated[tuple[Trouble, ...], Field(max_length=1000)] = ()
    facts: Annotated[tuple[Fact, ...], Field(max_length=200_000)] = ()
    started: Time
    finished: Time


class Found(_Part):
    """A symbol in the source: read, not run. `sha256` is the digest of its own text."""

    symbol: Word
    file: Word
    line: Annotated[int, Field(ge=1)]
    sha256: Sha256


class Inspection(_Part):
    """What was found in the source at this commit; `missing` says what was not."""

    owner: Found | None = None
    checks: tuple[Found, ...] = ()
    controls: tuple[Found, ...] = ()
    missing: tuple[Word, ...] = ()


class Verdict(_Part):
    """A result with its reason."""

    result: Result
    code: Code
    reason: Text


class CheckSeen(_Part):
    """A check as the row shows it; its id is "CLAIM test_name"."""

    id: Word
    outcome: Literal["passed", "refuted", "inconclusive", "skipped", "unfinished"]
    because: Word | None
    detail: Text
    seconds: Seconds
    seed: int | None
    notes: dict[Word, JsonValue]
    attachments: tuple[Attachment, ...]


class ControlSeen(_Part):
    """A control as the row shows it: caught only by the named check for the stated reason."""

    id: Word
    says: Text
    outcome: Literal["caught", "missed", "caught_otherwise", "errored", "absent"]
    by: Word | None
    because: Word | None
    detail: Text


class InEnvironment(_Part):
    """A claim's row in one environment. `provisional`: what it would be, were the subject a clean commit."""

    environment: Word
    run: Word
    result: Result
    code: Code
    reason: Text
    provisional: Verdict | None
    checks: tuple[CheckSeen, ...]
    controls: tuple[ControlSeen, ...]

    @property
    def verdict(self) -> Verdict:
        """Result, code and reason as one."""
        return Verdict(result=self.result, code=self.code, reason=self.reason)


class ClaimRow(_Part):
    """A claim's row. The fields from `inspected` on are derived.

    owner: the side effect's owner in the catalogue's words; semantic_owner: the symbol that the system names for it.
    control: the negative control that checks.lock names.
    """

    id: Word
    revision: Annotated[int, Field(ge=1)]
    kind: Literal["core", "extended"]
    records: tuple[Word, ...]
    must: Text
    failure_surface: Text
    owner: Word
    semantic_owner: Word | None
    owner_digest: Sha256 | None
    command: Word
    negative_case: Text
    tier: Tier
    requires: tuple[Word, ...]
    planned: bool
    expected: tuple[Word, ...]
    control: Word | None
    inspection: Inspection
    inspected: bool = False
    planned_controls: tuple[Word, ...] = ()
    result: Result = "Not run"
    code: Code = "not_tried"
    reason: Text = ""
    provisional: Verdict | None = None
    by_environment: tuple[InEnvironment, ...] = ()


class RecordRow(_Part):
    """A row of the design records. The fields from `result` on are derived."""

    id: Word
    title: Word
    claims: tuple[Word, ...]
    result: Result = "Not run"
    reason: Text = ""
    provisional: Result | None = None


class RemovedCheck(_Part):
    """A check that a claim no longer expects."""

    check: Word
    revision: int
    reason: Text


class Summary(_Part):
    """Counts over all claims; `core_applying` of `core` claims are promised by the system."""

    core: int
    core_applying: int
    results: dict[Result, int]
    provisional: dict[Result, int] | None = None


class Producer(_Part):
    """Who wrote the file."""

    name: Word
    version: Word


class Evidence(_Part):
    """The whole file. `sha256` is the digest of the rest: it finds accidents; only a signature would find tampering."""

    schema_: Annotated[Literal["leaseproof.evidence/1"], Field(alias="schema")] = SCHEMA
    subject: Subject
    kit: Subject
    producer: Producer
    catalogue_sha256: Sha256
    checks_lock_sha256: Sha256
    not_promised: dict[Word, Text] = {}
    environments: Annotated[tuple[Environment, ...], Field(min_length=1, max_length=100)]
    claims: Annotated[tuple[ClaimRow, ...], Field(max_length=1000)]
    records: Annotated[tuple[RecordRow, ...], Field(max_length=100)]
    removed: Annotated[tuple[RemovedCheck, ...], Field(max_length=10_000)] = ()
    summary: Summary | None = None
    footnotes: Annotated[tuple[Text, ...], Field(max_length=100)] = ()
    started: Time
    finished: Time
    sha256: Sha256 | Literal[""] = ""

    def digest(self) -> str:
        """SHA-256 of everything but `sha256` itself, as canonical JSON."""
        return canonical_sha256(self.model_dump(mode="json", exclude={"sha256"}))

    def sealed(self) -> Self:
        """This evidence with its digest."""
        return self.model_copy(update={"sha256": self.digest()})

    @property
    def text(self) -> str:
        """The file's text."""
        return json.dumps(self.model_dump(mode="json"), indent=1, ensure_ascii=False) + "\n"

    def write(self, path: Path) -> None:
        """Write the file, whole or not at all. Raises OSError."""
        write_text(path, self.text)


def read_evidence(path: Path) -> Evidence:
    """The evidence in this file. Raises BadEvidence."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE + 1)
    except OSError as error:
        raise BadEvidence(f"can't read {path}: {error.strerror}") from error
    if len(data) > MAX_FILE:
        raise BadEvidence(f"{path} is larger than {MAX_FILE // 2**20} MiB; no evidence file is")
    return parse_evidence(data, str(path))


def parse_evidence(data: bytes | str, name: str) -> Evidence:
    """The evidence in this text. Raises BadEvidence, naming `name`."""
    try:
        return Evidence.model_validate_json(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])[:200]
        raise BadEvidence(f"{name} is no {SCHEMA} file: {where + ': ' if where else ''}{first['msg']}") from error


def json_schema() -> dict[str, Any]:
    """The published JSON Schema of the file; evidence/schema.json holds it."""
    schema = Evidence.model_json_schema(mode="serialization", by_alias=True)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": SCHEMA, **schema}


def schema_text() -> str:
    """evidence/schema.json as it has to stand in the tree."""
    return json.dumps(json_schema(), indent=1, ensure_ascii=False) + "\n"


def clip(text: object, length: int = 8000) -> str:
    """`text` cut to what a field takes, and free of what JSON can't hold."""
    cleaned = str(text).encode("utf-8", "backslashreplace").decode()
    return cleaned if len(cleaned) <= length else cleaned[: length - 1] + "…"


def utc(text: object) -> datetime | None:
    """The time that a log gives, or None where it gives none."""
    try:
        time = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return time.astimezone(UTC) if time.tzinfo else None
