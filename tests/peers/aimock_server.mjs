// Serves npm @copilotkit/aimock on a free loopback port: prints its address, and ends when standard input does.
// argv: the package's entry module, then {fixtures, options, seed} as JSON.
import { pathToFileURL } from "node:url";

const [entry, setup] = process.argv.slice(2);
const { fixtures, options, seed } = JSON.parse(setup);

// The fault modes draw from Math.random: seeded, a test meets the same faults every time it runs.
let state = seed >>> 0;
Math.random = () => {
  state = (state + 0x6d2b79f5) >>> 0;
  let mixed = Math.imul(state ^ (state >>> 15), state | 1);
  mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61)) ^ mixed;
  return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
};

const { LLMock } = await import(pathToFileURL(entry).href);
const mock = new LLMock({ ...options, host: "127.0.0.1", port: 0 });
mock.addFixturesFromJSON(fixtures);
console.log(await mock.start());

// A test process that dies closes the pipe, so no server outlives it.
process.stdin.on("end", () => process.exit(0)).resume();
