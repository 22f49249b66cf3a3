"""Makes sure that ``protocol`` is this project's package.

The name is a common word: a ``protocol.py`` beside the user's own script would be found first. Ours is loaded from
beside this package then; a foreign one that is already imported is a clear error.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

_OURS = Path(__file__).resolve().parents[1] / "protocol" / "__init__.py"


def _ensure() -> None:
    loaded = sys.modules.get("protocol")
    if loaded is not None:
        if Path(getattr(loaded, "__file__", None) or "").resolve() != _OURS:
            raise ImportError(
                "another module named 'protocol' is already imported; the workflow orchestrator needs its own package "
                "of that name: import orchestrator first, or rename the other module"
            )
        return
    spec = importlib.util.spec_from_file_location("protocol", _OURS, submodule_search_locations=[str(_OURS.parent)])
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["protocol"] = module
    spec.loader.exec_module(module)


_ensure()
