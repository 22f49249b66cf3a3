"""Loads PythonMonkey's C extension alone and makes it safe to fork.

Why alone: ``import pythonmonkey`` also starts a module loader, timers and an XMLHttpRequest on aiohttp, takes 360 ms
instead of 60, and leaves ``python``, ``pmEval`` and ``require`` in the realm a script runs in.

Why the helper threads: SpiderMonkey hands GC and JIT work to threads. They do not survive a fork, and the child then
waits for them for ever at its first collection or compilation. libmozjs exports the JSAPI call
``JS::SetHelperThreadTaskCallback`` for embedders with a thread pool of their own: ours never runs a task, and the
engine, told also not to compile off the main thread, does that work itself. `worker.zygote` checks it with a probe.

Pinned to PythonMonkey 1.4.1: the mangled names below are those of the libmozjs inside that wheel.
"""

from __future__ import annotations

import asyncio.events
import collections
import ctypes
import importlib
import importlib.machinery
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["ENGINE_VERSION", "Engine", "EngineLoadError", "JobQueue", "load_engine"]

ENGINE_VERSION = "1.4.1"
_RUNTIME = Path(__file__).with_name("runtime.js")
_HELPER_STACK = 256 * 1024

_SET_TASK_CALLBACK = "_ZN2JS27SetHelperThreadTaskCallbackEPFvPNS_16HelperThreadTaskEEmm"
_SET_OFFTHREAD = (
    "_Z36JS_SetOffthreadIonCompilationEnabledP9JSContextb",
    "_Z41JS_SetOffthreadBaselineCompilationEnabledP9JSContextb",
)


class EngineLoadError(RuntimeError):
    """PythonMonkey is missing, or is not the version this project is written for."""


class JobQueue:
    """What PythonMonkey takes for the running event loop: its ``call_soon_threadsafe`` IS a deque's append.

    The engine asks the running loop only for that. So promise jobs land in a queue the worker drains itself: three
    times faster than through asyncio, and the worker can look at its socket between two jobs.
    """

    def __init__(self) -> None:
        self.jobs: collections.deque[Callable[[], object]] = collections.deque()
        self.call_soon_threadsafe = self.jobs.append
        self._exception_handler = None  # read by the extension when a promise is rejected and nobody handles it

    def install(self) -> None:
        """Makes this the running loop of the calling thread."""
        asyncio.events._set_running_loop(self)  # type: ignore[arg-type]


class Engine:
    """The loaded engine: evaluates the runtime once per process, before any script."""

    def __init__(self, module: Any) -> None:
        self._module = module
        self.queue = JobQueue()
        self.queue.install()

    def evaluate(self, source: str, filename: str = "runtime.js") -> Any:
        """Evaluates trusted source. ``filename`` is what stack frames show."""
        return self._module.eval(source, {"mutedErrors": True, "filename": filename})

    def make_runtime(self, send: Any, arm_timer: Any, disarm_timer: Any) -> dict[str, Any]:
        """Evaluates runtime.js with its three ways out; returns its functions by name."""
        self.evaluate(_SHAPE_REALM)
        runtime = self.evaluate(_RUNTIME.read_text("utf-8"))(send, arm_timer, disarm_timer)
        return {name: runtime[name] for name in ("load", "go", "settle", "fire", "idle", "forget")}


# API shaping, not the security boundary: what is not ECMAScript goes. debuggerGlobal cannot be deleted, so it is
# emptied (its Debugger reads any closure). WebAssembly's async compile needs a thread; its promise never settles.
_SHAPE_REALM = """
(() => {
  'use strict';
  delete globalThis.WebAssembly;
  const other = globalThis.debuggerGlobal;
  if (typeof other === 'object' && other !== null) {
    for (const key of Reflect.ownKeys(other)) Reflect.deleteProperty(other, key);
    Reflect.setPrototypeOf(other, null);
    Reflect.preventExtensions(other);
  }
})()
"""


def _ignore_rejection(_loop: object, _context: object) -> None:
    """What the extension calls for a rejection nobody handled."""


def _extension_directory() -> Path:
    for entry in sys.path:
        directory = Path(entry or ".") / "pythonmonkey"
        if (directory / "pythonmonkey.so").exists():
            return directory
    raise EngineLoadError(f"pythonmonkey {ENGINE_VERSION} is not installed for this Python")


def load_engine() -> Engine:
    """Loads the C extension without running ``pythonmonkey/__init__.py``.

    Raises:
        EngineLoadError: it is missing or cannot be loaded.
    """
    directory = _extension_directory()
    package = types.ModuleType("pythonmonkey")
    package.__path__ = [str(directory)]
    spec = importlib.machinery.ModuleSpec("pythonmonkey", None, is_package=True)
    spec.submodule_search_locations = [str(directory)]
    package.__spec__ = spec
    # The extension fetches this from its package; unhandled rejections are the script's business, not stderr's.
    package.__dict__["simpleUncaughtExceptionHandler"] = _ignore_rejection
    sys.modules["pythonmonkey"] = package
    try:
        return Engine(importlib.import_module("pythonmonkey.pythonmonkey"))
    except ImportError as error:
        raise EngineLoadError(f"pythonmonkey {ENGINE_VERSION} cannot be loaded: {error}") from error


_kept_alive: list[object] = []


def _run_no_task(_task: int | None) -> None:
    """The thread pool that never runs anything."""


def keep_work_off_helper_threads() -> str | None:
    """Makes the loaded engine safe to fork. Returns why it cannot, or ``None`` when it is done."""
    directory = _extension_directory()
    try:
        library = next(directory.glob("libmozjs-*.so"))
        mozjs = ctypes.CDLL(str(library))
        extension = ctypes.CDLL(str(directory / "pythonmonkey.so"))
        set_callback = getattr(mozjs, _SET_TASK_CALLBACK)
        set_offthread = [getattr(mozjs, name) for name in _SET_OFFTHREAD]
        context = ctypes.c_void_p.in_dll(extension, "GLOBAL_CX")
    except (OSError, StopIteration, AttributeError, ValueError):
        return "the engine's library does not export the calls that keep its work off helper threads"
    callback_type = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    callback = callback_type(_run_no_task)
    _kept_alive.append(callback)  # the engine holds the bare pointer for the life of the process
    set_callback.argtypes = [callback_type, ctypes.c_size_t, ctypes.c_size_t]
    set_callback.restype = None
    set_callback(callback, 0, _HELPER_STACK)
    for function in set_offthread:
        function.argtypes = [ctypes.c_void_p, ctypes.c_bool]
        function.restype = None
        function(context, False)
    return None
