"""What the model reads about the ``workflow`` tool: its description, its parameters, its section of the system prompt.

The description is the whole authoring contract: a model that reads only this can write a correct script.
"""

from __future__ import annotations

from typing import Any

from orchestrator.tool.registry import PromptSection

__all__ = ["DESCRIPTION", "PARAMETERS", "prompt_section"]

DESCRIPTION = """\
Run a JavaScript workflow script that coordinates many subagents, and return the script's final value. Meant for \
work that splits into independent pieces: auditing many files, a migration, research from several angles, checking \
findings by a second opinion. You write the coordination as code; the subagents do the work. The call returns when \
the whole script has finished.

A call has three parameters.
- `script`: the body of an async function in plain JavaScript. Not TypeScript, no `import`, no `require`. Use \
`await` at the top level and end with `return <value>`.
- `meta`: plain JSON that names the workflow: `name` (short, kebab-case) and `description`, both non-empty strings; \
optional `whenToUse` (string) and `phases` (array of `{title, detail?, provider?, model?}`). No other fields. Keep \
it out of the script; only a script file that already starts with `export const meta = {...}` is sent without \
`meta`.
- `args`: optional JSON object, seen by the script as the global `args` (`undefined` when left out). Put a bare \
list into a field: `{"files": [...]}`.

Globals of the script, besides the ECMAScript built-ins:
- `agent(prompt, opts?)` runs one subagent and returns a promise. Without `opts.schema` it resolves to the \
subagent's final text. With `opts.schema`, a JSON Schema (draft 2020-12, local `$ref` only) whose root type is \
"object", it resolves to an object that was validated against it. It resolves to `null` when the subagent fails: \
check for that, for example with `.filter(Boolean)`. A subagent sees only its prompt: put into it everything it \
needs. Options: `label` (what the progress shows; default: the prompt's first line), `phase` (the progress group), \
`schema`, `provider`, `model`; and, only where the deployment's agents support them, `agentType`, `effort`, \
`isolation`, `stallMs`. Any other option is an error.
- `pipeline(items, ...stages)` sends every item through all stages independently, with no barrier between stages: \
the first choice for work in several steps. A stage gets `(previous, item, index)`. A stage that throws makes that \
item `null` and skips its remaining stages.
- `parallel(thunks)` runs zero-argument functions at once and waits for all of them, as in `await \
parallel(files.map(f => () => agent(...)))`. Pass functions, not promises. A function that throws gives `null` at \
its place. It is a barrier: use it where the next step needs all results together.
- `phase(title)` starts a progress phase for the `agent()` calls that follow; `log(message)` tells the user something.
- `setTimeout(fn, ms)` and `clearTimeout(id)`; `budget` with `total` (a number or null), `spent()` and \
`remaining()`, in output tokens.

Nothing else exists: no files, network, console, process or modules. What needs them is a subagent's work.

Rules.
- Subagents run concurrently up to a cap; calls beyond it wait their turn, so start as many as the work has. A run \
also has a cap on its total number of agents and on the items of one `parallel` or `pipeline` call.
- Wrong use of a hook (a bad argument, an unknown option, an unsupported schema, a cap reached) throws an error \
with a `code`; it passes through `parallel` and `pipeline` and ends the run unless the script catches it.
- The returned value and the agent options must be plain JSON: no functions, dates, Maps, class instances, cycles \
or un-awaited promises. A property whose value is `undefined` is left out.
- Wait for every agent whose answer matters: those still running when the script returns are cancelled.
- A failed run returns an error with the script's line and column, and nothing of its partial results.

Example:
phase('Find')
const found = await agent('List the public functions in src/ that lack tests.', {schema: {type: 'object', \
properties: {names: {type: 'array', items: {type: 'string'}}}, required: ['names']}})
if (!found) return {error: 'the survey failed'}
phase('Write')
const done = await pipeline(found.names,
  name => agent(`Write a test for ${name}.`, {label: `write ${name}`}),
  (text, name) => text && agent(`Review this test for ${name}:\\n${text}`, {label: `review ${name}`}))
return {reviewed: done.filter(Boolean).length, of: found.names.length}"""

PARAMETERS: dict[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "required": ["script", "meta"],
    "properties": {
        "script": {
            "type": "string",
            "description": "The script: plain JavaScript, top-level await, ending in `return <json value>`.",
        },
        "meta": {
            "type": "object",
            "description": "Names the workflow. Plain JSON, never code.",
            "additionalProperties": False,
            "required": ["name", "description"],
            "properties": {
                "name": {"type": "string", "minLength": 1, "description": "A short kebab-case name."},
                "description": {"type": "string", "minLength": 1, "description": "What the workflow does, in a line."},
                "whenToUse": {"type": "string", "description": "When this workflow applies."},
                "phases": {
                    "type": "array",
                    "description": "The phases the script will announce with phase(title).",
                    "items": {
                        "type": "object",
                        "additionalProperties": False,
                        "required": ["title"],
                        "properties": {
                            "title": {
                                "type": "string",
                                "minLength": 1,
                                "description": "The title given to phase().",
                            },
                            "detail": {"type": "string", "description": "What happens in it, in a line."},
                            "provider": {
                                "type": "string",
                                "description": "The provider its agents should use.",
                            },
                            "model": {"type": "string", "description": "The model its agents should use."},
                        },
                    },
                },
            },
        },
        "args": {
            "type": "object",
            "additionalProperties": True,
            "description": 'Input for the script, its global `args`. Put a list into a field: {"files": […]}.',
        },
    },
}
"""What a model is shown. The tool itself also takes a script with its own header and no ``meta``, and ``args`` as the
text of an object, because that is what models send."""


def prompt_section(tool_name: str) -> PromptSection:
    """The policy of when to use the tool, for the system prompt."""
    return PromptSection(
        name=f"tool:{tool_name}",
        text=(
            f"Use the {tool_name} tool ONLY when the user explicitly asks for a workflow or for large multi-agent "
            "orchestration: you write a JavaScript script (the tool description documents the exact format) that fans "
            "work out across many subagents with phases and structured results. For one or two delegations, prefer "
            "plain subagent calls."
        ),
    )
