"""The reference's behaviours, one row each, with ours beside them.

What the reference does was measured: each row's script ran on its published engine, and `Row.reference` is what came
back. `Row.ours` is what this engine must do. The relation of the two is computed, not claimed: a row is ``SAME`` when
both outcomes are equal, and any other row says in words what differs and why.

Two differences hold for every failure and are left out of the rows: the reference appends its own stack, with the
host's paths, where this engine appends the author's line and a caret; and this engine's results carry a code.

``python -m tests.contract.reference_table`` prints the table.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

Kind = Literal["completed", "error", "cancelled", "refused"]


class Relation(Enum):
    """Ours, seen from the reference."""

    SAME = "same"
    STRICTER = "stricter"
    """Refuses, checks or orders what the reference lets through."""
    BEYOND = "beyond"
    """Works, or explains itself, where the reference fails or stays vague."""


class Outcome(NamedTuple):
    """How a script ended, as far as a host can tell.

    ``text`` is the first line of the error, without its place. ``started`` is the result's count of agents, ``ends``
    the outcome of each announced agent, ``late`` whether agent events came after ``workflow/end``.
    """

    kind: Kind
    value: Any = None
    text: str = ""
    started: int = 0
    ends: tuple[str, ...] = ()
    late: bool = False

    def words(self) -> str:
        """The outcome as a sentence."""
        agents = {0: "", 1: ", 1 agent"}.get(self.started, f", {self.started} agents")
        announced = "" if len(self.ends) == self.started else f" ({len(self.ends)} announced)"
        late = ", agent events after the end" if self.late else ""
        match self.kind:
            case "completed":
                how = f"completes with {json.dumps(self.value, ensure_ascii=True)}"
            case "refused":
                how = f"is refused before the run: {self.text}"
            case "cancelled":
                how = f"is cancelled: {self.text}"
            case "error":
                how = f"fails: {self.text}"
        return how + agents + announced + late


class Setup(NamedTuple):
    """What a row needs beside its script.

    ``act`` does something to the run when the named event comes, or ``before`` the start, ``now`` that it has started,
    or ``after`` its result.
    """

    config: Mapping[str, Any] = MappingProxyType({})
    request: Mapping[str, Any] = MappingProxyType({})
    act: tuple[str, Literal["cancel", "abort", "dispose"]] | None = None
    reason: str | None = "because"


class Row(NamedTuple):
    """One behaviour."""

    name: str
    script: Any
    ours: Outcome
    reference: Outcome
    relation: Relation = Relation.SAME
    note: str = ""
    setup: Setup = Setup()


def same(name: str, script: str, outcome: Outcome, setup: Setup | None = None) -> Row:
    return Row(name, script, outcome, outcome, setup=setup or Setup())


def completed(value: Any = None, *ends: str, started: int | None = None, late: bool = False) -> Outcome:
    return Outcome("completed", value, started=len(ends) if started is None else started, ends=ends, late=late)


def failed(text: str, *ends: str, started: int | None = None, late: bool = False) -> Outcome:
    return Outcome("error", text=text, started=len(ends) if started is None else started, ends=ends, late=late)


def cancelled(text: str, *ends: str, started: int | None = None, late: bool = False) -> Outcome:
    count = len(ends) if started is None else started
    return Outcome("cancelled", text=f"workflow run cancelled: {text}", started=count, ends=ends, late=late)


def refused(text: str) -> Outcome:
    return Outcome("refused", text=text)


def unserialisable(why: str) -> Outcome:
    """The text both engines give for a value that cannot leave."""
    return fatal(
        f"the workflow's return value is not plain JSON data — workflow result{why}. "
        "Return only JSON-serializable objects/arrays/scalars."
    )


def fatal(text: str, *ends: str, started: int | None = None, late: bool = False) -> Outcome:
    """A `WorkflowError` the script did not catch."""
    return failed(f"WorkflowError: {text}", *ends, started=started, late=late)


def table() -> tuple[Row, ...]:
    """All rows."""
    from tests.contract import reference_calls, reference_runs, reference_values

    return (*reference_values.ROWS, *reference_calls.ROWS, *reference_runs.ROWS)


def markdown() -> str:
    """The table as text."""
    lines = ["| behaviour | relation | here | the reference | why |", "|---|---|---|---|---|"]
    for row in table():
        reference = "the same" if row.relation is Relation.SAME else row.reference.words()
        cells = (row.name, row.relation.value, row.ours.words(), reference, row.note)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(markdown())
