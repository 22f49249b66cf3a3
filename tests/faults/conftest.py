"""One bench for all cells of the crash table: an engine for each would be most of the time."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator

import pytest

from orchestrator.faults import CellReport, CrashBench, CrashCell


def pytest_collection_finish(session: pytest.Session) -> None:
    """The leak check collects garbage after every test: let it skip what was there before the first."""
    gc.collect()
    gc.freeze()


class SharedBench:
    """Runs cells one after the other, in a loop of its own."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self._bench = CrashBench()
        self._runner.run(self._bench.__aenter__())

    def run(self, cell: CrashCell) -> CellReport:
        return self._runner.run(self._bench.run(cell))

    def close(self) -> None:
        self._runner.run(self._bench.__aexit__(None, None, None))
        self._runner.close()


@pytest.fixture(scope="module")
def bench() -> Iterator[SharedBench]:
    shared = SharedBench()
    yield shared
    shared.close()
