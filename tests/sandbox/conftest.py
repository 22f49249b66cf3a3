"""One escape server per user for all tests of the sandbox: root where the tests are root, and an unprivileged user."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest

from tests.sandbox.escape_harness import NOBODY, Server

_servers: dict[str, Server] = {}


def _server(user: str) -> Server:
    if user not in _servers:
        _servers[user] = Server(NOBODY if user == "unprivileged" and os.geteuid() == 0 else None)
    return _servers[user]


@pytest.fixture(scope="session", params=["root", "unprivileged"])
def server(request: pytest.FixtureRequest) -> Server:
    """The escape server, once as root and once as an unprivileged user."""
    if sys.platform != "linux":
        pytest.skip("the walls are Linux's")
    if request.param == "root" and os.geteuid() != 0:
        pytest.skip("the tests do not run as root")
    return _server(request.param)


@pytest.fixture(scope="session")
def unprivileged() -> Server:
    """The escape server as an unprivileged user alone, for what takes long and does not depend on the user."""
    if sys.platform != "linux":
        pytest.skip("the walls are Linux's")
    return _server("unprivileged")


@pytest.fixture(scope="session", autouse=True)
def _stop_servers() -> Iterator[None]:
    yield
    for server in _servers.values():
        server.close()
    _servers.clear()
