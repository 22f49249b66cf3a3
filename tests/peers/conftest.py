"""Fixtures of the tests with real peers."""

from __future__ import annotations

import pytest

from tests.peers.processes import leave_out_neighbours


@pytest.fixture(autouse=True)
def neighbours_are_left_out() -> None:
    """Before any fixture of the test itself starts a process."""
    leave_out_neighbours()
