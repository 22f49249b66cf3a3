// The reference's side of the benchmarks: one long-lived process that reads a task per line on stdin (see tasks.py) and
// answers each with one line of series. Only the published packages run here, on a context that holds just what the
// engine needs and an agent provider that answers at once.
import { readFileSync } from 'node:fs';
import { createInterface } from 'node:readline';
import { setTimeout as sleep } from 'node:timers/promises';
import { Context } from '@deepseek-ai/cordis';
import SubagentRuntime from '@deepseek-ai/dsh-subagent';
import WorkerThreadWorkflowEngine from '@deepseek-ai/dsh-workflow-worker-thread';

const TICK_MS = 5;
const now = () => performance.now();

// ------------------------------------------------------------------------------------------------ the engine and its agents

let children = 0;

const agents = {
  name: 'bench',
  capabilities: { outputSchema: true, depthLimit: false, toolFilter: false, persona: false },
  inheritsParentContext: false,
  async start({ prompt, signal }) {
    const said = prompt[0].text;
    let result;
    if (said === 'hang') {
      result = new Promise((resolve) => {
        const stop = () => resolve({ output: [], stopReason: 'aborted' });
        if (signal.aborted) stop();
        else signal.addEventListener('abort', stop, { once: true });
      });
    } else if (said === 'deaf') result = sleep(2000, { output: [], stopReason: 'completed' });
    else result = Promise.resolve({ output: [{ type: 'text', text: `ok:${said}` }], stopReason: 'completed' });
    return { id: `child-${++children}`, localAgent: undefined, result, dispose: () => Promise.resolve() };
  },
};

async function withEngine(task, use) {
  const context = new Context();
  await context.plugin(SubagentRuntime);
  context.subagents.registerProvider(agents);
  await context.plugin(WorkerThreadWorkflowEngine, {
    provider: 'bench',
    maxConcurrentAgents: task.slots,
    maxTotalAgents: 1_000_000,
    maxItemsPerCall: 100_000,
    disposeGraceMs: task.grace * 1000,
  });
  const engine = {
    on: (kind, listener) => context.on(`workflow/${kind}`, listener),
    start: (script, extra = {}) =>
      context.workflowEngine.start({ script, meta: { name: 'bench', description: 'a benchmark' }, parent: { id: 'bench', options: {} }, ...extra }),
    // Resolves at the count-th event of a kind.
    when: (kind, count = 1) =>
      new Promise((resolve) => {
        let seen = 0;
        const off = context.on(`workflow/${kind}`, () => {
          if (++seen === count) { off(); resolve(); }
        });
      }),
  };
  try {
    return await use(engine);
  } finally {
    await context.fiber.dispose();
  }
}

function completed(result) {
  if (result.stopReason !== 'completed') throw new Error(`the measured run did not complete: ${result.error}`);
  return result;
}

// One whole run; resolves with the milliseconds from the start call to the result.
async function one(engine, script = 'return 1', extra = {}) {
  const before = now();
  const run = engine.start(script, extra);
  const started = now();
  const result = completed(await run.result);
  const after = now();
  await run.dispose();
  return { total: after - before, start: started - before, dispose: now() - after, after, value: result.value };
}

function memory() {
  const text = readFileSync('/proc/self/smaps_rollup', 'ascii');
  const field = (name) => Number(new RegExp(`^${name}:\\s+(\\d+)`, 'm').exec(text)[1]) / 1024;
  return { pss: field('Pss'), private: field('Private_Clean') + field('Private_Dirty') };
}

async function settleMemory() {
  for (let i = 0; i < 3; i++) {
    globalThis.gc();
    await sleep(150);
  }
}

// ------------------------------------------------------------------------------------------------ the kinds of task

const kinds = {
  async start(task) {
    const result = [];
    const dispose = [];
    if (task.temperature === 'cold') {
      for (let i = 0; i < task.runs; i++) {
        const before = now();
        await withEngine(task, async (engine) => result.push((await one(engine)).after - before));
      }
      return { result };
    }
    await withEngine(task, async (engine) => {
      await one(engine);
      for (let i = 0; i < task.runs; i++) {
        await sleep(task.pause * 1000);
        const run = await one(engine);
        result.push(run.total);
        dispose.push(run.dispose);
      }
    });
    return { result, dispose };
  },

  throughput: (task) =>
    withEngine(task, async (engine) => {
      for (let i = 0; i < 3; i++) await one(engine);
      let left = task.runs;
      const lane = async () => {
        while (left > 0) {
          left--;
          await one(engine);
        }
      };
      const before = now();
      await Promise.all(Array.from({ length: task.at_once }, lane));
      return { rate: [task.runs / ((now() - before) / 1000)] };
    }),

  calls: (task) =>
    withEngine(task, async (engine) => {
      await one(engine);
      const times = [];
      engine.on('log', () => times.push(now()));
      const { total } = await one(engine, task.script);
      return { per_call: [((times.at(-1) - times[0]) * 1000) / task.calls], total: [total] };
    }),

  logs: (task) =>
    withEngine(task, async (engine) => {
      await one(engine);
      const times = [];
      engine.on('log', () => times.push(now()));
      await one(engine, `for (let i = 0; i < ${task.events}; i++) log('line ' + i); return 1`);
      if (times.length !== task.events) throw new Error(`${times.length} of ${task.events} log events arrived`);
      return { rate: [task.events / ((times.at(-1) - times[0]) / 1000)] };
    }),

  value: (task) =>
    withEngine(task, async (engine) => {
      await one(engine);
      const items = Array.from({ length: task.items }, (_, i) => ({ id: i, name: `item-${i}`, text: 'x'.repeat(62) }));
      if (task.direction === 'args') {
        const run = await one(engine, 'return args.length', { args: items });
        if (run.value !== task.items) throw new Error('the args did not arrive whole');
        return { total: [run.total], start: [run.start] };
      }
      let built = 0;
      engine.on('log', () => { built = now(); });
      const build = `Array.from({ length: ${task.items} }, (_, i) => ({ id: i, name: 'item-' + i, text: 'x'.repeat(62) }))`;
      const run = await one(engine, `const v = ${build}; log('built'); return v`);
      if (run.value.length !== task.items || run.value.at(-1).name !== items.at(-1).name) throw new Error('the result did not arrive whole');
      return { total: [run.total], start: [run.start], built: [run.after - built] };
    }),

  cancel: (task) =>
    withEngine(task, async (engine) => {
      await one(engine);
      const cancel = [];
      const dispose = [];
      for (let i = 0; i < task.runs; i++) {
        const ready = engine.when(task.ready);
        const run = engine.start(task.script);
        await ready;
        await sleep(task.settle * 1000);
        if (task.cancel) {
          const before = now();
          run.cancel('benchmark');
          const result = await run.result;
          cancel.push(now() - before);
          if (result.stopReason !== 'cancelled') throw new Error(`a cancelled run ended as ${result.stopReason}`);
        }
        const before = now();
        await run.dispose();
        dispose.push(now() - before);
      }
      return task.cancel ? { cancel, dispose } : { dispose };
    }),

  memory: (task) =>
    withEngine(task, async (engine) => {
      await one(engine);
      await settleMemory();
      const base = memory();
      const allLive = engine.when('agent-start', task.live);
      let before = now();
      const runs = Array.from({ length: task.live }, () => engine.start("await agent('hang')"));
      await allLive;
      const start = now() - before;
      await settleMemory();
      const live = memory();
      before = now();
      for (const run of runs) run.cancel('benchmark');
      await Promise.all(runs.map((run) => run.dispose()));
      const end = now() - before;
      return { pss: [(live.pss - base.pss) / task.live], private: [(live.private - base.private) / task.live], start: [start], end: [end] };
    }),

  flood: (task) =>
    withEngine(task, async (engine) => {
      let logs = 0;
      engine.on('log', () => { logs++; });
      const latencies = async (enough) => {
        const samples = [];
        while (!enough(samples.length)) {
          await sleep(20);
          samples.push((await one(engine)).total);
        }
        return samples;
      };
      const calm = (await latencies((done) => done >= 10)).sort((a, b) => a - b)[5];
      const run = engine.start("await agent('task'); for (;;) log('x')");
      // Ended by a timer: while the flood lasts, another run may never get to its result here.
      setTimeout(() => run.cancel('benchmark'), task.seconds * 1000);
      while (logs < 1000) await sleep(1);
      let worst = 0;
      let last = now();
      const ticking = setInterval(() => {
        worst = Math.max(worst, now() - last - TICK_MS);
        last = now();
      }, TICK_MS);
      const end = now() + task.seconds * 1000;
      const flooded = await latencies((done) => done >= 100 || now() > end);
      clearInterval(ticking);
      await run.dispose();
      return { other: flooded.map((sample) => sample - calm), stall: [worst] };
    }),
};

// ------------------------------------------------------------------------------------------------ the conversation

process.stdout.write(`${JSON.stringify({ node: process.version })}\n`);
for await (const line of createInterface({ input: process.stdin })) {
  const task = JSON.parse(line);
  let answer;
  try {
    answer = { series: await kinds[task.kind](task) };
  } catch (error) {
    answer = { error: String(error) };
  }
  process.stdout.write(`${JSON.stringify(answer)}\n`);
}
process.exit(0);
