"""Secrets taken out of texts before anything is written. Owns what counts as a secret; must not write.

Passwords in URLs and connection strings, bearer tokens, and the well-known forms of keys. The lease tokens of runs
are no secrets: they say who owned what, and stay. A pattern is a net for accidents; a value that is known to be
secret is better named to `redact` itself.
"""

import re
from collections.abc import Iterable
from typing import Any, Final

MASK: Final = "***"

_KEY: Final = (
    r"(?:\w{0,40}(?:password|passwd|secret|api_?key|access_?token|auth_?token|private_?key)|pass|pwd|passphrase)"
)
_QUOTED: Final = r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\""

_NAMES_A_SECRET: Final = re.compile(_KEY, re.IGNORECASE)

_PATTERNS: Final = tuple(
    (re.compile(pattern, re.IGNORECASE | re.DOTALL), replacement)
    for pattern, replacement in (
        # scheme://user:password@host; a password may hold / : and @, so it ends at the last @ of the word
        (r"([a-z][a-z0-9+.\-]{0,30}://[^\s:/@?#'\"]{0,200}):[^\s'\"<>]{1,500}@", rf"\1:{MASK}@"),
        # https://token@host; a bare user name in the address of a database is no secret
        (r"(https?://)[^\s:/@?#'\"]{1,500}@", rf"\1{MASK}@"),
        # password=..., password='...' of connection strings, queries and environments
        (rf"(?<!\w)({_KEY}\s{{0,3}}=\s{{0,3}})(?:{_QUOTED}|[^\s&;,'\"]+)", rf"\1{MASK}"),
        # "password": "..." of JSON and of Python's repr
        (rf"(['\"]{_KEY}['\"]\s{{0,3}}:\s{{0,3}})(?:{_QUOTED})", rf'\1"{MASK}"'),
        # Authorization: Bearer ...
        (r"\b(authorization['\"]?\s{0,3}[:=]\s{0,3}['\"]?(?:bearer|basic|token)\s{1,3})[^\s'\",]+", rf"\1{MASK}"),
        (r"\b(bearer\s{1,3})[a-z0-9._~+/\-]{16,}=*", rf"\1{MASK}"),
        # keys that are known by their form
        (r"\b(?:gh[pousr]_\w{20,}|github_pat_\w{20,}|glpat-[\w\-]{16,}|sk-[\w\-]{16,}|xox[abprs]-[\w\-]{10,})", MASK),
        (r"\b(?-i:A(?:KIA|SIA)[A-Z0-9]{16})\b", MASK),
        (r"\b(?-i:eyJ[\w\-]{5,}\.eyJ[\w\-]{5,}\.[\w\-]*)", MASK),
        (r"-----BEGIN [A-Z ]{0,20}PRIVATE KEY-----.*?(?:-----END [A-Z ]{0,20}PRIVATE KEY-----|\Z)", MASK),
    )
)


def redact(text: str, secrets: Iterable[str] = ()) -> str:
    """`text` without what looks like a secret, and without each value of `secrets`."""
    for secret in sorted(set(secrets), key=len, reverse=True):
        if secret:
            text = text.replace(secret, MASK)
    for pattern, replacement in _PATTERNS:
        text = pattern.sub(replacement, text)
    return text


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
