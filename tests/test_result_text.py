"""The text of a value that leaves the script is made by JSON.stringify from a copy: the script is not asked."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator import EngineConfig
from tests.support import run_script

CASES: dict[str, tuple[str, Any]] = {
    "toJSON on the prototype of arrays": (
        "Array.prototype.toJSON = () => 'mine'; return [[1], {a: [2, []]}]",
        [[1], {"a": [2, []]}],
    ),
    "toJSON on the prototype of objects": (
        "Object.prototype.toJSON = () => 'mine'; return {a: [{b: 1}], c: {}}",
        {"a": [{"b": 1}], "c": {}},
    ),
    "toJSON inherited by arrays from a new prototype": (
        "const parent = {toJSON: () => 'mine'}; Object.setPrototypeOf(Array.prototype, parent); return [[0, 1, 2]]",
        [[0, 1, 2]],
    ),
    "setters for indices": (
        "for (let i = 0; i < 9; i++) Object.defineProperty(Array.prototype, i, {set() {}, configurable: true});"
        " return [[], [1], [1, 2], [1, 2, 3, 4], [1, 2, 3, 4, 5, 6]]",
        [[], [1], [1, 2], [1, 2, 3, 4], [1, 2, 3, 4, 5, 6]],
    ),
    "a getter is read once": (
        "let n = 0; return {get a() { return ++n; }, list: [{get b() { return ++n; }}]}",
        {"a": 1, "list": [{"b": 2}]},
    ),
    "a getter that puts toJSON up while it is read": (
        "return {get a() { Object.prototype.toJSON = () => 'mine'; return [1]; }, b: [2]}",
        {"a": [1], "b": [2]},
    ),
    "lone surrogates in values and keys": (
        r"return {['k\ud83d']: ['\ud83d', 'x\udc00y', '😀'], n: {deep: ['😀'.slice(0, 1)]}}",
        {"k�": ["�", "x�y", "😀"], "n": {"deep": ["�"]}},
    ),
    "text that looks like an escaped surrogate": (
        r"return ['\\ud83d', 'C:\\users\\udo']",
        ["\\ud83d", "C:\\users\\udo"],
    ),
    "a __proto__ of its own": (
        'return JSON.parse(\'{"__proto__": {"a": 1}, "b": [2]}\')',
        {"__proto__": {"a": 1}, "b": [2]},
    ),
    "own toJSON data": ("return {toJSON: 'text', a: {toJSON: [1]}}", {"toJSON": "text", "a": {"toJSON": [1]}}),
    "one object twice": ("const x = {a: [1]}; return [x, x, {x}]", [{"a": [1]}, {"a": [1]}, {"x": {"a": [1]}}]),
    "numbers": ("return [-0, 2 ** 53, 1e21, 0.1, 5e-324, 1e400 > 0]", [0, 2**53, 1e21, 0.1, 5e-324, True]),
    "key order": ("return Object.entries({b: 1, 2: 1, a: 1, 1: 1}).map(([k]) => k)", ["1", "2", "b", "a"]),
}


@pytest.mark.parametrize("name", CASES)
def test_what_crosses_is_the_value_itself(name: str) -> None:
    script, expected = CASES[name]
    result = run_script(script).result
    assert (result.error, result.value) == (None, expected)


def test_keys_keep_their_order() -> None:
    result = run_script("return {z: 1, a: {y: 1, b: 2}, 7: 3}").result
    assert list(result.value) == ["7", "z", "a"]
    assert list(result.value["a"]) == ["y", "b"]


@pytest.mark.parametrize("body", ["'x'.repeat(70000)", "Array(40000).fill(1)", "{['k'.repeat(70000)]: 1}"])
def test_a_value_over_the_limit_is_refused_by_name(body: str) -> None:
    result = run_script(f"return {body}", config=EngineConfig(max_frame=64 * 1024, spare_workers=0)).result
    assert result.code == "RESULT_UNSERIALIZABLE"
    assert "workflow result is over the limit of 65536 bytes" in (result.error or "")
