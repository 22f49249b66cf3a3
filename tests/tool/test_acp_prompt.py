"""What a prompt to ``workflow acp`` means."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import acp
import pytest

from orchestrator.acp import PromptRefused, read_prompt
from orchestrator.acp.prompt import MAX_SCRIPT_BYTES
from tests.conftest import run_async

HEADER = "export const meta = {name: 'own', description: 'd'}\nreturn 1\n"
DEFAULT = "A script without a header, sent by the user"


def read(*blocks: Any, cwd: Path | str = "/") -> dict[str, Any]:
    made = [acp.text_block(block) if isinstance(block, str) else block for block in blocks]
    return run_async(read_prompt(made, str(cwd)))


def refusal(*blocks: Any, cwd: Path | str = "/") -> str:
    with pytest.raises(PromptRefused) as refused:
        read(*blocks, cwd=cwd)
    return str(refused.value)


@pytest.mark.parametrize(
    ("prompt", "script", "args"),
    [
        ("```js\nreturn 1\n```", "return 1\n", None),
        ("Please run this:\n\n```javascript\nreturn 1\n```\nThanks!", "return 1\n", None),
        ("~~~JS title=x\nreturn 1\n~~~", "return 1\n", None),
        ("```js\r\nreturn 1\r\n```\r\n", "return 1\r\n", None),
        ("```js\nreturn args\n```\n```json\n{\"a\": 1}\n```", "return args\n", {"a": 1}),
        ("```js\nreturn args\n```\n{\"a\": 1}", "return args\n", {"a": 1}),
        ("```json\n{\"a\": 1}\n```\n```js\nreturn args\n```", "return args\n", {"a": 1}),
        ("````js\nawait agent(`\n```\ncode\n```\n`)\n````", "await agent(`\n```\ncode\n```\n`)\n", None),
        ("```python\nprint(1)\n```\n```js\nreturn 1\n```", "return 1\n", None),
        ("```js\n```", "", None),
    ],
)  # fmt: skip
def test_a_fenced_script_is_taken_with_its_args(prompt: str, script: str, args: Any) -> None:
    expected: dict[str, Any] = {"script": script, "meta": {"name": "prompt", "description": DEFAULT}}
    assert read(prompt) == (expected if args is None else {**expected, "args": args})


def test_a_script_with_a_header_is_sent_without_meta() -> None:
    assert read(f"```js\n{HEADER}```") == {"script": HEADER}


@pytest.mark.parametrize(
    ("typed", "args"),
    [
        ("review.js", None),
        ("  review.js  ", None),
        ('review.js {"files": ["a b.py"]}', {"files": ["a b.py"]}),
        ('review.js\n{"n": 1}', {"n": 1}),
        ('"my script.js" {"n": 1}', {"n": 1}),
        ("'my script.js'", None),
        ("`review.js`", None),
        ("sub/deep.mjs {}", {}),
    ],
)
def test_the_path_of_a_script_file_is_taken_with_the_json_after_it(typed: str, args: Any, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    for name in ("review.js", "my script.js", "sub/deep.mjs"):
        (tmp_path / name).write_text(HEADER)
    assert read(typed, cwd=tmp_path) == ({"script": HEADER} if args is None else {"script": HEADER, "args": args})


def test_an_absolute_path_and_a_file_without_a_header_get_the_files_name(tmp_path: Path) -> None:
    (tmp_path / "plain.js").write_text("return 1")
    assert read(str(tmp_path / "plain.js"))["meta"] == {"name": "plain", "description": DEFAULT}


def test_a_mentioned_file_is_read_and_an_attached_one_is_taken_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "a b.js").write_text(HEADER)
    uri = f"file://{tmp_path}/a%20b.js"
    assert read('{"n": 1}', acp.resource_link_block("a b.js", uri)) == {"script": HEADER, "args": {"n": 1}}
    attached = acp.resource_block(acp.embedded_text_resource("file:///gone/x.js", HEADER))
    assert read(attached) == {"script": HEADER}


@pytest.mark.parametrize("prompt", ["", "   ", "hello there", "```python\nprint(1)\n```", "```js\nreturn 1"])
def test_anything_else_is_answered_with_how_to_write_a_prompt(prompt: str) -> None:
    assert refusal(prompt).startswith("Send a workflow to run")


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ("missing.js", "The script file missing.js cannot be read: no such file or directory."),
        ("./folder/", "The script file ./folder/ cannot be read: is a directory."),
        ("bytes.js", "The script file bytes.js is not UTF-8 text: save it as UTF-8."),
        ("large.js", "The script file large.js is over the limit of 4 MiB."),
        ("ok.js [1]", 'The args must be a JSON object such as {"items": […]}'),
        ("ok.js {a: 1}", "What follows the script must be its args, as one JSON object"),
        ("ok.js and then some", "What follows the script must be its args, as one JSON object"),
        ("a\0b.js", "cannot be read: not a file name."),
        ("```js\nreturn 1\n```\n```js\nreturn 2\n```", "The prompt has 2 script blocks. Send one script at a time."),
        ("```js\n1\n```\n```json\n{}\n```\n```json\n{}\n```", "The prompt has 2 json blocks."),
        ("```js\nreturn 1\n```\n{\"a\": }", "What follows the script must be its args"),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_named_as_the_user_wrote_it(prompt: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "ok.js").write_text(HEADER)
    (tmp_path / "bytes.js").write_bytes(b"\xff\xfe")
    (tmp_path / "large.js").write_bytes(b" " * (MAX_SCRIPT_BYTES + 1))
    text = refusal(prompt, cwd=tmp_path)
    assert message in text
    assert str(tmp_path) not in text


def test_without_the_sdk_the_package_says_what_to_install() -> None:
    code = "import sys; sys.modules['acp'] = None; import orchestrator.acp"
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1] == (
        'ModuleNotFoundError: the Agent Client Protocol SDK is missing: pip install "workflow-orchestrator[acp]"'
    )
