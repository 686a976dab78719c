"""Secrets taken out of texts before anything is written. Owns what counts as a secret; must not write.

Passwords in URLs and connection strings, values of names that say secret, bearer tokens, and the well-known forms of
keys. The lease tokens of runs are no secrets: they say who owned what, and stay. A pattern is a net for accidents; the
passwords of given servers are known, so they are taken out wherever they stand as a word.
"""

import os
import re
from collections.abc import Iterable
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from psycopg import ProgrammingError
from psycopg.conninfo import conninfo_to_dict

MASK: Final = "***"

_ADDRESSES: Final = ("LEASEPROOF_DSN", "LEASEPROOF_REDIS_URL")
"""Variables that hold the addresses of given servers, in the command and in every process of a run."""

_OF_A_RUN: Final = r"(?!(?:\w{0,40}_)?(?:owner|lease|run|new|old|spent|first|second)_token\b)"
_KEY: Final = (
    r"(?!test_)(?:"
    # DB_PASS, AWS_SECRET_ACCESS_KEY: a variable of the environment
    r"(?-i:[A-Z0-9_]{0,40}?(?:PASS|PWD|SECRET|TOKEN|KEY|CREDENTIAL)[A-Z0-9_]{0,40})"
    r"|\w{0,40}?(?:password|passwd|secret|credential)\w{0,20}"
    r"|(?:\w{0,40}_)?(?:pass|pwd|passphrase)"
    rf"|{_OF_A_RUN}\w{{1,40}}[_\-]token"
    r"|\w{0,40}?(?:api|access|auth|private|signing|encryption|session|master|account|storage|service)[_\-]?(?:key|token)"
    r")"
)
_QUOTED: Final = r"[bBrRuUfFeE]{0,2}(?:'(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.|\"\")*\")"
_WRAPPED: Final = r"[\w.]{1,60}\([^()\n]{0,500}\)|<[^<>\n]{1,500}>"
_BARE: Final = r"(?:[^\s&;,'\"]|['\"](?=\w)|,(?=[^\s'\"]))+"
_NOTHING: Final = r"(?!(?:None|null|True|False)\b)"

_NAMES_A_SECRET: Final = re.compile(rf"{_KEY}|token", re.IGNORECASE)

_PATTERNS: Final = tuple(
    (re.compile(pattern, re.IGNORECASE | re.DOTALL), replacement)
    for pattern, replacement in (
        (
            r"-----BEGIN [A-Z0-9 ]{0,20}PRIVATE KEY[A-Z ]{0,10}-----.*?"
            r"(?:-----END [A-Z0-9 ]{0,20}PRIVATE KEY[A-Z ]{0,10}-----|\Z)",
            MASK,
        ),
        # scheme://user:password@host; a password may hold / : and @, so it ends at the last @ of the word
        (r"([a-z][a-z0-9+.\-]{0,30}://[^\s:/@?#'\"]{0,200}):[^\s'\"<>]{1,500}@", rf"\1:{MASK}@"),
        # the same with spaces or quotes in user or password; what looks like a port is none
        (
            r"([a-z][a-z0-9+.\-]{0,30}://[^:/@\n]{0,100}):(?!\d{1,5}(?:[/?\s'\",)]|\Z)|\*\*\*@)"
            r"[^\n]{1,200}?@(?=[\w.\-\[\]]+(?::\d+)?(?:[/?\s'\"]|\Z))",
            rf"\1:{MASK}@",
        ),
        # https://token@host; a bare user name in the address of a database is no secret
        (r"(https?://)[^\s:/@?#'\"]{1,500}@", rf"\1{MASK}@"),
        # password=..., password='...', password=Secret('...'), DB_PASS: ...
        (
            rf"(?<!\w)((?:{_KEY}|(?<=[?&])token)\s{{0,3}}[=:]\s{{0,3}}){_NOTHING}(?:{_QUOTED}|{_WRAPPED}|{_BARE})",
            rf"\1{MASK}",
        ),
        # "password": "..." of JSON and of Python's repr
        (
            rf"(['\"](?:{_KEY}|token)['\"]\s{{0,3}}:\s{{0,3}}){_NOTHING}(?:{_QUOTED}|{_WRAPPED}|[\w.+\-]+)",
            rf'\1"{MASK}"',
        ),
        # PASSWORD '...' of SQL
        (rf"\b(password\s{{1,3}}){_QUOTED}", rf"\1'{MASK}'"),
        # Authorization: Bearer ...
        (r"\b(authorization['\"]?\s{0,3}[:=]\s{0,3}['\"]?(?:bearer|basic|token)\s{1,3})[^\s'\",]+", rf"\1{MASK}"),
        (r"\b(bearer\s{1,3})[a-z0-9._~+/\-]{16,}=*", rf"\1{MASK}"),
        # keys that are known by their form
        (r"\b(?:gh[pousr]_\w{20,}|github_pat_\w{20,}|glpat-[\w\-]{16,}|sk-[\w\-]{16,}|xox[abprs]-[\w\-]{10,})", MASK),
        (r"\b(?-i:A(?:KIA|SIA)[A-Z0-9]{16})\b", MASK),
        (r"\b(?-i:eyJ[\w\-]{5,}\.eyJ[\w\-]{5,}\.[\w\-]*)", MASK),
    )
)

_KEY_MARK: Final = re.compile(r"-----(BEGIN|END) [A-Z0-9 ]{0,20}PRIVATE KEY")
_known: set[str] = set()


def remember(address: str) -> None:
    """Take this connection string or URL, and the password in it, out of every text from here on."""
    passwords = {_password_of_dsn(address), *_passwords_of_url(address)} - {None, ""}
    if passwords:
        _known.update({address, *(one for one in passwords if one)})


def redact(text: str, secrets: Iterable[str] = ()) -> str:
    """`text` without what looks like a secret, and without what is remembered and each value of `secrets`."""
    for secret in sorted({*secrets, *_known}, key=len, reverse=True):
        if secret:
            text = re.sub(rf"(?<!\w){re.escape(secret)}(?!\w)", MASK, text)
    for pattern, replacement in _PATTERNS:
        text = pattern.sub(replacement, text)
    return text


def inside_key(line: str, before: bool) -> bool:
    """Whether a text stands within a private key after this line; `before`: whether it did before it."""
    marks = _KEY_MARK.findall(line)
    return marks[-1] == "BEGIN" if marks else before


def redact_json(value: Any, secrets: Iterable[str] = ()) -> Any:
    """The same for every text in a JSON value; what stands under a key that names a secret is masked whole."""
    secrets = tuple(secrets)
    if isinstance(value, str):
        return redact(value, secrets)
    if isinstance(value, list | tuple):
        return [redact_json(item, secrets) for item in value]
    if isinstance(value, dict):
        return {
            key: MASK if item and _NAMES_A_SECRET.fullmatch(str(key)) else redact_json(item, secrets)
            for key, item in value.items()
        }
    return value


def _password_of_dsn(address: str) -> str | None:
    """As libpq reads it; where it can't, all that follows the word."""
    try:
        found = conninfo_to_dict(address).get("password")
    except ProgrammingError:
        return None if "://" in address else address.partition("password")[2].lstrip(" =") or None
    return None if found is None else str(found)


def _passwords_of_url(address: str) -> set[str | None]:
    """As it stands in a URL, percent signs decoded and not; what only looks like a URL is read as far as it goes."""
    try:
        found = urlsplit(address).password
    except ValueError:
        found = None
    if found is None and "://" in address and "@" in address:
        found = address.partition("://")[2].rpartition("@")[0].partition(":")[2]
    return {found, unquote(found)} if found else set()


for _name in _ADDRESSES:
    remember(os.environ.get(_name, ""))
