// The script's side of a run: hooks, the value boundary, error places. Evaluated once in the zygote, before any script.
//
// Guarantees: nothing but JSON text made here crosses to Python; everything used after the script starts was captured
// before it did, so tampered built-ins can break the script but never change what is sent or read.
(send, armTimer, disarmTimer) => {
  'use strict';

  const { apply, ownKeys, getPrototypeOf, setPrototypeOf, defineProperty, deleteProperty, getOwnPropertyDescriptor } = Reflect;
  const { isArray } = Array;
  const { keys, freeze, create, getOwnPropertySymbols } = Object;
  const { stringify, parse } = JSON;
  const RealPromise = Promise;
  const RealError = Error;
  const AsyncFunction = (async () => {}).constructor;
  const promiseThen = Promise.prototype.then;
  const stackOf = getOwnPropertyDescriptor(Error.prototype, 'stack').get;
  const uncurry = (method) => (self, ...rest) => apply(method, self, rest);
  const hasOwn = uncurry(Object.prototype.hasOwnProperty);
  const toWellFormed = uncurry(String.prototype.toWellFormed);
  const isWellFormed = uncurry(String.prototype.isWellFormed);
  const indexOf = uncurry(String.prototype.indexOf);
  const slice = uncurry(String.prototype.slice);
  const repeat = uncurry(String.prototype.repeat);
  const splitText = String.prototype.split;
  const matchRegExp = uncurry(RegExp.prototype.exec);
  const mapGet = uncurry(Map.prototype.get);
  const mapSet = uncurry(Map.prototype.set);
  const mapDelete = uncurry(Map.prototype.delete);
  const mapClear = Map.prototype.clear;
  const weakAdd = uncurry(WeakSet.prototype.add);
  const sizeOf = getOwnPropertyDescriptor(Map.prototype, 'size').get;
  const weakHas = uncurry(WeakSet.prototype.has);
  const plainObject = Object.prototype;
  const plainArray = Array.prototype;
  const plainPromise = Promise.prototype;
  const StringOf = String;
  const NumberOf = Number;
  const { isInteger } = Number;
  const { min } = Math;

  const SOURCE_NAME = '\n//# sourceURL=workflow-script'; // the last one counts, so a script cannot hide its frames
  const MAX_NARRATION = 64 * 1024;
  const MAX_ERROR = 32 * 1024; // of a thrown message: leaves room for its place
  const MAX_WARNINGS = 20;
  const CODE_LINES_BEFORE_BODY = 2; // the AsyncFunction constructor puts its own head above the body

  const pending = new Map(); // seq -> { resolve, reject }
  const timers = new Map(); // id -> callback
  const fatalErrors = new WeakSet();
  let limits = null;
  let sourceLines = [];
  let body = null;
  let lastSeq = 0;
  let lastTimer = 0;
  let currentPhase = null;
  let settled = false;
  let tokensSpent = 0;
  let warnings = create(null); // no array: the script can put setters for indices on Array.prototype
  let warningCount = 0;
  let thrown = create(null); // what threw inside parallel() and pipeline(), by text
  let globalNames = [];

  // ---------------------------------------------------------------------------------------------- errors

  // A property descriptor that inherits nothing: the script can put `get` or `writable` on Object.prototype.
  const data = (value, enumerable) => ({ __proto__: null, value, writable: true, enumerable, configurable: true });

  const ENGINE_PLACES = ['fileName', 'lineNumber', 'columnNumber']; // the engine's own properties: they name this file

  // `site`, an error made where the author's call was, lends its place to a refusal that arrives later.
  function fatal(code, message, site) {
    const error = site === undefined ? new RealError(message) : site;
    for (let i = 0; i < ENGINE_PLACES.length; i++) deleteProperty(error, ENGINE_PLACES[i]);
    defineProperty(error, 'message', data(message, false));
    defineProperty(error, 'name', data('WorkflowError', false));
    defineProperty(error, 'code', { __proto__: null, value: code, enumerable: true });
    weakAdd(fatalErrors, error);
    return error;
  }

  const isFatal = (error) => typeof error === 'object' && error !== null && weakHas(fatalErrors, error);

  function warn(message) {
    if (warningCount < MAX_WARNINGS) warnings[warningCount++] = message;
  }

  // The engine's own stack text, `null` for what is not a real error (the getter throws for that).
  function rawStack(thrown) {
    try {
      const stack = apply(stackOf, thrown, []);
      return typeof stack === 'string' ? stack : null;
    } catch {
      return null;
    }
  }

  // Reads a data property without running the script's code.
  function dataProperty(object, key) {
    for (let at = object, hops = 0; at !== null && (typeof at === 'object' || typeof at === 'function') && hops < 8; at = getPrototypeOf(at), hops++) {
      const found = getOwnPropertyDescriptor(at, key);
      if (found !== undefined) return hasOwn(found, 'value') ? found.value : undefined;
    }
    return undefined;
  }

  function describe(thrown) {
    if (typeof thrown === 'symbol') return 'a thrown symbol';
    if (typeof thrown === 'function') return 'a thrown function';
    if (thrown === '') return 'a thrown empty string';
    if (typeof thrown !== 'object' || thrown === null) return StringOf(thrown);
    try {
      const message = dataProperty(thrown, 'message');
      const name = dataProperty(thrown, 'name');
      if (typeof message === 'string') {
        const isError = rawStack(thrown) !== null;
        return isError && typeof name === 'string' && name !== '' ? (message === '' ? name : `${name}: ${message}`) : message;
      }
      const text = tryEncode(thrown);
      return text === null ? '[an object that cannot be shown]' : `a thrown object: ${text.length > 500 ? slice(text, 0, 500) + '…' : text}`;
    } catch {
      return '[an object that cannot be shown]';
    }
  }

  function tryEncode(value) {
    const kept = warningCount;
    try { return encode(value, 'thrown'); } catch { return null; } finally { warningCount = kept; }
  }

  // Calls visit(name, line, column) for each frame that is the author's own, until one returns true.
  function eachOwnFrame(thrown, visit) {
    const stack = rawStack(thrown);
    if (stack === null) return;
    for (let from = 0, frames = 0; from < stack.length && frames < 200; frames++) {
      let to = indexOf(stack, '\n', from);
      if (to < 0) to = stack.length;
      const found = matchRegExp(FRAME, slice(stack, from, to));
      if (found !== null && visit(found[1], NumberOf(found[2]) - CODE_LINES_BEFORE_BODY, NumberOf(found[3]))) return;
      from = to + 1;
    }
  }

  // "at line L, column C", the source line and a caret, for the first frame that is the author's own. The constructors
  // of the author's own error classes come first in the stack; what is wanted is where they were called.
  function placeOf(thrown) {
    const classes = create(null);
    try {
      for (let at = getPrototypeOf(thrown), hops = 0; at !== null && hops < 8; at = getPrototypeOf(at), hops++) {
        const name = dataProperty(dataProperty(at, 'constructor'), 'name');
        if (typeof name === 'string' && name !== '') classes[name] = true;
      }
    } catch {
      // null and other values that have no prototype have no place either
    }
    let place = '';
    eachOwnFrame(thrown, (name, line, column) => {
      const constructing = classes[name] === true;
      if (place === '' || !constructing) place = placeText(line, column);
      return !constructing;
    });
    return place;
  }
  const FRAME = /^(.*)@workflow-script:(\d+):(\d+)$/;
  // exec() looks itself up on the prototype's accessors only for sticky/global flags; this one has neither.

  // What a script reads as `error.stack`: its own frames with its own line numbers, nothing of this file.
  defineProperty(RealError.prototype, 'stack', {
    get() {
      let text = '';
      eachOwnFrame(this, (name, line, column) => { text += `${name}@script:${line}:${column}\n`; });
      return rawStack(this) === null ? undefined : text;
    },
    set: getOwnPropertyDescriptor(RealError.prototype, 'stack').set,
    configurable: true,
    enumerable: false,
  });

  function placeText(line, column) {
    if (!(line >= 1)) return '';
    if (line > sourceLines.length) { // the engine points into the wrapper's tail: the source ended too early
      line = sourceLines.length;
      column = sourceLines[line - 1].length + 1;
    }
    const source = sourceLines[line - 1];
    const from = column > 120 ? column - 100 : 1;
    const shown = slice(source, from - 1, from + 159);
    let caret = '';
    for (let i = from; i < column; i++) caret += source[i - 1] === '\t' ? '\t' : ' ';
    return ` (line ${line}, column ${column})\n${shown}\n${caret}^`;
  }

  // ---------------------------------------------------------------------------------------------- value boundary

  const refusals = new WeakSet(); // not a class: instanceof asks the script's Error[Symbol.hasInstance]
  const isRefusal = (error) => typeof error === 'object' && error !== null && weakHas(refusals, error);

  function refuseAs(text) {
    const error = new RealError(text);
    weakAdd(refusals, error);
    throw error;
  }

  function refuse(path, why) {
    refuseAs(`${path}: ${why}`);
  }

  const quote = (text) => stringify(isWellFormed(text) ? text : toWellFormed(text));
  const IDENTIFIER = /^[A-Za-z_$][\w$]*$/;
  const childPath = (path, key) => (matchRegExp(IDENTIFIER, key) !== null ? `${path}.${key}` : `${path}[${quote(key)}]`);

  // An array whose elements exist, so that setting one asks no setter the script may have put on a prototype.
  function emptyArray(length) {
    switch (length) {
      case 0: return [];
      case 1: return [0];
      case 2: return [0, 0];
      case 3: return [0, 0, 0];
      case 4: return [0, 0, 0, 0];
      default: return parse(`[${repeat('0,', length - 1)}0]`);
    }
  }

  // JSON text of a copy made below. Two things of the script's would still get in: a toJSON on the prototypes of arrays,
  // and lone surrogates, which JSON.stringify writes as escapes.
  function textOfCopy(copy) {
    const inherits = hasOwn(plainArray, 'toJSON') || hasOwn(plainObject, 'toJSON') || getPrototypeOf(plainArray) !== plainObject;
    if (!inherits) {
      const text = stringify(copy);
      if (indexOf(text, '\\ud') < 0) return text;
    }
    return stringify(mend(copy));
  }

  function mend(copy) {
    if (typeof copy === 'string') return toWellFormed(copy);
    if (typeof copy !== 'object' || copy === null) return copy;
    if (isArray(copy)) {
      for (let i = 0; i < copy.length; i++) copy[i] = mend(copy[i]);
      setPrototypeOf(copy, null);
      return copy;
    }
    const mended = create(null);
    const names = keys(copy);
    for (let i = 0; i < names.length; i++) mended[toWellFormed(names[i])] = mend(copy[names[i]]);
    return mended;
  }

  // JSON text of a value. JSON.stringify alone would skip what is not JSON, call toJSON and read getters on its own, so
  // it gets a copy: everything is read once and judged here, and the copy holds nothing that is the script's.
  function encode(root, rootPath) {
    const ancestors = create(null);
    let depth = 0;
    let size = 0;
    const maxDepth = limits.max_depth;
    const maxSize = limits.max_frame;

    // The path is only wanted on a refusal, so it is rebuilt from the keys on the way instead of carried along.
    const trail = create(null);
    const here = () => {
      let path = rootPath;
      for (let i = 0; i < depth; i++) path = typeof trail[i] === 'number' ? `${path}[${trail[i]}]` : childPath(path, trail[i]);
      return path;
    };
    const tooLarge = () => refuseAs(`${rootPath} is over the limit of ${maxSize} bytes for one message`);
    const grow = (length) => { // never more than the text will have: ends a copy that grows without end
      size += length;
      if (size > maxSize) tooLarge();
    };

    // What JSON has no word for is named once per property name, with a count: a hundred rows are one warning.
    const dropped = create(null);
    function drop(name, what) {
      const note = dropped[name];
      if (note !== undefined) { note.more++; return; }
      dropped[name] = { __proto__: null, at: warningCount, more: 0 };
      warn(`${here()}: ${what}`);
    }
    function countDropped() {
      const names = keys(dropped);
      for (let i = 0; i < names.length; i++) {
        const { at, more } = dropped[names[i]];
        if (more > 0 && at < warningCount) warnings[at] += ` (and at ${more} more place${more === 1 ? '' : 's'})`;
      }
    }

    function read(holder, key) {
      try {
        return holder[key];
      } catch (error) {
        refuse(here(), `reading the value threw: ${describe(error)}`);
      }
    }

    function enter(value) {
      for (let i = 0; i < depth; i++) if (ancestors[i] === value) refuse(here(), 'circular references are not JSON data');
      if (depth >= maxDepth) refuse(rootPath, `nested deeper than ${maxDepth} levels`);
      ancestors[depth] = value;
      depth++;
    }

    // The copy of a value; `undefined` where there is nothing to copy.
    function one(value) {
      switch (typeof value) {
        case 'string': grow(value.length + 2); return value;
        case 'number':
          if (value - value !== 0) refuse(here(), 'non-finite numbers are not JSON data');
          grow(1);
          return value;
        case 'boolean': grow(4); return value;
        case 'undefined': return undefined;
        case 'bigint': return refuse(here(), 'bigints are not JSON data');
        case 'symbol': return refuse(here(), 'symbols are not plain JSON data');
        case 'function': return refuse(here(), 'functions are not plain JSON data');
      }
      if (value === null) { grow(4); return null; }
      let array, prototype;
      try {
        array = isArray(value);
        prototype = getPrototypeOf(value);
      } catch (error) {
        refuse(here(), `reading the value threw: ${describe(error)}`);
      }
      if (prototype === plainPromise) refuse(here(), 'this is a promise: await it');
      if (array ? prototype !== plainArray : prototype !== plainObject && prototype !== null) {
        refuse(here(), 'only plain objects and arrays are JSON data (exotic prototype)');
      }
      let names, symbols, length;
      try {
        symbols = getOwnPropertySymbols(value).length;
        names = keys(value);
        length = array ? value.length : 0;
      } catch (error) { // a trap of a Proxy
        refuse(here(), `reading the value threw: ${describe(error)}`);
      }
      if (symbols !== 0) refuse(here(), 'symbol-keyed properties are not plain JSON data');
      enter(value);
      const copy = array ? elements(value, names, length) : members(value, names);
      depth--;
      return copy;
    }

    function elements(value, names, length) {
      const at = depth - 1;
      if (names.length !== length || (length > 0 && names[length - 1] !== '' + (length - 1))) {
        for (let i = 0; i < length && i <= names.length; i++) {
          trail[at] = i;
          if (names[i] !== '' + i) refuse(here(), 'sparse arrays are not JSON data');
        }
        trail[at] = names[length] === undefined ? names[names.length - 1] : names[length]; // index keys come first
        refuse(here(), 'arrays with non-index properties are not JSON data');
      }
      const copy = emptyArray(length);
      for (let i = 0; i < length; i++) {
        trail[at] = i;
        const item = one(read(value, i));
        if (item === undefined) drop('[]', 'undefined became null');
        copy[i] = item === undefined ? null : item;
      }
      grow(length + 1);
      return copy;
    }

    function members(value, names) {
      const at = depth - 1;
      const copy = create(null);
      for (let i = 0; i < names.length; i++) {
        const name = names[i];
        trail[at] = name;
        const item = one(read(value, name));
        if (item === undefined) {
          drop(name, 'a property whose value is undefined was left out');
          continue;
        }
        copy[name] = item;
        grow(name.length + 4);
      }
      return copy;
    }

    const copy = one(root);
    countDropped();
    if (copy === undefined) return 'null';
    const text = textOfCopy(copy);
    if (text.length > maxSize) tooLarge();
    return text;
  }

  // Messages of this file's own making: flat objects of primitives and ready-made JSON text.
  function message(type, fields) {
    let text = `{"type":"${type}"`;
    for (let i = 0; i < fields.length; i += 2) if (fields[i + 1] !== undefined) text += `,"${fields[i]}":${fields[i + 1]}`;
    return text + '}';
  }

  const cut = (text, length) => (text.length > length ? slice(text, 0, length - 1) + '…' : text);
  const clip = (text) => cut(text, MAX_NARRATION);

  // ---------------------------------------------------------------------------------------------- hooks

  const STRING_OPTIONS = ['label', 'phase', 'provider', 'model', 'agentType', 'effort', 'isolation'];
  const PASSED = ['agentType', 'effort', 'isolation', 'stallMs'];
  const KNOWN = 'label, phase, schema, provider, model, agentType, effort, isolation, stallMs';
  const contains = (list, item) => { for (let i = 0; i < list.length; i++) if (list[i] === item) return true; return false; };

  function callText(prompt, opts) {
    if (typeof prompt !== 'string' || prompt.length === 0) throw fatal('INVALID_ARGUMENT', 'agent() requires a non-empty prompt string');
    const fields = create(null);
    if (opts !== undefined) {
      if (typeof opts !== 'object' || opts === null || isArray(opts)) throw fatal('INVALID_ARGUMENT', 'agent() options must be an object');
      const names = ownKeys(opts);
      for (let i = 0; i < names.length; i++) {
        const name = names[i];
        if (typeof name === 'symbol') throw fatal('INVALID_ARGUMENT', 'agent() options must be plain JSON data — agent() options: symbol-keyed properties are not plain JSON data');
        let value;
        try { value = opts[name]; } catch (error) {
          throw fatal('INVALID_ARGUMENT', `agent() options must be plain JSON data — agent() options.${name}: reading the value threw: ${describe(error)}`);
        }
        if (value === undefined) continue;
        if (contains(STRING_OPTIONS, name)) {
          if (typeof value !== 'string') throw fatal('INVALID_ARGUMENT', `agent() option "${name}" must be a string`);
        } else if (name === 'stallMs') {
          if (typeof value !== 'number' || !(value > 0) || value - value !== 0) throw fatal('INVALID_ARGUMENT', 'agent() option "stallMs" must be a positive number of milliseconds');
        } else if (name !== 'schema') {
          throw fatal('UNSUPPORTED_OPTION', `agent() option "${name}" is not recognized (supported: ${KNOWN})`);
        }
        fields[name] = value;
      }
    }
    let schema;
    if (fields.schema !== undefined) {
      if (typeof fields.schema !== 'object' || fields.schema === null || isArray(fields.schema)) throw fatal('UNSUPPORTED_SCHEMA', 'agent() option "schema" must be a JSON Schema object');
      try { schema = encode(fields.schema, 'agent() options.schema'); } catch (error) {
        if (!isRefusal(error)) throw error;
        throw fatal('INVALID_ARGUMENT', `agent() options must be plain JSON data — ${error.message}`);
      }
    }
    let passed;
    for (let i = 0; i < PASSED.length; i++) {
      const value = fields[PASSED[i]];
      if (value !== undefined) passed = `${passed === undefined ? '{' : passed + ','}"${PASSED[i]}":${typeof value === 'string' ? quote(clip(value)) : value}`;
    }
    const phase = fields.phase === undefined ? currentPhase : clip(fields.phase);
    if (lastSeq >= limits.max_total_agents) {
      throw fatal('AGENT_CAP', `this run reached its total agent cap (${limits.max_total_agents}) — a runaway-loop backstop; raise the applicable maxTotalAgents limit if the scale is intentional`);
    }
    if (limits.token_budget !== null && tokensSpent >= limits.token_budget) {
      throw fatal('BUDGET_EXCEEDED', `this run has spent ${tokensSpent} of its ${limits.token_budget} output tokens; no further agent starts`);
    }
    const text = (value) => (value === undefined || value === null ? undefined : quote(clip(value)));
    const seq = lastSeq + 1;
    const made = message('agent', [
      'seq', seq, 'prompt', quote(prompt), 'label', text(fields.label), 'phase', text(phase), 'schema', schema,
      'provider', text(fields.provider), 'model', text(fields.model), 'options', passed === undefined ? undefined : passed + '}',
    ]);
    if (made.length > limits.max_frame) throw fatal('INVALID_ARGUMENT', `agent() prompt and options are over the limit of ${limits.max_frame} bytes for one message`);
    lastSeq = seq;
    return made;
  }

  function agent(prompt, opts) {
    return new RealPromise((resolve, reject) => {
      const made = callText(prompt, opts);
      mapSet(pending, lastSeq, { resolve, reject, site: new RealError() });
      send(made);
    });
  }

  function checkItems(hook, count) {
    if (count > limits.max_items_per_call) {
      throw fatal('ITEM_CAP', `${hook}() received ${count} items — over the per-call cap (${limits.max_items_per_call}); split the work or raise maxItemsPerCall in the engine config`);
    }
  }

  // A null among the results looks like an agent that failed; a slip in the script must not hide behind it. Throws of
  // one kind at one place are one warning with a count.
  function warnOfThrow(hook, index, error) {
    const what = `threw, so its place is null: ${cut(describe(error), 500)}${placeOf(error)}`;
    const seen = thrown[what];
    if (seen === undefined) {
      if (warningCount === MAX_WARNINGS) return;
      thrown[what] = { __proto__: null, at: warningCount, item: `${hook}() item ${index}`, more: 0 };
      warn(`${hook}() item ${index} ${what}`);
    } else {
      const more = ++seen.more;
      warnings[seen.at] = `${seen.item} (and ${more} more) ${what}`;
    }
  }

  // Runs work(i) for every index at once; a throw gives null at its place, a fatal error rejects the whole at once.
  // Settles the hook's own promise: resolving with another one would ask it for the (perhaps tampered) `then`.
  function join(hook, count, work, resolve, reject) {
    const results = [];
    for (let i = 0; i < count; i++) defineProperty(results, i, data(null, true));
    if (count === 0) return resolve(results);
    let left = count;
    const one = async (i) => {
      try {
        results[i] = await work(i);
      } catch (error) {
        if (isFatal(error)) return reject(error);
        warnOfThrow(hook, i, error);
      }
      if (--left === 0) resolve(results);
    };
    for (let i = 0; i < count; i++) one(i);
  }

  function parallel(thunks) {
    return new RealPromise((resolve, reject) => {
      if (!isArray(thunks)) throw fatal('INVALID_ARGUMENT', 'parallel() requires an array of zero-argument functions');
      const count = thunks.length;
      checkItems('parallel', count);
      const work = create(null);
      for (let i = 0; i < count; i++) {
        const thunk = thunks[i];
        if (typeof thunk !== 'function') {
          const hint = typeof thunk === 'object' && thunk !== null && getPrototypeOf(thunk) === plainPromise ? ': it is a promise; write () => agent(…)' : '';
          throw fatal('INVALID_ARGUMENT', `parallel() item ${i} is not a function${hint}`);
        }
        work[i] = thunk;
      }
      join('parallel', count, (i) => (0, work[i])(), resolve, reject);
    });
  }

  function pipeline(items, ...stages) {
    return new RealPromise((resolve, reject) => {
      if (!isArray(items)) throw fatal('INVALID_ARGUMENT', 'pipeline() requires an items array');
      if (stages.length === 0) throw fatal('INVALID_ARGUMENT', 'pipeline() requires at least one stage function');
      for (let i = 0; i < stages.length; i++) {
        if (typeof stages[i] !== 'function') throw fatal('INVALID_ARGUMENT', `pipeline() stage ${i} is not a function`);
      }
      const count = items.length;
      checkItems('pipeline', count);
      const copied = create(null);
      for (let i = 0; i < count; i++) copied[i] = items[i];
      join('pipeline', count, async (index) => {
        const item = copied[index];
        let previous = item;
        for (let i = 0; i < stages.length; i++) previous = await (0, stages[i])(previous, item, index);
        return previous;
      }, resolve, reject);
    });
  }

  function phase(title) {
    if (typeof title !== 'string' || title.length === 0) throw fatal('INVALID_ARGUMENT', 'phase() requires a non-empty title string');
    currentPhase = clip(title);
    if (!settled) send(message('phase', ['title', quote(currentPhase)]));
  }

  function log(text) {
    if (typeof text !== 'string') throw fatal('INVALID_ARGUMENT', 'log() requires a message string');
    if (!settled) send(message('log', ['message', quote(clip(text))]));
  }

  const RealTypeError = TypeError;
  function setTimeout(callback, delay, ...rest) {
    if (typeof callback !== 'function') throw new RealTypeError('setTimeout() requires a function');
    const wanted = NumberOf(delay);
    const id = ++lastTimer;
    mapSet(timers, id, () => apply(callback, undefined, rest));
    armTimer(id, wanted > 0 ? min(wanted, 0x7fffffff) : 0);
    return id;
  }

  function clearTimeout(id) {
    if (typeof id === 'number' && mapDelete(timers, id)) disarmTimer(id);
  }

  const budget = freeze({
    __proto__: null,
    get total() { return limits === null ? null : limits.token_budget; },
    spent: freeze(() => tokensSpent),
    remaining: freeze(() => (limits === null || limits.token_budget === null ? Infinity : limits.token_budget > tokensSpent ? limits.token_budget - tokensSpent : 0)),
  });

  // ---------------------------------------------------------------------------------------------- settling

  const warningText = () => {
    if (warningCount === 0) return undefined;
    let text = '[';
    for (let i = 0; i < warningCount; i++) text += (i === 0 ? '' : ',') + quote(clip(warnings[i]));
    return text + ']';
  };

  function fail(code, text) {
    settled = true;
    send(message('failed', ['code', `"${code}"`, 'message', quote(clip(text)), 'warnings', warningText()]));
  }

  function returned(value) {
    if (settled) return;
    let text;
    try {
      text = encode(value, 'workflow result');
      settled = true;
    } catch (error) {
      if (!isRefusal(error)) return threw(error);
      return fail('RESULT_UNSERIALIZABLE', `WorkflowError: the workflow's return value is not plain JSON data — ${error.message}. Return only JSON-serializable objects/arrays/scalars.`);
    }
    send(message('result', ['value', text, 'warnings', warningText()]));
  }

  function threw(error) {
    if (settled) return;
    if (error === 'out of memory') return fail('WORKER_MEMORY', 'the script ran out of memory'); // the engine throws this bare string
    const code = isFatal(error) ? error.code : 'SCRIPT_ERROR';
    fail(code, cut(describe(error), MAX_ERROR) + placeOf(error));
  }

  // Own `constructor` stops then() from asking the (perhaps tampered) species which promise to make.
  function observe(promise, fulfilled, rejected) {
    defineProperty(promise, 'constructor', { __proto__: null, value: undefined });
    apply(promiseThen, promise, [fulfilled, rejected]);
  }

  function setGlobals(args) {
    const hooks = { agent, parallel, pipeline, phase, log, setTimeout, clearTimeout, budget, args };
    globalNames = keys(hooks);
    for (let i = 0; i < globalNames.length; i++) {
      const value = hooks[globalNames[i]];
      if (typeof value === 'function') freeze(value);
      defineProperty(globalThis, globalNames[i], { value, writable: true, configurable: true, enumerable: true });
    }
  }

  const evaluate = globalThis.eval;

  return freeze({
    __proto__: null,

    // Compiles. Answers 'loaded' or 'rejected'; runs nothing of the script's body.
    load(script, header, args, limitText) {
      limits = parse(limitText);
      sourceLines = apply(splitText, script, [/\r\n|[\n\r\u2028\u2029]/]); // before the script runs, so untampered
      try {
        body = new AsyncFunction(script + SOURCE_NAME);
      } catch (error) {
        const place = placeText(error.lineNumber - CODE_LINES_BEFORE_BODY, error.columnNumber);
        send(message('rejected', ['code', '"SCRIPT_PARSE"', 'message', quote(clip(`workflow script does not parse: ${error.message}${place}`))]));
        return;
      }
      let meta;
      if (typeof header === 'string') { // Python's None arrives as undefined
        try {
          meta = encode(evaluate(`(${header})`), 'meta');
        } catch (error) {
          send(message('rejected', ['code', '"META_INVALID"', 'message', quote(clip(`invalid meta: export const meta cannot be read: ${error.message}`))]));
          return;
        }
      }
      setGlobals(typeof args === 'string' ? parse(args) : undefined);
      send(message('loaded', ['meta', meta]));
    },

    go() {
      let promise;
      try {
        promise = body();
      } catch (error) { // only an engine limit (out of memory, no stack) can throw here
        return threw(error);
      }
      observe(promise, returned, threw);
    },

    // An agent's answer, as the text of its message.
    settle(text) {
      const answer = parse(text);
      const call = mapGet(pending, answer.seq);
      if (call === undefined) return;
      mapDelete(pending, answer.seq);
      if (answer.type === 'agent-settled') {
        if (hasOwn(answer, 'spent')) tokensSpent = answer.spent;
        call.resolve(answer.value);
      } else {
        call.reject(fatal(answer.code, answer.message, call.site));
      }
    },

    fire(id) {
      const callback = mapGet(timers, id);
      if (callback === undefined) return;
      mapDelete(timers, id);
      try { callback(); } catch (error) { warn(`a setTimeout callback threw: ${describe(error)}${placeOf(error)}`); }
    },

    // After a rehearsal: as if nothing had run.
    forget() {
      apply(mapClear, pending, []);
      apply(mapClear, timers, []);
      limits = body = currentPhase = null;
      sourceLines = [];
      lastSeq = lastTimer = tokensSpent = warningCount = 0;
      warnings = create(null);
      thrown = create(null);
      settled = false;
      for (let i = 0; i < globalNames.length; i++) deleteProperty(globalThis, globalNames[i]);
    },

    // Called when the queue is empty: is there anything left that could wake the script?
    idle(timersArmed) {
      if (settled || timersArmed > 0 || pendingCount() > 0) return;
      fail('SCRIPT_STALLED', 'the script waits on a promise that nothing will resolve: no agent() call, timer or job is left that could wake it');
    },
  });

  function pendingCount() {
    return apply(sizeOf, pending, []);
  }
}
