"""The address of a given server may hold a password, so no message shows it, well formed or not."""

import pytest
from typer.testing import CliRunner

from leaseproof.cli.app import app
from leaseproof.evidence import redact
from leaseproof.servers import roles
from leaseproof.servers.errors import ServersError

SECRET = "hunter2"


@pytest.fixture(autouse=True)
def _nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redact, "_known", set())


@pytest.mark.parametrize(
    "dsn",
    [
        f"host=127.0.0.1 port=1 password=two {SECRET}",
        f"host=127.0.0.1 port=1 password='{SECRET}",
        f"postgresql://u:p@{SECRET}@127.0.0.1:1/d",
        f"postgresql://u:{SECRET}/2@127.0.0.1:1/d",
        f"postgresql://u:2#{SECRET}@127.0.0.1:1/d",
        f"postgresql://u:two {SECRET}@127.0.0.1:1/d",
        f"postgresql://u:%zz{SECRET}@127.0.0.1:1/d",
    ],
)
def test_an_address_that_can_not_be_read_is_not_shown(dsn: str) -> None:
    with pytest.raises(ServersError, match="address given by --dsn can't be read") as found:
        roles.connect(dsn, "test")
    assert SECRET not in str(found.value)


@pytest.mark.parametrize(
    "dsn", ["host=127.0.0.1 port=1", f"postgresql://u:{SECRET}%40x@127.0.0.1:1/d?connect_timeout=1"]
)
def test_an_address_that_can_be_read_is_tried(dsn: str) -> None:
    with pytest.raises(ServersError, match=r"127\.0\.0\.1") as found:
        roles.connect(dsn, "test")
    assert SECRET not in str(found.value)


@pytest.mark.parametrize("option", ["--dsn", "--redis-url"])
def test_a_message_that_repeats_a_given_password_is_masked(option: str) -> None:
    done = CliRunner().invoke(app, ["doctor", option, f"x://u:{SECRET}@h/d", "--pg-bin", f"/nowhere/{SECRET}/bin"])
    assert done.exit_code == 0
    assert SECRET not in done.output
