"""Every behaviour of the reference, on this engine: the same, stricter, or beyond."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.conftest import run_async
from tests.contract.bench import Bench, normal
from tests.contract.reference_table import Outcome, Relation, Row, markdown, table

ROWS = table()


@pytest.fixture(scope="module")
def observed() -> dict[str, Outcome | BaseException]:
    """Every row's outcome, run once for the module."""

    async def main() -> dict[str, Outcome | BaseException]:
        outcomes: dict[str, Outcome | BaseException] = {}
        async with Bench() as bench:
            for row in ROWS:
                try:
                    outcomes[row.name] = await bench.observe(row)
                except Exception as error:
                    outcomes[row.name] = error  # raised by the row's own test
        return outcomes

    return run_async(main())


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.name} is {row.relation.value}")
def test_the_reference_beside_ours(row: Row, observed: dict[str, Outcome | BaseException]) -> None:
    outcome = observed[row.name]
    if isinstance(outcome, BaseException):
        raise outcome
    print(f"{row.name} is {row.relation.value}: here it {outcome.words()}; in the reference it {row.reference.words()}")
    assert normal(outcome) == normal(row.ours)
    if row.relation is Relation.SAME:
        assert normal(outcome) == normal(row.reference)
    else:
        assert normal(outcome) != normal(row.reference)


def test_the_table_is_complete_and_every_difference_is_explained() -> None:
    assert len(ROWS) == len({row.name for row in ROWS}) == 144
    assert [row.name for row in ROWS if (row.relation is Relation.SAME) != (row.note == "")] == []
    counts = Counter(row.relation for row in ROWS)
    assert min(counts[relation] for relation in Relation) > 0
    assert markdown().count("\n") == 144 + 1


def test_no_row_names_a_path_of_a_machine() -> None:
    assert [row.name for row in ROWS if "/tmp" in repr(row) or "file://" in repr(row) or "/home" in repr(row)] == []
