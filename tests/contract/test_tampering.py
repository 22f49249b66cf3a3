"""Tampered built-ins may break the script that tampers; what the engine reads and sends stays what it was."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from orchestrator import AgentRequest, AgentResult
from tests.contract.conftest import RunScript
from tests.support import scripted_agent

# Everything that crosses, written without a single built-in that the script itself would look up: literals, await,
# for loops and the hooks.
EXERCISE = """
log('a log'); phase('A phase');
const first = await agent('x', { label: 'a label', schema: undefined });
const structured = await agent('structured', {
  schema: { type: 'object', properties: { n: { type: 'integer', enum: [1, 2] } }, required: ['n'] },
  model: 'm', phase: 'own' });
const fanned = await parallel([() => agent('y'), () => { throw 1 }, async () => ({ k: 2 }), () => agent('fail')]);
const piped = await pipeline([1, 2], (p) => agent('s' + p), (p, i, n) => ({ p, i, n }));
let refused, broken, capped;
try { await agent('') } catch (e) { refused = [e.name, e.code, e.message] }
try { await agent('boom') } catch (e) { broken = [e.name, e.code, e.message] }
try { await parallel([() => agent('x', { nope: 1 })]) } catch (e) { capped = [e.name, e.code, e.message] }
const timed = await { then(resolve) { setTimeout((a) => { resolve(a) }, 1, 'later') } };
return { first, structured, fanned, piped, refused, broken, capped, timed,
         nested: { list: [1, { b: 'q' }, [[]]], number: 1.5, 'a key': null, gone: undefined, half: '\\ud83d' },
         yes: true }
"""
EACH_KEY = """const keysOf = Reflect.ownKeys;
const strip = (o, kept = ['length', 'name', 'prototype']) => {
  const names = keysOf(o);
  for (let i = 0; i < names.length; i++) {
    let keep = false;
    for (let k = 0; k < kept.length; k++) if (kept[k] === names[i]) keep = true;
    if (!keep) { try { delete o[names[i]] } catch {} }
  }
}; """.replace("\n", " ")
OPTION_NAMES = "['seq', 'type', 'spent', 'code', 'message', 'resolve', 'reject', 'site', 'schema', 'label', 'phase', "
OPTION_NAMES += "'model', 'provider', 'stallMs', 'agentType', 'effort', 'isolation', 'at', 'more']"

TAMPERING = {
    "toJSON on every prototype": "for (const p of [Object, Array, String, Number, Boolean]) "
    "p.prototype.toJSON = () => 'pwn'",
    "JSON replaced": "JSON.stringify = () => 'x'; JSON.parse = () => ({})",
    "Array.prototype stripped": EACH_KEY + "strip(Array.prototype)",
    "String.prototype stripped": EACH_KEY + "strip(String.prototype)",
    "RegExp.prototype stripped": EACH_KEY + "strip(RegExp.prototype)",
    "Map, Set, WeakMap and WeakSet stripped": EACH_KEY
    + "strip(Map.prototype); strip(Set.prototype); strip(WeakMap.prototype); strip(WeakSet.prototype)",
    "Object, Reflect, Number, Math, Symbol and Function.prototype stripped": EACH_KEY
    + "strip(Object); strip(Reflect); strip(Number); strip(Math); strip(Symbol); strip(Function.prototype)",
    "Object.prototype stripped": EACH_KEY + "strip(Object.prototype)",
    "Error stripped": EACH_KEY + "strip(Error); strip(Error.prototype, [])",
    "Map.prototype.get and Array.prototype.map set to null": "Map.prototype.get = null; Array.prototype.map = null",
    "Reflect.apply and Object.defineProperty replaced": "Reflect.apply = () => 0; Reflect.ownKeys = () => []; "
    "Reflect.defineProperty = Object.defineProperty = () => true; Reflect.getPrototypeOf = () => null; "
    "Object.keys = () => []",
    "call, apply and bind replaced": "Function.prototype.call = "
    "Function.prototype.apply = Function.prototype.bind = null",
    "then replaced": "Promise.prototype.then = function () { return 7 }",
    "then, catch and finally removed": "delete Promise.prototype.then; delete Promise.prototype.catch; "
    "delete Promise.prototype.finally",
    "Promise statics removed": EACH_KEY + "strip(Promise, ['length', 'name', 'prototype', Symbol.species])",
    "the species of Promise": "Object.defineProperty(Promise, Symbol.species, "
    "{ get() { return function (f) { f(() => {}, () => {}) } } })",
    "the species of Array and RegExp": "for (const c of [Array, RegExp]) "
    "Object.defineProperty(c, Symbol.species, { get() { return null } })",
    "an index setter on Array.prototype": "for (const i of ['0', '1', '2', '3', '4']) Object.defineProperty("
    "Array.prototype, i, { set() {}, get() { return 'stolen' }, configurable: true })",
    "index setters on Object.prototype": "for (const i of ['0', '1', '2', '3']) Object.defineProperty("
    "Object.prototype, i, { set() {}, get() { return 'stolen' }, configurable: true })",
    "get and set on Object.prototype": "Object.prototype.get = () => 'got'; Object.prototype.set = () => {}",
    "descriptor fields on Object.prototype": "Object.prototype.value = 'v'; Object.prototype.writable = false; "
    "Object.prototype.enumerable = false; Object.prototype.configurable = false",
    "a value accessor on Object.prototype": "Object.defineProperty(Object.prototype, 'value', "
    "{ set() {}, get() { return 'v' }, configurable: true })",
    "the engine's field names as accessors on Object.prototype": f"for (const k of {OPTION_NAMES}) "
    "Object.defineProperty(Object.prototype, k, { set() {}, get() { return undefined }, configurable: true })",
    "exec, test and the symbols of RegExp": "RegExp.prototype.exec = () => { throw 1 }; RegExp.prototype.test = null; "
    "RegExp.prototype[Symbol.split] = RegExp.prototype[Symbol.replace] = RegExp.prototype[Symbol.match] = null",
    "the split symbol of String": "String.prototype[Symbol.split] = () => []",
    "text methods that lie": "String.prototype.toWellFormed = () => 'x'; String.prototype.isWellFormed = () => true; "
    "String.prototype.indexOf = () => 0; String.prototype.slice = () => 'y'",
    "hasInstance and toPrimitive": "Object.defineProperty(Error, Symbol.hasInstance, { value: () => true }); "
    "Object.defineProperty(Function.prototype, Symbol.toPrimitive, { value: () => 'q' }); "
    "Object.defineProperty(Object.prototype, Symbol.toPrimitive, { value: () => 'q', configurable: true })",
    "no iterators": "Array.prototype[Symbol.iterator] = String.prototype[Symbol.iterator] = null",
    "globals replaced": "globalThis.Error = globalThis.JSON = globalThis.Map = globalThis.WeakSet = "
    "globalThis.Object = globalThis.Array = globalThis.Reflect = globalThis.String = globalThis.Number = null",
    "Promise replaced": "globalThis.Promise = function () { throw 1 }",
    "a lying Error": "Error.prototype.name = 'Evil'; Error.prototype.message = 'evil'; "
    "Error.prototype.toString = () => 'evil'; Object.defineProperty(Error.prototype, 'stack', { get() { throw 1 } })",
    "stack settings": "Error.stackTraceLimit = 0; Error.prepareStackTrace = () => 'x'; Error.captureStackTrace = null",
    "predicates that lie": "Array.isArray = () => false; Number.isInteger = () => false; Math.min = () => 9e9; "
    "Object.freeze = (x) => x; Object.getOwnPropertySymbols = () => [1]",
    "__proto__ replaced": "Object.defineProperty(Object.prototype, '__proto__', { set() {}, get() { return 1 } })",
    "prototypes without parents": "Object.setPrototypeOf(Array.prototype, null); "
    "Object.setPrototypeOf(Promise.prototype, null); Object.setPrototypeOf(Function.prototype, null); "
    "Object.setPrototypeOf(Error.prototype, null)",
    "a longer Array.prototype": "Object.defineProperty(Array.prototype, 'length', { value: 5 })",
    "a hook replaced and put back": "const kept = { agent, parallel, pipeline, log, phase, setTimeout }; "
    "globalThis.log = null; globalThis.log = kept.log",
}


def _seen(script: RunScript, text: str) -> dict[str, Any]:
    """Everything the host sees of a run."""
    requests: list[dict[str, Any]] = []

    async def agent(request: AgentRequest) -> str | AgentResult:
        fields = ("seq", "prompt", "label", "phase", "schema", "model", "provider", "options")
        requests.append({name: getattr(request, name) for name in fields})
        return await scripted_agent(request)

    ran = script(text, agent=agent)
    events = [
        (event.type, getattr(event, "seq", 0), getattr(event, "outcome", ""), getattr(event, "message", ""))
        for event in ran.events
    ]
    return {
        "value": ran.result.value, "error": ran.result.error, "code": ran.result.code,
        "warnings": ran.result.warnings, "requests": requests, "events": sorted(events[:-1]), "last": events[-1],
    }  # fmt: skip


@pytest.fixture(scope="module")
def untampered(shared_engine: Any) -> dict[str, Any]:
    return _seen(shared_engine.run, EXERCISE)


def test_the_exercise_itself_says_what_it_should(untampered: dict[str, Any]) -> None:
    value = untampered["value"]
    assert value["fanned"] == ["ok:y", None, {"k": 2}, None]
    assert value["piped"] == [{"p": "ok:s1", "i": 1, "n": 0}, {"p": "ok:s2", "i": 2, "n": 1}]
    assert value["broken"][1:] == ["AGENT_RESULT", "child agent run failed: RuntimeError: the provider broke"]
    assert value["capped"][1] == "UNSUPPORTED_OPTION"
    assert value["timed"] == "later"
    assert value["nested"] == {"list": [1, {"b": "q"}, [[]]], "number": 1.5, "a key": None, "half": "\ufffd"}
    assert untampered["warnings"] == (
        "parallel() item 1 threw, so its place is null: 1",
        "workflow result.nested.gone: a property whose value is undefined was left out",
    )
    assert [request["prompt"] for request in untampered["requests"]] == [
        "x", "structured", "y", "fail", "s1", "s2", "boom",
    ]  # fmt: skip


@pytest.mark.parametrize("name", TAMPERING)
def test_what_crosses_is_unchanged_by(name: str, script: RunScript, untampered: dict[str, Any]) -> None:
    assert _seen(script, TAMPERING[name] + ";" + EXERCISE) == untampered


@pytest.mark.parametrize("name", TAMPERING)
def test_a_refusal_and_its_path_are_unchanged_by(name: str, script: RunScript) -> None:
    result = script(f"{TAMPERING[name]}; return {{ list: [1, {{ when: () => 1 }}] }}").result
    assert (result.code, "workflow result.list[1].when: functions are not plain JSON data" in str(result.error)) == (
        "RESULT_UNSERIALIZABLE", True,
    )  # fmt: skip


@pytest.mark.parametrize("name", [name for name in TAMPERING if name != "globals replaced"])
def test_the_place_of_an_error_is_unchanged_by(name: str, script: RunScript) -> None:
    result = script(f"{TAMPERING[name]};\n\n  null.boom").result
    assert result.error is not None
    assert result.error.split("\n")[0].endswith("(line 3, column 3)")
    assert result.error.split("\n")[1:] == ["  null.boom", "  ^"]


def test_tampering_after_the_hooks_are_called_changes_nothing_either(script: RunScript) -> None:
    text = "const p = agent('x'); Object.prototype.get = () => 1; Array.prototype.push = null; return [await p]"
    assert script(text).result.value == ["ok:x"]


def test_a_then_on_every_object_breaks_only_the_script_that_put_it_there(script: RunScript) -> None:
    tampering = "Object.prototype.then = function (done) { delete Object.prototype.then; done('mine') }; "
    hijacked = script(tampering + "return {a: 1}")
    assert hijacked.result.value == "mine"
    assert script("return {a: 1}").result.value == {"a": 1}


def test_no_two_rows_are_the_same() -> None:
    assert all(a != b for a, b in itertools.combinations(TAMPERING.values(), 2))
