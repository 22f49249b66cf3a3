"""What a script finds in its realm: args, the hooks, the ECMAScript built-ins, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

HOOKS = {"agent", "parallel", "pipeline", "phase", "log", "setTimeout", "clearTimeout", "budget", "args"}
ECMASCRIPT = {
    "globalThis",
    "Infinity",
    "NaN",
    "undefined",
    "eval",
    "isFinite",
    "isNaN",
    "parseFloat",
    "parseInt",
    "decodeURI",
    "decodeURIComponent",
    "encodeURI",
    "encodeURIComponent",
    "escape",
    "unescape",
    "AggregateError",
    "Array",
    "ArrayBuffer",
    "BigInt",
    "BigInt64Array",
    "BigUint64Array",
    "Boolean",
    "DataView",
    "Date",
    "Error",
    "EvalError",
    "FinalizationRegistry",
    "Float16Array",
    "Float32Array",
    "Float64Array",
    "Function",
    "Int8Array",
    "Int16Array",
    "Int32Array",
    "Intl",
    "Iterator",
    "JSON",
    "Map",
    "Math",
    "Number",
    "Object",
    "Promise",
    "Proxy",
    "RangeError",
    "ReferenceError",
    "Reflect",
    "RegExp",
    "Set",
    "String",
    "Symbol",
    "SyntaxError",
    "TypeError",
    "Uint8Array",
    "Uint8ClampedArray",
    "Uint16Array",
    "Uint32Array",
    "URIError",
    "WeakMap",
    "WeakRef",
    "WeakSet",
}
INERT = {
    "debuggerGlobal",
    "InternalError",
}  # an emptied object that cannot be deleted, and the class of "too much recursion"

ABSENT = (
    "python",
    "pmEval",
    "XMLHttpRequest",
    "console",
    "WebAssembly",
    "require",
    "module",
    "exports",
    "process",
    "global",
    "window",
    "self",
    "fetch",
    "Buffer",
    "URL",
    "TextEncoder",
    "TextDecoder",
    "Debugger",
    "setInterval",
    "setImmediate",
    "queueMicrotask",
    "structuredClone",
    "importScripts",
    "load",
    "print",
    "quit",
    "read",
    "os",
    "uneval",
    "gc",
    "SharedArrayBuffer",
    "Atomics",
    "performance",
    "crypto",
    "navigator",
    "postMessage",
    "Worker",
    "alert",
    "bootstrap",
    "internalBinding",
    "__filename",
)

WAYS_TO_THE_GLOBAL = {
    "globalThis": "globalThis",
    "this": "this",
    "Function": "Function('return this')()",
    "a constructor of a function": "(() => {}).constructor('return this')()",
    "an async function's constructor": "await (async () => {}).constructor('return this')()",
    "a generator's constructor": "(function* () {}).constructor('return this')().next().value",
    "an async generator's constructor": "(await (async function* () {}).constructor('return this')().next()).value",
    "a hook's constructor": "agent.constructor('return this')()",
    "indirect eval": "(0, eval)('this')",
    "a sloppy call": "(function () { return this })()",
    "a sloppy callback": "[1].map(function () { return this })[0]",
}


def test_the_global_object_holds_the_contract_and_nothing_else(value: Callable[..., Any]) -> None:
    names = set(value("return Object.getOwnPropertyNames(globalThis)"))
    assert names - INERT == HOOKS | ECMASCRIPT
    assert value("return Object.getOwnPropertySymbols(globalThis).map(String)") in ([], ["Symbol(Symbol.toStringTag)"])
    assert value(
        "const p = Object.getPrototypeOf(globalThis); return p === null ? [] : Object.getOwnPropertyNames(p)"
    ) in (
        [],
        value("return Object.getOwnPropertyNames(Object.prototype)"),
    )


@pytest.mark.parametrize("way", WAYS_TO_THE_GLOBAL)
def test_nothing_of_the_host_is_reached_through(way: str, value: Callable[..., Any]) -> None:
    names = ", ".join(f"'{name}'" for name in ABSENT)
    text = f"const g = {WAYS_TO_THE_GLOBAL[way]}; return [g === globalThis, [{names}].filter((name) => name in g)]"
    assert value(text) == [True, []]


@pytest.mark.parametrize(
    "make",
    [
        "eval(CODE)",
        "new Function('return ' + CODE)()",
        "await (async () => {}).constructor('return ' + CODE)()",
        "(function* () {}).constructor('return ' + CODE)().next().value",
    ],
)
def test_made_code_finds_no_more_than_the_script(make: str, value: Callable[..., Any]) -> None:
    code = "[" + ", ".join(f"typeof {name}" for name in ABSENT) + "].filter((kind) => kind !== 'undefined').length"
    assert value(f"const CODE = `{code}`; return {make}") == 0


def test_the_debugger_global_is_an_empty_dead_end(value: Callable[..., Any]) -> None:
    text = """const names = Reflect.ownKeys(debuggerGlobal).map(String);
    return [names.filter((name) => !['Infinity', 'NaN', 'undefined'].includes(name)),
            Object.getPrototypeOf(debuggerGlobal), Object.isExtensible(debuggerGlobal),
            typeof debuggerGlobal.Debugger, typeof debuggerGlobal.constructor]"""
    assert value(text) == [[], None, False, "undefined", "undefined"]


def test_there_are_no_modules(value: Callable[..., Any]) -> None:
    text = "try { await import('fs'); return 'imported' } catch (e) { return e instanceof Error }"
    assert value(text) is True


def test_the_hooks_are_frozen_functions_of_the_realm(value: Callable[..., Any]) -> None:
    text = """return [agent, parallel, pipeline, phase, log, setTimeout, clearTimeout].map((hook) =>
      [typeof hook, Object.isFrozen(hook), hook instanceof Function,
       Object.getPrototypeOf(hook) === Function.prototype])"""
    assert value(text) == [["function", True, True, True]] * 7
    assert value(
        "return ['agent', 'args', 'budget'].map((n) => Object.getOwnPropertyDescriptor(globalThis, n).writable)"
    ) == [
        True,
        True,
        True,
    ]


def test_a_hook_leads_to_no_engine_code_through_its_callers(value: Callable[..., Any]) -> None:
    text = """const seen = [];
    await parallel([function thunk() { try { seen.push(thunk.caller) } catch (e) { seen.push(null) } }]);
    await pipeline([1], function stage() { try { seen.push(stage.caller) } catch (e) { seen.push(null) } });
    setTimeout(function late() { try { seen.push(late.caller) } catch (e) { seen.push(null) } }, 0);
    await new Promise((r) => setTimeout(r, 2));
    return [seen.filter((caller) => caller !== null).length, seen.length]"""
    assert value(text) == [0, 3]


DECLARED = (
    "agent",
    "parallel",
    "pipeline",
    "phase",
    "log",
    "args",
    "budget",
    "setTimeout",
    "result",
    "run",
    "meta",
    "name",
    "body",
    "limits",
    "send",
    "pending",
    "settled",
    "fatal",
    "encode",
    "warnings",
)


@pytest.mark.parametrize("kind", ["const", "let", "var"])
def test_a_script_may_declare_any_name_of_its_own(kind: str, value: Callable[..., Any]) -> None:
    for name in DECLARED:
        assert value(f"{kind} {name} = 7; return {name}") == 7, name
    assert value("function agent() { return 7 } return agent()") == 7
    assert value("class phase {} return typeof phase") == "function"


def test_a_shadowed_hook_is_still_there_as_a_global(value: Callable[..., Any]) -> None:
    assert value("const agent = (p) => globalThis.agent('[' + p + ']'); return await agent('x')") == "ok:[x]"


def test_hooks_may_be_kept_passed_on_and_replaced(value: Callable[..., Any]) -> None:
    text = """const { agent: ask } = globalThis; const old = log; let lines = 0; log = (m) => { lines++; old(m) };
    log('a'); return [await ask('x'), (await Promise.all(['y'].map(agent)))[0] === undefined, lines]"""
    with pytest.raises(AssertionError, match=r"agent\(\) options must be an object"):  # map passes an index as options
        value(text)
    assert value(text.replace("['y'].map(agent)", "['y'].map((p) => agent(p))")) == ["ok:x", False, 1]


def test_runs_share_nothing(value: Callable[..., Any]) -> None:
    value("globalThis.leak = 1; Array.prototype.leak = 2; Math.leak = 3; agent = null; return 1")
    assert value("return [typeof leak, typeof [].leak, typeof Math.leak, typeof agent]") == ["undefined"] * 3 + [
        "function"
    ]


def test_runs_do_not_share_their_random_numbers(value: Callable[..., Any]) -> None:
    """Workers are copies of one process: nothing may have drawn from the sequence before they were copied."""
    drawn = [value("return [Math.random(), Math.random()]") for _ in range(6)]
    assert len({number for pair in drawn for number in pair}) == 12


MODERN = {
    "text": ("return 'a-b'.replaceAll('-', '+').at(-1) + 'x'.padStart(3, '.')", "b..x"),
    "lists": ("return [3, 1].toSorted().concat([1, [2]].flat(), [1, 2].findLast((n) => n > 1))", [1, 3, 1, 2, 2]),
    "groups": ("return Object.groupBy([1, 2, 3], (n) => n % 2 ? 'odd' : 'even')", {"odd": [1, 3], "even": [2]}),
    "sets": ("return [...new Set([1]).union(new Set([2]))]", [1, 2]),
    "iterators": ("return Iterator.from([1, 2]).map((n) => n * 2).toArray()", [2, 4]),
    "promises": ("const { promise, resolve } = Promise.withResolvers(); resolve(4); return await promise", 4),
    "settled": (
        "return (await Promise.allSettled([agent('x'), Promise.reject(1)])).map((r) => r.status)",
        ["fulfilled", "rejected"],
    ),
    "regular expressions": (r"return 'año 2024'.match(/(?<y>\d{4})/u).groups.y + /\p{L}/v.test('é')", "2024true"),
    "async iteration": ("const out = []; for await (const r of [agent('a'), 2]) out.push(r); return out", ["ok:a", 2]),
    "async generators": (
        "const out = []; const make = async function* () { yield await agent('g'); yield 2 }; "
        "for await (const r of make()) out.push(r); return out",
        ["ok:g", 2],
    ),
    "Intl": ("return new Intl.NumberFormat('en').format(1234.5)", "1,234.5"),
    "dates": (
        "return [new Date(0).toISOString(), typeof Date.now(), typeof new Date().getTime()]",
        ["1970-01-01T00:00:00.000Z", "number", "number"],
    ),
    "destructuring, spread and optional chaining": (
        "const { a: { b = 5 } = {}, ...rest } = { c: 1 }; return [b, rest, null?.x ?? 'd', [...'ab']]",
        [5, {"c": 1}, "d", ["a", "b"]],
    ),
    "private fields and static blocks": (
        "class A { #n = 1; static s; static { A.s = 2 } get n() { return this.#n } } return [new A().n, A.s]",
        [1, 2],
    ),
    "labelled blocks": ("out: { if (true) break out; return 1 } return 2", 2),
    "weak references": ("return new WeakRef({ a: 1 }).deref().a", 1),
    "typed arrays": ("return [...new Uint8Array([1, 2, 300])]", [1, 2, 44]),
    "big integers": ("return String(2n ** 64n)", "18446744073709551616"),
    "strict mode": ("'use strict'; return this === undefined", True),
}


@pytest.mark.parametrize("name", MODERN)
def test_the_language_is_complete(name: str, value: Callable[..., Any]) -> None:
    text, expected = MODERN[name]
    assert value(text) == expected
