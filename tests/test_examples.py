"""The example scripts do what their first lines say, and what the README promises of them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from orchestrator import AgentFailed, AgentRequest, AgentResult, EngineConfig, ErrorCode, WorkflowResult, run_workflow
from orchestrator.providers import CommandProvider, provider_from_spec

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
SCRIPTS = sorted(path.name for path in EXAMPLES.glob("*.js"))
USUAL_ARGS: dict[str, Any] = {
    "common-words.js": {"files": ["README.md"]},
    "review-files.js": {"files": ["a.py", "b.py"]},
    "search-until-dry.js": {"question": "Where is it?"},
}


def run_example(name: str, args: Any, agent: Any, **config: Any) -> WorkflowResult:
    meta = EXAMPLES / name.replace(".js", ".meta.json")
    return run_workflow(
        (EXAMPLES / name).read_text("utf-8"),
        meta=json.loads(meta.read_text("utf-8")) if meta.exists() else None,
        args=args,
        agent=agent,
        config=EngineConfig(spare_workers=0, **config),
    )


def value_of(result: WorkflowResult) -> Any:
    assert result.stop_reason == "completed", result.error
    return result.value


def test_there_are_examples_of_at_least_four_shapes() -> None:
    assert len(SCRIPTS) >= 4


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_example_can_be_rehearsed(name: str) -> None:
    result = run_example(name, USUAL_ARGS.get(name, {}), provider_from_spec("rehearse"))
    assert isinstance(value_of(result), dict)
    assert result.agents_failed == 0
    assert result.agents_started > 0
    assert result.warnings == ()


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_example_says_how_to_run_it(name: str) -> None:
    assert f"workflow run examples/{name}" in (EXAMPLES / name).read_text("utf-8")


def test_the_contract_names_every_code_and_shows_a_message_that_is_true() -> None:
    contract = (EXAMPLES.parent / "docs" / "script-contract.md").read_text("utf-8")
    assert [code for code in ErrorCode if f"`{code}`" not in contract] == []
    script = "const wanted = args.files"
    result = run_workflow(
        script, meta={"name": "shown", "description": "an error"}, agent=provider_from_spec("rehearse")
    )
    assert result.error is not None
    assert f"```\n{result.error}\n```" in contract


# --- with a shell ---


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small project with file and folder names that need quoting."""
    files = {
        "lib/one.py": "import os\nimport sys\nfrom os import path\n",
        "lib/deep/two words.py": "x = 1\n" * 40,
        "it's odd/three.py": "from __future__ import annotations\n",
        "notes/readme.txt": "no source here\n",
        ".venv/lib/hidden.py": "secret = 1\n" * 99,
        "build/lib/one.py": "import os\n",
        "top.py": "pass\n",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_inventory_counts_what_is_there(project: Path) -> None:
    value = value_of(run_example("count-lines.js", {}, CommandProvider(["sh"])))
    assert (value["files"], value["lines"], value["notCounted"]) == (3, 44, [])
    assert value["longest"] == {"name": "lib/deep/two words.py", "count": 40}
    assert [(entry["folder"], entry["files"], entry["lines"]) for entry in value["folders"]] == [
        ("lib", 2, 43),
        ("it's odd", 1, 1),
    ]
    assert value["folders"][0]["imports"] == [{"name": "os", "count": 2}, {"name": "sys", "count": 1}]


def test_the_inventory_of_this_project_is_true(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(EXAMPLES.parent)
    value = value_of(run_example("count-lines.js", {"folders": ["protocol"]}, CommandProvider(["sh"])))
    sources = list(Path("protocol").rglob("*.py"))
    assert value["files"] == len(sources)
    assert value["lines"] == sum(path.read_bytes().count(b"\n") for path in sources)


def test_the_inventory_says_what_it_could_not_count(project: Path) -> None:
    value = value_of(run_example("count-lines.js", {"folders": ["lib"], "suffix": "rs"}, CommandProvider(["sh"])))
    assert (value["files"], value["lines"], value["longest"]) == (0, 0, None)
    shutil.rmtree(project / "lib")
    result = run_example("count-lines.js", {"folders": ["notes"]}, CommandProvider(["false"]))
    assert (value_of(result)["notCounted"], result.agents_failed) == (["notes"], 3)
    assert "error" in value_of(run_example("count-lines.js", {"suffix": "rs"}, CommandProvider(["sh"])))


def test_common_words_agree_with_a_count_in_python(project: Path) -> None:
    texts = {
        "a.txt": "The quick brown fox; THE QUICK dog\n",
        "it's b.txt": "quick-witted foxes, brown bread\n",
        "empty.txt": "",
    }
    for name, text in texts.items():
        (project / name).write_text(text)
    args = {"files": [*texts, "no such file", "a.txt"], "minimumLength": 4, "top": 100}
    value = value_of(run_example("common-words.js", args, CommandProvider(["sh"])))
    counts = [Counter(word for word in re.findall("[a-z]+", text.lower()) if len(word) >= 4) for text in texts.values()]
    assert {entry["word"]: entry["count"] for entry in value["words"]} == dict(sum(counts, Counter()))
    assert {entry["word"]: entry["files"] for entry in value["words"]}["brown"] == 2
    assert value["words"][0]["word"] == "quick"
    assert (value["files"], value["unreadable"]) == (3, ["no such file"])


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ({"files": "README.md"}, {"error": "args.files must be a list of file names"}),
        ({"files": []}, {"words": [], "files": 0, "unreadable": []}),
    ],
)
def test_common_words_returns_early_without_an_agent(args: Any, expected: Any) -> None:
    result = run_example("common-words.js", args, CommandProvider(["sh"]))
    assert (value_of(result), result.agents_started) == (expected, 0)


# --- with a Python agent ---


def test_the_static_reviewer_finds_real_defects_and_its_sceptics_confirm_them(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = "def shared(items=[]):\n    try:\n        items.append(1)\n    except:\n        pass\n"
    (project / "bad.py").write_text(bad)
    (project / "good.py").write_text("x = 1\n")
    shutil.copytree(EXAMPLES, project / "examples")
    result = run_example(
        "review-files.js",
        {"files": ["good.py", "bad.py", "missing.py"]},
        provider_from_spec("python:examples.agents.static_reviewer:answer"),
    )
    value = value_of(result)
    found = [
        (finding["file"], finding["line"], finding["severity"], finding["votes"]) for finding in value["confirmed"]
    ]
    assert found == [("bad.py", 1, "high", 3), ("bad.py", 4, "medium", 3)]
    assert (value["refuted"], value["notReviewed"]) == (0, ["missing.py"])
    assert [failure.label for failure in result.failures] == ["review missing.py"]


def test_a_finding_that_most_sceptics_refute_is_dropped() -> None:
    async def agent(request: AgentRequest) -> AgentResult:
        if request.label.startswith("review"):
            claims = [{"line": n, "severity": "low", "claim": f"claim {n}"} for n in (1, 2)]
            return AgentResult(structured={"findings": claims})
        if "elsewhere" in request.prompt:
            raise AgentFailed("no time")
        return AgentResult(structured={"real": "claim 1" in request.prompt, "why": "because"})

    value = value_of(run_example("review-files.js", {"files": ["x"]}, agent))
    assert [(finding["line"], finding["votes"], finding["of"]) for finding in value["confirmed"]] == [(1, 2, 2)]
    assert value["refuted"] == 1


def test_nothing_to_review_starts_no_agent() -> None:
    result = run_example("review-files.js", {}, provider_from_spec("rehearse"))
    assert (value_of(result)["confirmed"], result.agents_started) == ([], 0)


# --- loops and panels ---


def test_the_search_goes_on_until_two_rounds_bring_nothing_new() -> None:
    async def agent(request: AgentRequest) -> AgentResult:
        known = request.prompt.count("\n- answer")
        return AgentResult(structured={"answers": [f"answer {min(known + 1, 3)}", f"  ANSWER   {min(known + 1, 3)} "]})

    value = value_of(run_example("search-until-dry.js", {"question": "q", "maxRounds": 9}, agent))
    assert (value["rounds"], value["stopped"]) == (5, "nothing new")
    assert value["answers"] == ["answer 1", "answer 2", "answer 3"]


def test_the_search_ends_by_its_limit_of_rounds_and_when_every_searcher_fails() -> None:
    async def tireless(request: AgentRequest) -> AgentResult:
        return AgentResult(structured={"answers": [f"{request.seq}"]})

    async def useless(request: AgentRequest) -> AgentResult:
        raise AgentFailed("no luck")

    value = value_of(run_example("search-until-dry.js", {"question": "q", "maxRounds": 2}, tireless))
    assert (value["rounds"], value["stopped"], len(value["answers"])) == (2, "after 2 rounds", 6)
    value = value_of(run_example("search-until-dry.js", {"question": "q"}, useless))
    assert value == {"error": "every searcher failed", "answers": []}


def test_the_search_minds_its_budget() -> None:
    from orchestrator import Usage

    async def agent(request: AgentRequest) -> AgentResult:
        return AgentResult(structured={"answers": [f"{request.seq}"]}, usage=Usage(output_tokens=31))

    value = value_of(run_example("search-until-dry.js", {"question": "q"}, agent, token_budget=100))
    assert (value["rounds"], value["stopped"]) == (1, "the budget is nearly spent")


@pytest.mark.parametrize("args", [None, {}, {"question": " "}, {"question": 3}, {"question": "q", "angles": []}])
def test_the_search_checks_its_arguments_before_it_starts_anyone(args: Any) -> None:
    result = run_example("search-until-dry.js", args, provider_from_spec("rehearse"))
    assert "error" in value_of(result)
    assert result.agents_started == 0


def test_the_panel_builds_on_the_best_attempt() -> None:
    async def agent(request: AgentRequest) -> str | AgentResult:
        match request.phase:
            case "Attempt":
                if "fear" in request.prompt:
                    raise AgentFailed("gave up")
                return f"text by {'simple' if 'simplest' in request.prompt else 'principle'}"
            case "Judge":
                good = "text by principle" in request.prompt
                return AgentResult(structured={"score": 9 if good else 4, "strength": None if good else "short"})
            case _:
                return request.prompt

    result = run_example("judge-panel.js", {"task": "t"}, agent)
    value = value_of(result)
    assert value["winner"] == "from first principles"
    assert value["scores"] == [
        {"approach": "from first principles", "score": 9},
        {"approach": "the simplest thing that works", "score": 4},
    ]
    assert "text by principle" in value["answer"]
    assert "short" in value["answer"]
    assert (result.agents_started, result.agents_failed) == (10, 1)


def test_a_panel_without_an_attempt_says_so() -> None:
    result = run_example("judge-panel.js", {}, CommandProvider(["false"]))
    assert value_of(result) == {"error": "no attempt succeeded"}


# --- the wrapper for models behind a command line ---


def test_the_wrapper_tells_a_model_its_schema_and_nothing_where_there_is_none() -> None:
    agent = CommandProvider(["sh", str(EXAMPLES / "agents" / "with-schema.sh"), "cat"])
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    script = f"return [await agent('plain'), await agent('{{\"n\": 7}}', {{schema: {json.dumps(schema)}}})]"
    meta = {"name": "wrapped", "description": "a wrapped command"}
    value = value_of(run_workflow(script, meta=meta, agent=agent))
    assert value[0] == "plain"
    # `cat` answers the whole prompt; the last object in it is the schema that the wrapper wrote below it.
    assert value[1] == schema


def test_the_wrapper_fails_as_the_model_fails() -> None:
    wrapper = str(EXAMPLES / "agents" / "with-schema.sh")
    done = subprocess.run(
        ["sh", wrapper, "sh", "-c", "exit 7"], input=b"", capture_output=True, timeout=30, check=False
    )
    assert done.returncode == 7
    done = subprocess.run(["sh", wrapper], input=b"", capture_output=True, timeout=30, check=False)
    assert (done.returncode, done.stderr) == (2, b"usage: with-schema.sh COMMAND [ARGUMENT...]\n")
