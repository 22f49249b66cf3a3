"""``command:`` agents of a workflow.toml with a real coding agent: Gemini CLI prints JSON, and aimock is its model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.command_line import ROOT, run
from tests.peers.aimock import aimock
from tests.peers.gemini_cli import gemini_cli

pytestmark = pytest.mark.timeout(120)

TOKENS = {"prompt_tokens": 21, "completion_tokens": 4}
FIXTURES: list[Mapping[str, Any]] = [
    {"match": {"userMessage": "count"}, "response": {"content": 'So: {"n": 3}', "usage": TOKENS}},
    {"match": {"userMessage": "say hello"}, "response": {"content": "Hello from the model.", "usage": TOKENS}},
]
FILE = """
agent = "gemini"

[agents.gemini]
use = "command"
argv = {argv}
env = {env}
prompt_args = ["--prompt", "{{prompt}}"]
model_args = ["--model", "{{model}}"]
schema_prompt = true
output = "json"
text = "response"
error = "error"
usage_input = "stats.models.*.tokens.prompt"
usage_output = "stats.models.*.tokens.candidates"
max_concurrent = 1
"""


def inline(table: Mapping[str, str]) -> str:
    return "{" + ", ".join(f"{json.dumps(name)} = {json.dumps(value)}" for name, value in table.items()) + "}"


def test_gemini_cli_answers_as_json_with_its_tokens_and_its_failure_is_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    gemini_cli(tmp_path / "home", None)  # skips before anything is started
    with aimock(FIXTURES) as model:
        cli = gemini_cli(tmp_path / "home", model.gemini_url)
        # The key of a model that does not exist is no secret, but has a secret's name: it goes into the environment.
        added = {name: value for name, value in cli.env.items() if "KEY" not in name}
        for name in cli.env.keys() - added.keys():
            monkeypatch.setenv(name, cli.env[name])
        argv = json.dumps([*cli.argv, "--output-format", "json"])
        (tmp_path / "workflow.toml").write_text(FILE.format(argv=argv, env=inline(added)))
        script = """
        phase('Greet'); const text = await agent('say hello')
        phase('Count'); const counted = await agent('count the files', { model: 'gemini-2.5-pro', schema: args })
        phase('Fail'); const none = await agent('nobody has an answer to this', { label: 'hopeless' })
        return { text, n: counted?.n, none }
        """
        schema = '{"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}'
        done = run(script, "--json", "--args", schema)
        outcome = json.loads(done.stdout)
        assert outcome["value"] == {"text": "Hello from the model.", "n": 3, "none": None}, done.stderr.decode()
        assert [(phase["title"], phase["input_tokens"], phase["output_tokens"]) for phase in outcome["phases"]][:2] == [
            ("Greet", 21, 4),
            ("Count", 21, 4),
        ]
        assert [failure["label"] for failure in outcome["failures"]] == ["hopeless"]
        assert outcome["failures"][0]["reason"].startswith(f"{Path(cli.argv[0]).name} exited with code ")
        assert any("gemini-2.5-pro" in str(entry) for entry in model.journal(path="GenerateContent"))
