"""npm ``@google/gemini-cli`` in a home of its own, with a Gemini API on loopback instead of Google's.

Found through ``WORKFLOW_GEMINI_CLI``: the package's command (``…/node_modules/.bin/gemini``), its directory, or the
``node_modules`` it is installed in. Without it a test that asks for `gemini_cli` is skipped. Tested with 0.61.0 on
Node 20.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

INSTALL = (
    "npm install @google/gemini-cli@0.61.0, then set WORKFLOW_GEMINI_CLI to node_modules/.bin/gemini (needs Node 20)"
)
MODEL = "gemini-2.5-flash"
_PACKAGE = Path("@google", "gemini-cli")
_ENTRY = Path("bundle", "gemini.js")
_SETTINGS: Mapping[str, Any] = {
    "general": {"enableAutoUpdate": False, "enableAutoUpdateNotification": False, "disableAutoUpdate": True},
    "privacy": {"usageStatisticsEnabled": False},
    "telemetry": {"enabled": False},
    "security": {"auth": {"selectedType": "gemini-api-key"}, "folderTrust": {"enabled": False}},
    "ide": {"enabled": False, "hasSeenNudge": True},
}


class GeminiCli(msgspec.Struct, frozen=True):
    """How to start it.

    Args:
        argv: the program without any option.
        env: what is added to (or replaces in) the environment.
    """

    argv: tuple[str, ...]
    env: dict[str, str]


def gemini_cli(
    home: Path, api_url: str | None, *, settings: Mapping[str, Any] | None = None, signed_in: bool = True
) -> GeminiCli:
    """Prepares a home directory and tells how to start the program in it.

    Args:
        home: an empty directory, for its settings and whatever it writes.
        api_url: the base address of a Gemini API, such as `Aimock.gemini_url`; an unreachable one without it.
        settings: more of its ``settings.json``, such as ``{"mcpServers": {...}}``.
        signed_in: whether it has a key and is told to use it.
    """
    entry = _find_entry()
    node = shutil.which("node")
    assert node is not None
    config = home / ".gemini"
    config.mkdir(parents=True, exist_ok=True)
    found = {**_SETTINGS, **(settings or {})}
    if not signed_in:
        found["security"] = {"folderTrust": {"enabled": False}}
    (config / "settings.json").write_text(json.dumps(found))
    env = {
        "HOME": str(home),
        "XDG_CONFIG_HOME": str(home / ".config"),
        "GEMINI_CLI_HOME": str(home),
        "GEMINI_MODEL": MODEL,
        "GEMINI_TELEMETRY_ENABLED": "false",
        "NO_BROWSER": "1",
        "NO_COLOR": "1",
        "CI": "1",
        # Whatever it might reach for beside the API fails at once instead of waiting for a network.
        "HTTPS_PROXY": "http://127.0.0.1:9",
        "NO_PROXY": "127.0.0.1,localhost",
    }
    if signed_in:
        env["GEMINI_API_KEY"] = "test-key"
        env["GOOGLE_GEMINI_BASE_URL"] = api_url or "http://127.0.0.1:9"
    return GeminiCli((node, str(entry)), env)


def _find_entry() -> Path:
    """The package's program. Skips the test when the package or Node is absent."""
    named = os.environ.get("WORKFLOW_GEMINI_CLI", "")
    if not named or shutil.which("node") is None:
        pytest.skip(f"Gemini CLI is not installed: {INSTALL}")
    path = Path(named).resolve()
    for root in (path, path / _PACKAGE, path / "node_modules" / _PACKAGE, *path.parents):
        if (root / _ENTRY).is_file():
            return root / _ENTRY
    raise RuntimeError(f"WORKFLOW_GEMINI_CLI names no installation of @google/gemini-cli; {INSTALL}")
