"""Session logs, in memory and in SQLite: append-only, isolated, and checked on append and on load."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.sessions import (
    DEFAULT_RULES,
    AgentStartRecord,
    IllegalHistory,
    MemorySessionLog,
    MemorySessionStore,
    RunEndRecord,
    SessionClosed,
    SessionError,
    SessionStore,
    SqliteSessionStore,
    ToolCallRecord,
    decode_record,
    encode_record,
)

History = list[tuple[str, Any]]
RUN_START, AGENT_START = "tool-workflow/run-start", "tool-workflow/agent-start"
AGENT_END, RUN_END = "tool-workflow/agent-end", "tool-workflow/run-end"


def start(run: str = "r", **data: Any) -> tuple[str, Any]:
    return RUN_START, {"runId": run, "name": "demo", **data}


def member(seq: Any, run: str = "r", **data: Any) -> tuple[str, Any]:
    return AGENT_START, {"runId": run, "seq": seq, "label": "l", "childId": "c", **data}


def member_end(seq: Any, run: str = "r", outcome: Any = "completed") -> tuple[str, Any]:
    return AGENT_END, {"runId": run, "seq": seq, "outcome": outcome}


def end(run: str = "r", reason: Any = "completed") -> tuple[str, Any]:
    return RUN_END, {"runId": run, "stopReason": reason}


def call(call_id: Any = "c", **data: Any) -> tuple[str, Any]:
    return "tool/call", {"callId": call_id, "tool": "workflow", "card": {"title": "t"}, **data}


def result(call_id: str = "c", status: Any = "completed", content: Any = ()) -> tuple[str, Any]:
    return "tool/result", {"callId": call_id, "status": status, "content": list(content)}


LEGAL: dict[str, History] = {
    "nothing": [],
    "a whole run": [start(), member(1, phase="p"), member(2), member_end(2, outcome="failed"), member_end(1), end()],
    "a run without members": [start(), end(reason="error")],
    "interrupted after the start": [start()],
    "interrupted with open members": [start(), member(1), member(2), member_end(1, outcome="cancelled")],
    "two runs interleaved": [start("a"), start("b"), member(1, "b"), member(1, "a"), member_end(1, "b"), end("b")],
    "a call around a run": [call(), start(), end(), result()],
    "an interrupted call": [call(), start(), member(1)],
    "a call that failed before it ran": [
        call(),
        result(status="failed", content=[{"type": "text", "text": "Error: x"}]),
    ],
    "events of other families": [("my/event", {"anything": [1]}), start(), ("my/event", {})],
}

ILLEGAL: dict[str, tuple[History, str]] = {
    "a repeated start": ([start(), start()], "repeats run r"),
    "a repeated start after the end": ([start(), end(), start()], "repeats run r"),
    "a member of no run": ([member(1)], "of run r, which never started"),
    "a member's end of no run": ([member_end(1)], "of run r, which never started"),
    "an end of no run": ([end()], "of run r, which never started"),
    "a member of another run": ([start("a"), member(1, "b")], "of run b, which never started"),
    "an end without its start": ([start(), member_end(1)], "of member 1 of run r, which never started"),
    "a member that starts twice": ([start(), member(1), member(1)], "repeats member 1 of run r"),
    "a member that starts again": ([start(), member(1), member_end(1), member(1)], "repeats member 1 of run r"),
    "a member that ends twice": ([start(), member(1), member_end(1), member_end(1)], "ends member 1 of run r twice"),
    "a run that ends too early": ([start(), member(1), member(2), member_end(1), end()], "members [2] are open"),
    "a member after the end": ([start(), end(), member(1)], "after its end"),
    "a member's end after the end": ([start(), member(1), member_end(1), end(), member_end(1)], "after its end"),
    "a second end": ([start(), end(), end()], "after its end"),
    "an unknown record": ([start(), ("tool-workflow/agent-pause", {"runId": "r"})], "not a kind of workflow record"),
    "a call id used twice": ([call(), call()], "repeats call c"),
    "a call id used again": ([call(), result(), call()], "repeats call c"),
    "a result of no call": ([result()], "of call c, which never started"),
    "a second result": ([call(), result(), result()], "settles call c twice"),
    "a start without a run id": ([(RUN_START, {"name": "n"})], "missing required field `runId`"),
    "an empty run id": ([start("")], "length >= 1"),
    "a run id that is no string": ([(RUN_START, {"runId": 1, "name": "n"})], "Expected `str`"),
    "a start without a name": ([(RUN_START, {"runId": "r"})], "missing required field `name`"),
    "an empty name": ([start(name="")], "length >= 1"),
    "seq zero": ([start(), member(0)], "`int` >= 1"),
    "a negative seq": ([start(), member(-1)], "`int` >= 1"),
    "a fractional seq": ([start(), member(1.5)], "Expected `int`"),
    "a boolean seq": ([start(), member(True)], "Expected `int`"),
    "a seq beyond safe integers": ([start(), member(2**53)], "`int` <= 9007199254740991"),
    "a seq that is a string": ([start(), member("1")], "Expected `int`"),
    "a label that is null": ([start(), member(1, label=None)], "Expected `str`"),
    "a phase that is null": ([start(), member(1, phase=None)], "Expected `str`"),
    "an empty child id": ([start(), member(1, childId="")], "length >= 1"),
    "an unknown outcome": ([start(), member(1), member_end(1, outcome="lost")], "Invalid enum value 'lost'"),
    "an unknown stop reason": ([start(), end(reason="done")], "Invalid enum value 'done'"),
    "a result of unknown status": ([call(), result(status="cancelled")], "Invalid enum value 'cancelled'"),
    "a call without a card": ([("tool/call", {"callId": "c", "tool": "t"})], "missing required field `card`"),
}  # fmt: skip


@pytest.fixture(params=["memory", "sqlite"])
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], Any]]:
    opened: list[SqliteSessionStore] = []
    memory = MemorySessionStore(DEFAULT_RULES)

    def make() -> SessionStore:
        if request.param == "memory":
            return memory
        opened.append(SqliteSessionStore(tmp_path / "sessions.db", DEFAULT_RULES))
        return opened[-1]

    yield make
    for store in opened:
        store.close()


@pytest.mark.parametrize("name", LEGAL)
def test_a_legal_history_is_kept_as_it_was_written_and_opens_again(name: str, open_store: Callable[[], Any]) -> None:
    log = open_store().open("s")
    for kind, data in LEGAL[name]:
        log.append(kind, data)
    log.close()
    again = open_store().open("s")
    assert [(event.type, event.data) for event in again.events] == LEGAL[name]
    assert [event.position for event in again.events] == list(range(1, len(LEGAL[name]) + 1))


@pytest.mark.parametrize("name", ILLEGAL)
def test_an_illegal_event_is_refused_on_append_and_changes_nothing(name: str, open_store: Callable[[], Any]) -> None:
    history, rule = ILLEGAL[name]
    log = open_store().open("s")
    for kind, data in history[:-1]:
        log.append(kind, data)
    with pytest.raises(IllegalHistory) as refused:
        log.append(*history[-1])
    assert rule in str(refused.value)
    assert f"session 's', event {len(history)}" in str(refused.value)
    assert len(log.events) == len(history) - 1
    log.append("my/event", {"goes": "on"})
    assert len(open_store().open("s").events) == len(history)


@pytest.mark.parametrize("name", ILLEGAL)
def test_an_illegal_history_is_refused_on_load(name: str, tmp_path: Path) -> None:
    history, rule = ILLEGAL[name]
    path = tmp_path / "sessions.db"
    with SqliteSessionStore(path) as unchecked:
        log = unchecked.open("s")
        for kind, data in history:
            log.append(kind, data)
    with SqliteSessionStore(path, DEFAULT_RULES) as store:
        with pytest.raises(IllegalHistory) as refused:
            store.open("s")
        assert rule in str(refused.value)
        assert store.open("another").events == ()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from([event for history in LEGAL.values() for event in history]), max_size=12))
def test_what_the_rules_let_in_event_by_event_is_what_they_let_in_on_load(history: History) -> None:
    log = MemorySessionLog("s", DEFAULT_RULES)
    for kind, data in history:
        try:
            log.append(kind, data)
        except IllegalHistory:
            continue
    again = MemorySessionLog("s", DEFAULT_RULES)
    for event in log.events:
        again.append(event.type, event.data)
    assert again.events == log.events


@pytest.mark.parametrize(
    "data",
    [None, [1], "text", {"x": object()}, {"x": float("nan")}, {"x": {1, 2}}],
    ids=["null", "array", "string", "object", "nan", "set"],
)
def test_data_that_is_no_json_object_is_refused(data: Any, open_store: Callable[[], Any]) -> None:
    log = open_store().open("s")
    with pytest.raises(IllegalHistory):
        log.append("my/event", data)
    with pytest.raises(IllegalHistory, match="needs a type"):
        log.append("", {})
    assert log.events == ()


def test_stored_data_shares_nothing_with_the_callers_object(open_store: Callable[[], Any]) -> None:
    log = open_store().open("s")
    data = {"list": [1], "text": "half \ud83d"}
    event = log.append("my/event", data)
    data["list"].append(2)  # type: ignore[union-attr]
    assert event.data == {"list": [1], "text": "half \ud83d"}
    assert log.events[0] == event


def test_a_closed_log_takes_no_more_and_stays_readable(open_store: Callable[[], Any]) -> None:
    log = open_store().open("s")
    log.append("my/event", {})
    log.close()
    log.close()
    with pytest.raises(SessionClosed, match="open it again"):
        log.append("my/event", {})
    assert len(log.events) == 1


def test_an_open_session_is_one_log_and_the_ids_are_in_order(open_store: Callable[[], Any]) -> None:
    store = open_store()
    first = store.open("b")
    store.open("a")
    assert store.open("b") is first
    assert store.ids() == ("b", "a")


def test_a_session_needs_an_id(open_store: Callable[[], Any]) -> None:
    with pytest.raises(SessionError, match="non-empty"):
        open_store().open("")


def test_typed_records_and_their_json_are_two_forms_of_one_thing() -> None:
    record = AgentStartRecord(run_id="r", seq=1, label="l", child_id="c")
    assert encode_record(record) == (AGENT_START, {"runId": "r", "seq": 1, "label": "l", "childId": "c"})
    log = MemorySessionLog("s")
    for one in (record, RunEndRecord(run_id="r", stop_reason="error"), ToolCallRecord(call_id="c", tool="t", card={})):
        assert decode_record(log.append(*encode_record(one))) == one
    assert decode_record(log.append("my/event", {})) is None


# ------------------------------------------------------------------------------------------------- SQLite alone


def test_the_file_is_in_write_ahead_mode_and_knows_its_format(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    with SqliteSessionStore(path, durable=True), closing(sqlite3.connect(path)) as other:
        assert other.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert other.execute("PRAGMA user_version").fetchone() == (1,)


def test_a_second_writer_of_one_session_is_refused_and_the_first_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    with SqliteSessionStore(path) as one, SqliteSessionStore(path) as two:
        mine, theirs = one.open("s"), two.open("s")
        mine.append("my/event", {"n": 1})
        with pytest.raises(SessionError, match="another writer, which appended event 1 first"):
            theirs.append("my/event", {"n": 2})
        assert theirs.events == ()
        mine.append("my/event", {"n": 3})
        two.open("different").append("my/event", {"n": 4})
        theirs.close()
        assert [event.data["n"] for event in two.open("s").events] == [1, 3]


def test_a_file_another_process_holds_is_an_error_within_the_busy_timeout(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    with SqliteSessionStore(path, busy_timeout=0) as store, closing(sqlite3.connect(path)) as other:
        log = store.open("s")
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(SessionError, match="cannot be written: database is locked"):
            log.append("my/event", {"n": 1})
        other.execute("ROLLBACK")
        assert log.append("my/event", {"n": 2}).position == 1


def test_a_store_that_was_closed_says_so(tmp_path: Path) -> None:
    store = SqliteSessionStore(tmp_path / "sessions.db")
    log = store.open("s")
    store.close()
    store.close()
    with pytest.raises(SessionClosed):
        log.append("my/event", {})
    with pytest.raises(SessionClosed):
        store.open("s")


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"this is no database, it is a text file" * 50, "cannot be used: file is not a database"), (None, "newer")],
)
def test_a_file_of_another_kind_is_refused_without_its_path(
    tmp_path: Path, content: bytes | None, message: str
) -> None:
    path = tmp_path / "sessions.db"
    if content is None:
        with closing(sqlite3.connect(path)) as other:
            other.execute("PRAGMA user_version=9")
        message = "has format 9, this version reads up to 1"
    else:
        path.write_bytes(content)
    with pytest.raises(SessionError, match=message) as refused:
        SqliteSessionStore(path)
    assert str(tmp_path) not in str(refused.value)


@pytest.mark.parametrize("path", ["", ":memory:"])
def test_a_store_without_a_file_is_refused(path: str) -> None:
    with pytest.raises(SessionError, match="MemorySessionStore"):
        SqliteSessionStore(path)


@pytest.mark.parametrize("text", ["{", "[1]", "null", '"x"', ""])
def test_damaged_data_is_found_on_load(tmp_path: Path, text: str) -> None:
    path = tmp_path / "sessions.db"
    with SqliteSessionStore(path) as store:
        store.open("s").append("my/event", {})
    with closing(sqlite3.connect(path)) as other:
        other.execute("UPDATE events SET data = ?", (text,))
        other.commit()
    with SqliteSessionStore(path) as store, pytest.raises(IllegalHistory, match="event 1: data is damaged"):
        store.open("s")


def test_a_missing_event_is_found_on_load(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    with SqliteSessionStore(path) as store:
        for number in range(3):
            store.open("s").append("my/event", {"n": number})
    with closing(sqlite3.connect(path)) as other:
        other.execute("DELETE FROM events WHERE position = 2")
        other.commit()
    with SqliteSessionStore(path) as store, pytest.raises(SessionError, match="event 2 is missing"):
        store.open("s")


def test_an_event_is_stored_before_append_returns(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    with SqliteSessionStore(path) as store, closing(sqlite3.connect(path)) as other:
        store.open("s").append("my/event", {"n": 1})
        (text,) = other.execute("SELECT data FROM events").fetchone()
        assert json.loads(text) == {"n": 1}
