"""Secrets don't reach a file; what only looks like one stays readable."""

import time

import pytest

from leaseproof.evidence import redact as module
from leaseproof.evidence.redact import MASK, redact, redact_json, remember

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
        f"-----BEGIN PGP PRIVATE KEY BLOCK-----\n{SECRET}\n-----END PGP PRIVATE KEY BLOCK-----",
        f"DB_PASS={SECRET}",
        f"AWS_SECRET_ACCESS_KEY={SECRET}",
        f"SECRET_KEY = '{SECRET}'",
        f"MYSQL_PWD: {SECRET}",
        f"GITHUB_TOKEN={SECRET}",
        f"credentials: {SECRET}",
        f"refresh_token={SECRET}",
        f"https://h/p?token={SECRET}",
        f"password=b'{SECRET}'",
        f"Settings(password=Secret(value='{SECRET}'), x=1)",
        f"password=<Secret '{SECRET}'>",
        f"{{'password': b'{SECRET}'}}",
        f"{{'password': Secret('{SECRET}')}}",
        f"password=a,b'{SECRET}",
        f"ALTER ROLE app PASSWORD '{SECRET}'",
        f"CREATE ROLE app LOGIN PASSWORD 'it''s {SECRET}'",
        f"postgresql://user:my {SECRET}@host/db",
        f"postgresql://user:it's \"{SECRET}@host:5432/db",
        f"can't parse 'postgresql://the user:{SECRET}@host'",
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
        "token_spent: the call was answered",
        "test_a_secret_is_kept: did_not_wait",
        "Key (run_id)=(r-1) already exists. primary_key=True, idempotency_key: a-1",
        "KeyError: 'run_id'",
        "5 passed: run-00001-owner, token: w1-4f2a",
        "password=None, secret: null",
        "redis://host:6379/0 asked by a@b",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert redact(text) == text


def test_what_stands_around_a_secret_stays() -> None:
    assert redact(f"at postgresql://u:{SECRET}@h/db, then x") == f"at postgresql://u:{MASK}@h/db, then x"


def test_known_secrets_are_masked_wherever_they_stand() -> None:
    assert redact("a b-c b", ["b", "b-c", ""]) == f"a {MASK} {MASK}"


@pytest.mark.parametrize(
    "address",
    [
        "postgresql://u:pl%41in words@h/d",
        "host=h user=u password='plAin words'",
        "redis://:plAin words@h:6379/0",
        "redis://u:plAin words@[h:x/0",
    ],
)
def test_the_password_of_a_given_server_is_masked_wherever_it_stands(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_known", set())
    assert redact("said plAin words to it") == "said plAin words to it"
    remember(address)
    assert redact("said plAin words to it") == f"said {MASK} to it"
    assert redact(f"at {address}: wrong") == f"at {MASK}: wrong"
    assert redact("explAin words") == "explAin words"


def test_an_address_without_a_password_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_known", set())
    for address in ("", "postgresql://u@h/d", "host=h", "redis://h:6379/0"):
        remember(address)
        assert redact(f"at {address}") == f"at {address}"


def test_json_is_masked_by_key_and_by_text() -> None:
    value = {"password": 7, "dsn": [f"redis://:{SECRET}@h"], "ok": None, "secret": None}
    assert redact_json(value) == {"password": MASK, "dsn": [f"redis://:{MASK}@h"], "ok": None, "secret": None}


@pytest.mark.parametrize(
    "text",
    [
        "a_" * 50_000,
        "password" * 10_000,
        "://" * 20_000,
        "'" * 50_000,
        "x://a:" * 10_000,
        "PASS" * 20_000,
        "x=" * 40_000,
        "a-token" * 9_000,
    ],
)
def test_no_text_takes_long(text: str) -> None:
    began = time.process_time()
    redact(text)
    assert time.process_time() - began < 5
