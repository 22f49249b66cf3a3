"""The acp: agent on a scripted agent: sessions, answers, choices, permissions, and how processes are shared."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest

from orchestrator import AgentResult, WorkflowError
from orchestrator.agents import Usage
from tests.peers.acp_support import NAME, NUMBER, about, answer_of, ask, scripted, with_provider

from orchestrator.providers.acp import AcpProvider, AcpSettings, acp_settings_from_spec  # isort: skip


# ------------------------------------------------------------------------------------------------------- answers


def test_the_answer_is_what_the_agent_said_without_its_thoughts() -> None:
    assert ask("echo Hello there").text == "Hello there "


def test_the_final_answer_is_what_was_said_after_the_last_tool_call() -> None:
    assert ask("tools").text == "It is fine."


def test_a_turn_that_ends_with_a_tool_call_answers_with_the_words_before_it() -> None:
    assert ask("tools again").text == "It is fine."


def test_all_messages_are_the_answer_where_that_is_set() -> None:
    assert ask("tools", settings={"answer": "all"}).text == "Let me look.\n\nIt is fine."


def test_an_emoji_cut_between_two_chunks_is_whole_and_a_lone_half_is_replaced() -> None:
    assert ask("emoji").text == "half: \U0001f600, lone: \ufffd"


def test_tokens_are_reported_where_the_agent_reports_them() -> None:
    assert ask("tokens 12 3").usage == Usage(input_tokens=12, output_tokens=3)
    assert ask("echo x").usage is None


def test_lines_that_are_no_messages_and_messages_nobody_knows_are_skipped() -> None:
    result = ask("nonsense", "garbage")
    assert (result.stop_reason, result.text) == ("completed", "still here")


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        ("refusal", "refused to go on (refusal)"),
        ("max_tokens", "reached its limit of tokens (max_tokens)"),
        ("max_turn_requests", "reached its limit of requests to the model (max_turn_requests)"),
        ("cancelled", "cancelled its own turn"),
        ("surprise", "stopped: 'surprise' (surprise)"),
    ],
)
def test_a_turn_that_did_not_end_by_itself_is_a_failure_that_says_why(reason: str, said: str) -> None:
    result = ask(f"stop {reason}")
    assert (result.stop_reason, result.text, result.error) == ("error", "", f"{NAME} {said}")


def test_an_error_of_the_agent_is_a_failure_with_its_words() -> None:
    assert ask("fail the quota is used up").error == f"{NAME} failed: Internal error: the quota is used up"


@pytest.mark.parametrize("answer", ["5", "{}", '{"stopReason": 3}'])
def test_a_malformed_end_of_a_turn_is_a_failure(answer: str) -> None:
    assert ask(f"malformed {answer}").error == (
        f"{NAME} does not answer `session/prompt` as the Agent Client Protocol asks"
    )


# ---------------------------------------------------------------------------------------------- structured answers


def test_a_structured_answer_is_asked_for_again_with_what_was_wrong_until_it_is_valid() -> None:
    result = ask("""answers 'no idea' '{"n": "one"}' '{"n": 1}'""", schema=NUMBER)
    assert (result.stop_reason, result.structured) == ("completed", {"n": 1})
    assert result.usage == Usage(input_tokens=15, output_tokens=6)


def test_an_answer_that_stays_invalid_is_a_failure_that_says_what_is_wrong() -> None:
    result = ask("""answers '{}' '{"n": 1.5}'""", schema=NUMBER, settings={"structured_retries": 1})
    assert result.stop_reason == "error"
    assert result.error is not None
    assert result.error.startswith(f"{NAME}: no answer that matches the schema after 2 attempts: ")
    assert "1.5" in result.error
    assert result.usage == Usage(input_tokens=10, output_tokens=4)


# --------------------------------------------------------------------------------------------------------- choices


def chosen(*modes: str, settings: dict[str, Any] | None = None, **fields: Any) -> dict[str, str]:
    provided = settings or {}
    return with_provider(lambda: scripted(*modes, **provided), lambda provider: about(provider, **fields))["chosen"]


def refusal(*modes: str, settings: dict[str, Any] | None = None, **fields: Any) -> str:
    with pytest.raises(WorkflowError) as caught:
        ask("echo never", *modes, settings=settings, **fields)
    assert caught.value.code == "AGENT_START"
    return caught.value.message


def test_a_model_and_an_agent_type_are_set_by_id_or_by_name() -> None:
    assert chosen(model="large", options={"agentType": "Plan"}) == {"model": "large", "mode": "plan"}


def test_the_settings_model_and_mode_hold_for_calls_that_name_none() -> None:
    settings = {"model": "large", "mode": "plan"}
    assert chosen(settings=settings) == {"model": "large", "mode": "plan"}
    assert chosen(settings=settings, model="small", options={"agentType": "code"}) == {"model": "small", "mode": "code"}


def test_configuration_options_are_set_where_the_agent_has_them() -> None:
    options = {"agentType": "ask", "effort": "high"}
    assert chosen("options", model="m2", options=options) == {"model": "m2", "mode": "ask", "effort": "high"}


def test_an_effort_that_the_chosen_model_does_not_have_is_refused() -> None:
    assert refusal("options", model="m1", options={"effort": "high"}) == (
        f"agent acp: {NAME} has no effort 'high' (effort); it offers: low"
    )


def test_a_choice_the_agent_does_not_offer_is_refused_with_what_it_offers() -> None:
    assert refusal(model="huge") == f"agent acp: {NAME} has no model 'huge' (model); it offers: small, large"
    assert refusal(options={"agentType": "Explore"}) == (
        f"agent acp: {NAME} has no session mode 'Explore' (agentType); it offers: code, plan"
    )


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"model": "m"}, "model; call it without model"),
        ({"options": {"agentType": "t"}}, "session mode; call it without agentType"),
        ({"options": {"effort": "e"}}, "effort; call it without effort"),
    ],
)
def test_a_choice_of_an_agent_without_choices_is_refused(fields: dict[str, Any], said: str) -> None:
    assert refusal("plain", **fields) == f"agent acp: {NAME} offers no choice of {said}"


def test_a_choice_that_the_agent_refuses_to_take_is_refused_with_its_words() -> None:
    assert refusal("no-large", model="large") == (
        f"agent acp: {NAME} does not take the model 'large': Internal error: no quota for it"
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"stallMs": 0}, "stallMs must be more than 0 milliseconds"),
        ({"stallMs": True}, "stallMs must be more than 0 milliseconds"),
        ({"agentType": 5}, "agentType must be a string that is not empty"),
        ({"effort": ""}, "effort must be a string that is not empty"),
    ],
)
def test_a_senseless_option_is_refused(options: dict[str, Any], said: str) -> None:
    assert refusal(options=options) == f"agent acp: {said}"


# ------------------------------------------------------------------------------------- permissions and capabilities


@pytest.mark.parametrize(
    ("policy", "offered", "outcome"),
    [
        ("refuse", "allow_once reject_once reject_always", "id-reject_once"),
        ("refuse", "allow_once reject_always", "id-reject_always"),
        ("refuse", "allow_once allow_always", None),
        ("allow", "reject_once allow_always allow_once", "id-allow_once"),
        ("allow", "reject_once allow_always", "id-allow_always"),
        ("allow", "reject_once", None),
    ],
)
def test_a_permission_request_is_answered_by_the_policy(policy: str, offered: str, outcome: str | None) -> None:
    answer = json.loads(ask(f"permission {offered}", settings={"permissions": policy}).text)
    expected = {"outcome": "cancelled"} if outcome is None else {"outcome": "selected", "optionId": outcome}
    assert answer == {"outcome": expected}


def test_permissions_are_refused_unless_the_settings_allow_them() -> None:
    assert json.loads(ask("permission allow_once reject_once").text)["outcome"]["optionId"] == "id-reject_once"


@pytest.mark.parametrize("request_of_the_agent", ["read", "run"])
def test_an_agent_gets_neither_files_nor_a_terminal_from_the_host(request_of_the_agent: str) -> None:
    assert json.loads(ask(request_of_the_agent).text)["code"] == -32601
    capabilities = with_provider(scripted, about)["capabilities"]
    assert capabilities["fs"] == {"readTextFile": False, "writeTextFile": False}
    assert capabilities["terminal"] is False


# ------------------------------------------------------------------------------------------ processes and sessions


def test_one_process_serves_many_sessions_at_once_and_each_call_gets_its_own_answer() -> None:
    async def test(provider: AcpProvider) -> list[AgentResult]:
        return await asyncio.gather(*(answer_of(provider, "together 8") for _ in range(8)))

    results = with_provider(scripted, test)
    assert sorted(result.text for result in results) == [f"I am s{number}" for number in range(1, 9)]


def test_a_kept_process_is_reused_and_a_finished_session_is_closed_in_it() -> None:
    async def test(provider: AcpProvider) -> None:
        first, second = await about(provider), await about(provider)
        assert first["pid"] == second["pid"]
        assert second["calls"].count("initialize") == 1
        assert second["calls"].count("session/new") == 2
        assert second["open"] == 1

    with_provider(scripted, test)


def test_each_call_gets_a_process_of_its_own_where_reuse_is_off() -> None:
    async def test(provider: AcpProvider) -> None:
        first, second = await asyncio.gather(about(provider), about(provider))
        assert first["pid"] != second["pid"]

    with_provider(lambda: scripted(reuse=False), test)


def test_a_provider_can_be_used_again_after_it_was_closed() -> None:
    async def test(provider: AcpProvider) -> None:
        first = await about(provider)
        await provider.aclose()
        assert (await about(provider))["pid"] != first["pid"]

    with_provider(scripted, test)


def test_the_working_directory_and_the_environment_are_the_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORKFLOW_AGENT_LABEL", "of a workflow around this one")
    settings = {"cwd": str(tmp_path), "env": {"ADDED": "here"}}
    names = "ADDED PATH WORKFLOW_AGENT_LABEL"
    found = with_provider(lambda: scripted(**settings), lambda provider: about(provider, names))
    assert found["cwd"] == found["process_cwd"] == str(tmp_path)
    assert found["environment"] == {"ADDED": "here", "PATH": os.environ["PATH"], "WORKFLOW_AGENT_LABEL": None}


def test_without_a_setting_the_working_directory_is_the_hosts() -> None:
    assert with_provider(scripted, about)["cwd"] == os.getcwd()


def test_an_agent_that_needs_an_authentication_is_told_the_settings_method() -> None:
    async def test(provider: AcpProvider) -> None:
        assert "authenticate" in (await about(provider))["calls"]

    with_provider(lambda: scripted("login", auth_method="browser-login"), test)


# -------------------------------------------------------------------------------------------------------- settings


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"argv": ()}, "argv must be the program and its arguments"),
        ({"argv": ("",)}, "argv must be the program and its arguments"),
        ({"argv": "gemini --acp"}, "argv must be the program and its arguments"),
        ({"cwd": ""}, "cwd must be"),
        ({"model": " x"}, "model must be"),
        ({"env": {"A=B": "c"}}, "env must be"),
        ({"permissions": "ask"}, 'permissions must be either "refuse" or "allow"'),
        ({"answer": "first"}, 'answer must be either "final" or "all"'),
        ({"structured_retries": -1}, "structured_retries must be"),
        ({"start_timeout": 0}, "start_timeout must be"),
        ({"cancel_grace": -1}, "cancel_grace must be"),
        ({"kill_grace": float("nan")}, "kill_grace must be"),
        ({"max_output": 0}, "max_output must be"),
    ],
)
def test_a_senseless_setting_is_an_error_that_names_it(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=f"^{said}"):
        AcpSettings(**{"argv": ("agent",), **settings})


def test_the_short_form_is_split_as_a_shell_splits_words() -> None:
    assert acp_settings_from_spec("gemini --acp 'a b'") == AcpSettings(argv=("gemini", "--acp", "a b"))


@pytest.mark.parametrize("rest", ["", "  ", "''", "gemini 'x"])
def test_a_short_form_without_a_program_is_an_error(rest: str) -> None:
    with pytest.raises(ValueError, match=r"^agent acp: "):
        acp_settings_from_spec(rest)
