"""Secrets don't reach a file; what only looks like one stays readable."""

import time

import pytest

from leaseproof.evidence.redact import MASK, redact, redact_json

SECRET = "s3cr3t-Value"


@pytest.mark.parametrize(
    "text",
    [
        f"postgresql://user:{SECRET}@host:5432/db",
        f"postgresql+psycopg://user:{SECRET}/with:all@signs@host/db?sslmode=require",
        f"redis://:{SECRET}@host:6379/0",
        f"https://{SECRET}@host/path",
        f"postgresql://host/db?user=u&password={SECRET}&x=1",
        f"host=h user=u password={SECRET} dbname=d",
        f"host=h password = '{SECRET} and \\' more' user=u",
        f"PGPASSWORD={SECRET} psql",
        f"AWS_SECRET_ACCESS_KEY_SECRET={SECRET}",
        f'{{"api_key": "{SECRET}", "x": 1}}',
        f"{{'db_password': '{SECRET}'}}",
        f"Authorization: Bearer {SECRET}",
        f"curl -H 'authorization: Basic {SECRET}'",
        f"Bearer {SECRET}0123456789",
        "ghp_0123456789abcdefghijABCDEFGHIJ" + SECRET.replace("-", ""),
        f"-----BEGIN RSA PRIVATE KEY-----\n{SECRET}\n-----END RSA PRIVATE KEY-----",
        f"-----BEGIN PRIVATE KEY-----\n{SECRET} cut off",
    ],
)
def test_a_secret_is_masked(text: str) -> None:
    masked = redact(text)
    assert SECRET not in masked
    assert SECRET.replace("-", "") not in masked
    assert MASK in masked


@pytest.mark.parametrize(
    "text",
    [
        "owner_token=w1-4f2a, worker_id=w1",
        "the token w1-4f2a has a closed attempt",
        "postgresql://user@host/db",
        "bypass=True compass = north",
        "55P03: could not obtain lock on row in relation agent_runs",
        "id: 'r-1' status: 'running'",
        "password authentication failed for user u",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert redact(text) == text


def test_what_stands_around_a_secret_stays() -> None:
    assert redact(f"at postgresql://u:{SECRET}@h/db, then x") == f"at postgresql://u:{MASK}@h/db, then x"


def test_known_secrets_are_masked_wherever_they_stand() -> None:
    assert redact("a b-c b", ["b", "b-c", ""]) == f"a {MASK} {MASK}"


def test_json_is_masked_by_key_and_by_text() -> None:
    value = {"password": 7, "dsn": [f"redis://:{SECRET}@h"], "ok": None, "secret": None}
    assert redact_json(value) == {"password": MASK, "dsn": [f"redis://:{MASK}@h"], "ok": None, "secret": None}


@pytest.mark.parametrize("text", ["a_" * 50_000, "password" * 10_000, "://" * 20_000, "'" * 50_000, "x://a:" * 10_000])
def test_no_text_takes_long(text: str) -> None:
    began = time.process_time()
    redact(text)
    assert time.process_time() - began < 5
