"""The reference, part two: agent(), parallel(), pipeline(), phase() and log()."""

from __future__ import annotations

from tests.contract.reference_table import Relation, Row, Setup, completed, fatal, same, unserialisable

ROWS: tuple[Row, ...] = (
    same("agent_text", "return await agent('x')", completed("ok:x", "completed")),
    same(
        "agent_multi_label",
        "phase('P1'); await agent('line one\\nline two'); await "
        "agent('yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy'); await agent('z', { label: "
        "'mine', phase: 'P2' }); return 1",
        completed(1, "completed", "completed", "completed"),
    ),
    same("agent_failed_child", "return await agent('fail')", completed(None, "failed")),
    Row(
        "agent_rejected_result",
        "return await agent('reject')",
        fatal("child agent run failed: RuntimeError: child result rejected", "failed"),
        fatal("child agent run failed: Error: Error: child result rejected", "failed"),
        Relation.BEYOND,
        "The provider's error is named once, with its Python class.",
    ),
    Row(
        "agent_start_fails",
        "return await agent('startfail')",
        fatal("agent() could not start a child: RuntimeError: provider refused"),
        fatal("agent() could not start a child: Error: Error: provider refused", started=1),
        Relation.BEYOND,
        "The provider's error is named once; an agent that never started is not counted.",
    ),
    Row(
        "agent_start_fails_caught",
        "try { await agent('startfail') } catch (e) { return { name: e.name, code: e.code, fatal: e.fatal, "
        "message: e.message, isError: e instanceof Error } }",
        completed(
            {
                "name": "WorkflowError",
                "code": "AGENT_START",
                "message": "agent() could not start a child: RuntimeError: provider refused",
                "isError": True,
            },
        ),
        completed(
            {
                "name": "WorkflowError",
                "code": "AGENT_START",
                "fatal": True,
                "message": "agent() could not start a child: Error: Error: provider refused (and a stack with "
                "host paths)",
                "isError": False,
            },
            started=1,
        ),
        Relation.BEYOND,
        "A real Error of the script's realm, and no host path in its message.",
    ),
    same(
        "promise_all_one_fails",
        "return await Promise.all([agent('a'), agent('fail'), agent('b')])",
        completed(["ok:a", None, "ok:b"], "completed", "failed", "completed"),
    ),
    Row(
        "promise_all_one_rejects",
        "return await Promise.all([agent('a'), agent('reject'), agent('b')])",
        fatal("child agent run failed: RuntimeError: child result rejected", "completed", "failed", "completed"),
        fatal("child agent run failed: Error: Error: child result rejected", "completed", "failed", "completed"),
        Relation.BEYOND,
        "The provider's error is named once, with its Python class.",
    ),
    Row(
        "agent_unknown_option",
        "return await agent('x', { nope: 1 })",
        fatal(
            'agent() option "nope" is not recognized (supported: label, phase, schema, provider, model, '
            "agentType, effort, isolation, stallMs)",
        ),
        fatal('agent() option "nope" is not recognized (supported: label, phase, schema, provider, model)'),
        Relation.BEYOND,
        "The same refusal; four more options are known.",
    ),
    Row(
        "agent_deferred_option",
        "return await agent('x', { isolation: 'worktree' })",
        fatal(
            'agent() option "isolation" is not supported by the agent provider "default" (supported: '
            "label, phase, schema, provider, model)",
        ),
        fatal(
            'agent() option "isolation" is deferred and not supported by this engine (supported: label, '
            "phase, schema, provider, model)",
        ),
        Relation.BEYOND,
        "Passed through when the provider declares it; otherwise refused, naming the provider.",
    ),
    same(
        "agent_option_wrong_type",
        "return await agent('x', { label: 1 })",
        fatal('agent() option "label" must be a string'),
    ),
    Row(
        "agent_option_undefined",
        "return await agent('x', { label: undefined })",
        completed("ok:x", "completed"),
        fatal("agent() options must be plain JSON data — agent() options.label: undefined is not JSON data"),
        Relation.BEYOND,
        "An option whose value is undefined counts as absent.",
    ),
    same("agent_options_null", "return await agent('x', null)", fatal("agent() options must be an object")),
    same("agent_options_array", "return await agent('x', [])", fatal("agent() options must be an object")),
    same("agent_empty_prompt", "return await agent('')", fatal("agent() requires a non-empty prompt string")),
    same("agent_no_prompt", "return await agent()", fatal("agent() requires a non-empty prompt string")),
    same("agent_number_prompt", "return await agent(1)", fatal("agent() requires a non-empty prompt string")),
    same("agent_whitespace_prompt", "return await agent(' ')", completed("ok: ", "completed")),
    same(
        "agent_schema_no_structured",
        "return await agent('x', { schema: { type: 'object', properties: { n: { type: 'number' } }, "
        "required: ['n'] } })",
        completed(None, "failed"),
    ),
    same(
        "agent_schema_structured",
        "return await agent('structured', { schema: { type: 'object', properties: { n: { type: 'number' } "
        "}, required: ['n'] } })",
        completed({"n": 1, "extra": [True]}, "completed"),
    ),
    Row(
        "agent_schema_structured_violates",
        "return await agent('structured-wrong', { schema: { type: 'object', properties: { n: { type: "
        "'number' } }, required: ['n'] } })",
        completed(None, "failed"),
        completed({"n": "not a number"}, "completed"),
        Relation.STRICTER,
        "The host validates structured answers; the agent fails with the errors as its reason.",
    ),
    Row(
        "agent_schema_structured_nan",
        "return await agent('structured-nan', { schema: { type: 'object', properties: { n: { type: "
        "'number' } }, required: ['n'] } })",
        fatal(
            "child agent run failed: its answer is not JSON: answer.n: non-finite numbers are not JSON data",
            "failed",
        ),
        fatal(
            "child agent run failed: Error: workflow child result could not cross the worker boundary: "
            "TypeError: child result is not losslessly JSON-serializable",
            "failed",
        ),
        Relation.BEYOND,
        "The path names the bad number.",
    ),
    same(
        "agent_structured_ignored_without_schema",
        "return await agent('structured')",
        completed("t", "completed"),
    ),
    same(
        "agent_schema_failed_child",
        "return await agent('fail', { schema: { type: 'object', properties: { n: { type: 'number' } }, "
        "required: ['n'] } })",
        completed(None, "failed"),
    ),
    same(
        "agent_schema_bad",
        "return await agent('x', { schema: { type: 'array' } })",
        fatal(
            "agent() schema is outside the supported subset — unsupported JSON schema: schema.type must be "
            '"object" (structured output is object-rooted)',
        ),
    ),
    Row(
        "agent_schema_unsupported_keyword",
        "return await agent('x', { schema: { type: 'object', properties: { a: { type: 'string', format: "
        "'date' } } } })",
        completed(None, "failed"),
        fatal(
            "agent() schema is outside the supported subset — unsupported JSON schema: "
            "schema.properties.a.format is not a supported keyword (subset: "
            "type/oneOf/properties/required/additionalProperties/items/enum/const + annotations)",
        ),
        Relation.BEYOND,
        "Any valid JSON Schema with an object root is accepted.",
    ),
    same("agent_error_dropped_then_return", "agent(''); return 'still fine'", completed("still fine")),
    same("parallel_non_function", "return await parallel([1])", fatal("parallel() item 0 is not a function")),
    same("parallel_empty", "return await parallel([])", completed([])),
    same(
        "parallel_not_array",
        "return await parallel('x')",
        fatal("parallel() requires an array of zero-argument functions"),
    ),
    Row(
        "parallel_promises_not_thunks",
        "return await parallel([agent('x')])",
        fatal("parallel() item 0 is not a function: it is a promise; write () => agent(…)"),
        fatal("parallel() item 0 is not a function", "completed", late=True),
        Relation.BEYOND,
        "The message says what to write; the agent called in vain is not started after the end.",
    ),
    Row(
        "parallel_throwing_thunk",
        "return await parallel([() => { throw new Error('x') }, () => 2, async () => agent('fail'), () => undefined])",
        completed([None, 2, None, None], "failed"),
        unserialisable("[3]: undefined is not JSON data"),
        Relation.BEYOND,
        "An undefined result becomes null with a warning instead of losing the whole run.",
    ),
    Row(
        "parallel_fatal_thunk",
        "return await parallel([() => agent(''), () => agent('a')])",
        fatal("agent() requires a non-empty prompt string"),
        fatal("agent() requires a non-empty prompt string", started=1),
        Relation.BEYOND,
        "An agent that never started is not counted.",
    ),
    same(
        "parallel_fatal_caught",
        "try { await parallel([() => agent('')]) } catch (e) { return e.code }",
        completed("INVALID_ARGUMENT"),
    ),
    same("pipeline_empty", "return await pipeline([], x => x)", completed([])),
    same(
        "pipeline_no_stage",
        "return await pipeline([1])",
        fatal("pipeline() requires at least one stage function"),
    ),
    same(
        "pipeline_stage_args",
        "return await pipeline([10, 20], (p, item, i) => [p, item, i], (p, item, i) => [p, item, i])",
        completed([[[10, 10, 0], 10, 0], [[20, 20, 1], 20, 1]]),
    ),
    same(
        "pipeline_stage_throws",
        "return await pipeline([1, 2, 3], (x) => { if (x === 2) throw new Error('two'); return x * 10 }, (x) => x + 1)",
        completed([11, None, 31]),
    ),
    same(
        "pipeline_failed_agent_goes_on",
        "return await pipeline(['a', 'fail'], (p) => agent(p), (p) => ({ got: p }))",
        completed([{"got": "ok:a"}, {"got": None}], "completed", "failed"),
    ),
    same(
        "pipeline_non_function_stage",
        "return await pipeline([1], 2)",
        fatal("pipeline() stage 0 is not a function"),
    ),
    same(
        "pipeline_not_array",
        "return await pipeline('abc', x => x)",
        fatal("pipeline() requires an items array"),
    ),
    same(
        "item_cap",
        "return await parallel([() => 1, () => 2, () => 3])",
        fatal(
            "parallel() received 3 items — over the per-call cap (2); split the work or raise "
            "maxItemsPerCall in the engine config",
        ),
        Setup(config={"max_items_per_call": 2}),
    ),
    same("phase_empty", "phase('')", fatal("phase() requires a non-empty title string")),
    same("phase_number", "phase(1)", fatal("phase() requires a non-empty title string")),
    same("phase_undeclared", "phase('Anything'); return 1", completed(1)),
    same("log_number", "log(1)", fatal("log() requires a message string")),
    same("log_empty", "log(''); return 1", completed(1)),
    same(
        "log_order",
        "log('a'); phase('P'); log('b'); const r = await agent('x'); log(r); return 1",
        completed(1, "completed"),
    ),
)
