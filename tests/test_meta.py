"""`validate_meta`: every violation in one error, a normalised copy, and no other exception whatever is passed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.meta import replace_lone_surrogates, validate_meta
from protocol.errors import ErrorCode, WorkflowError
from protocol.events import PhaseDeclaration, WorkflowMeta

GOOD = {"name": "n", "description": "d"}


def refused(value: object) -> str:
    with pytest.raises(WorkflowError) as caught:
        validate_meta(value)
    assert caught.value.code is ErrorCode.META_INVALID
    assert caught.value.message.startswith("invalid meta: ")
    return caught.value.message.removeprefix("invalid meta: ")


@pytest.mark.parametrize(
    ("value", "violations"),
    [
        (None, ["meta must be an object"]),
        ([], ["meta must be an object"]),
        ("name", ["meta must be an object"]),
        (3, ["meta must be an object"]),
        ({}, ["meta.name must be a non-empty string", "meta.description must be a non-empty string"]),
        ({**GOOD, "name": ""}, ["meta.name must be a non-empty string"]),
        ({**GOOD, "description": None}, ["meta.description must be a non-empty string"]),
        ({**GOOD, "whenToUse": None}, ["meta.whenToUse must be a string"]),
        ({**GOOD, "phases": {}}, ["meta.phases must be an array"]),
        ({**GOOD, "phases": "Review"}, ["meta.phases must be an array"]),
        ({**GOOD, "phases": None}, ["meta.phases must be an array"]),
        ({**GOOD, "phases": ["Review"]}, ["meta.phases[0] must be an object"]),
        ({**GOOD, "phases": [{"title": "a"}, {}]}, ["meta.phases[1].title must be a non-empty string"]),
        (
            {**GOOD, "phases": [{"title": "a", "detail": 1, "model": None, "provider": []}]},
            [
                "meta.phases[0].detail must be a string",
                "meta.phases[0].provider must be a string",
                "meta.phases[0].model must be a string",
            ],
        ),
        ({**GOOD, "phases": [{"title": "a", "tools": 1}]}, ["meta.phases[0].tools is not a recognized field"]),
        (
            {**GOOD, "when_to_use": "x"},
            ["meta.when_to_use is not a recognized field (name/description/whenToUse/phases)"],
        ),
        (
            {"phases": [{"x": 1}], "whenToUse": 1, "b": 1, "name": "", "a": 2},
            [
                "meta.b is not a recognized field (name/description/whenToUse/phases)",
                "meta.a is not a recognized field (name/description/whenToUse/phases)",
                "meta.name must be a non-empty string",
                "meta.description must be a non-empty string",
                "meta.whenToUse must be a string",
                "meta.phases[0].x is not a recognized field",
                "meta.phases[0].title must be a non-empty string",
            ],
        ),
    ],
)
def test_one_error_lists_every_violation_in_the_order_of_the_contract(value: object, violations: list[str]) -> None:
    assert refused(value) == "; ".join(violations)


def test_a_full_meta_is_normalised() -> None:
    phases = [{"title": "A"}, {"title": "B", "detail": "", "provider": "p", "model": "m"}]
    assert validate_meta({**GOOD, "whenToUse": "", "phases": phases}) == WorkflowMeta(
        name="n",
        description="d",
        when_to_use="",
        phases=(PhaseDeclaration(title="A"), PhaseDeclaration(title="B", detail="", provider="p", model="m")),
    )


def test_mappings_tuples_and_a_normalised_meta_are_accepted() -> None:
    expected = WorkflowMeta(name="n", description="d", phases=(PhaseDeclaration(title="A"),))
    frozen = MappingProxyType({**GOOD, "phases": (MappingProxyType({"title": "A"}),)})
    assert validate_meta(frozen) == expected
    assert validate_meta(expected) == expected
    assert validate_meta({**GOOD, "phases": [PhaseDeclaration(title="A")]}) == expected
    assert validate_meta(WorkflowMeta(name="n", description="d", when_to_use="w")).when_to_use == "w"


def test_a_normalised_meta_is_checked_like_any_other() -> None:
    hand_made = WorkflowMeta(name="", description="d", phases=(PhaseDeclaration(title=""),))
    assert refused(hand_made) == "meta.name must be a non-empty string; meta.phases[0].title must be a non-empty string"


def test_what_the_engine_sends_back_as_json_is_accepted_again() -> None:
    meta = validate_meta({**GOOD, "whenToUse": "w", "phases": [{"title": "A", "detail": "x"}]})
    assert validate_meta(msgspec.json.decode(msgspec.json.encode(meta))) == meta


def test_later_changes_of_the_callers_object_do_not_reach_the_copy() -> None:
    phase: dict[str, Any] = {"title": "A"}
    given_meta: dict[str, Any] = {**GOOD, "phases": [phase]}
    meta = validate_meta(given_meta)
    phase["title"] = "B"
    given_meta["name"] = "other"
    given_meta["phases"].clear()
    assert meta == WorkflowMeta(name="n", description="d", phases=(PhaseDeclaration(title="A"),))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("é😀", "é😀"),
        ("\ud83d", "\ufffd"),
        ("a\ude00b", "a\ufffdb"),
        ("\ud83d\ud83d", "\ufffd\ufffd"),
        ("\ud83d\ude00", "😀"),
        ("\ude00\ud83d\ude00\ud83dx", "\ufffd😀\ufffdx"),
    ],
)
def test_lone_surrogates_become_the_replacement_character(text: str, shown: str) -> None:
    assert replace_lone_surrogates(text) == shown
    meta = validate_meta({"name": text, "description": text, "phases": [{"title": text, "detail": text}]})
    assert (meta.name, meta.phases[0].detail) == (shown, shown)


class Shouting(str):
    """A str whose own methods must not run."""

    def __str__(self) -> str:
        raise RuntimeError("ran")

    def encode(self, *_args: object, **_options: object) -> bytes:
        raise RuntimeError("ran")


def test_a_subclass_of_str_ends_as_a_plain_str() -> None:
    meta = validate_meta({"name": Shouting("n"), Shouting("description"): Shouting("dé")})
    assert (type(meta.name), type(meta.description), meta.description) == (str, str, "dé")


class Broken(Mapping[str, object]):
    """A mapping that raises in one of its methods."""

    def __init__(self, where: str) -> None:
        self.where = where

    def _do(self, where: str) -> None:
        if where == self.where:
            raise ZeroDivisionError("secret")

    def __iter__(self) -> Iterator[str]:
        self._do("iter")
        return iter(GOOD)

    def __getitem__(self, key: str) -> object:
        self._do("item")
        return GOOD[key]

    def __len__(self) -> int:
        self._do("len")
        return len(GOOD)


class Unlookable:
    @property
    def __class__(self) -> type:  # type: ignore[override]
        raise ZeroDivisionError("secret")


class UnhashableKey(str):
    __hash__ = None  # type: ignore[assignment]


class Oddly(Mapping[Any, object]):
    """A mapping with an unhashable key."""

    def __iter__(self) -> Iterator[Any]:
        return iter([UnhashableKey("name"), [1]])

    def __getitem__(self, key: Any) -> object:
        return "x"

    def __len__(self) -> int:
        return 2


def deep(levels: int) -> object:
    value: object = "x"
    for _ in range(levels):
        value = [value]
    return value


HOSTILE: dict[str, Callable[[], object]] = {
    "iterating raises": lambda: Broken("iter"),
    "reading raises": lambda: Broken("item"),
    "asking its type raises": Unlookable,
    "an unhashable key": Oddly,
    "a phase that raises": lambda: {**GOOD, "phases": [Broken("iter")]},
    "a phase whose type raises": lambda: {**GOOD, "phases": [Unlookable()]},
    "keys that are no strings": lambda: {1: 2, None: 3, (1, 2): 4, b"name": 5},
    "huge depth": lambda: {**GOOD, "phases": deep(100_000)},
    "a huge key": lambda: {**GOOD, "x" * 10_000_000: 1},
    "a key that would move the cursor": lambda: {**GOOD, "a\n\x1b[31mb\u202e": 1},
    "a number too long to print": lambda: {**GOOD, 10**5000: 1},
    "a hundred thousand phases": lambda: {**GOOD, "phases": [{}] * 100_000},
}


@pytest.mark.parametrize("make", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_object_is_one_short_error_on_one_line(make: Callable[[], object]) -> None:
    text = refused(make())
    assert len(text) < 20_000
    assert text.isprintable()
    assert "secret" not in text


def test_a_mapping_that_only_lies_about_its_length_is_read() -> None:
    assert validate_meta(Broken("len")) == WorkflowMeta(name="n", description="d")


def test_many_violations_are_counted_instead_of_listed() -> None:
    text = refused({**GOOD, "phases": [None] * 250})
    assert text.startswith("meta.phases[0] must be an object; meta.phases[1] must be an object; ")
    assert text.endswith("meta.phases[99] must be an object; … and 150 more")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["name", "description", "whenToUse", "phases", "title", "detail"]), inner)
    ),
    max_leaves=12,
)


@settings(deadline=None)
@given(json_values)
def test_any_json_is_accepted_or_refused_with_the_one_error(value: object) -> None:
    try:
        meta = validate_meta(value)
    except WorkflowError:
        assert refused(value)
    else:
        assert isinstance(value, dict)
        assert meta.name
        assert meta.description
        assert all(phase.title for phase in meta.phases)
