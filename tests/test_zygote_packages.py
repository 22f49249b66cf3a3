"""The zygote gets the installed packages, whatever lies in the user's directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator import ErrorCode, WorkflowError
from tests.support import run_script


@pytest.mark.parametrize("name", ["pythonmonkey", "multiprocess", "msgspec", "dill"])
def test_a_users_module_of_a_packages_name_does_not_hide_the_package(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / f"{name}.py").write_text("raise RuntimeError('not the package')\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert run_script("return 1").result.value == 1


def test_a_header_that_does_not_parse_is_named_as_the_reason_for_the_missing_meta() -> None:
    script = "export const meta = { name: 'a', description: 'it's' }\nreturn 1"
    with pytest.raises(WorkflowError) as refused:
        run_script(script, meta=None)
    assert refused.value.code == ErrorCode.META_INVALID
    first, _, hint = refused.value.message.partition("\n")
    assert first.startswith("invalid meta: meta must be an object")
    assert hint
