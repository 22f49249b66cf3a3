"""What the zygote of a `FaultEngine` runs: the real one, whose workers also obey an order to die.

The order is a frame no host sends, ``{"sabotage": …}``, taken where a worker takes its messages. It names when
(``now``, in the middle of the ``result``, or ``after`` it) and how (``exit`` with a code, ``memory`` until refused and
abort, ``fault`` for a real segmentation fault, or ``wait`` to be killed from outside). Other signals come from outside:
a confined worker cannot send any. A SIGSEGV that is only sent does not kill: the engine's handler takes it for its own.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

from orchestrator.config import EngineConfig
from orchestrator.faults.stages import Way
from orchestrator.zygote_client import Worker, ZygoteClient
from protocol.framing import pack_length

__all__ = ["FaultZygote", "order"]

_WORKERS_OBEY = """
import ctypes, json, os, select, sys
fd, folders, wanted, hide = json.loads(sys.argv[1])
sys.path += folders
from protocol.framing import FrameDecoder
from worker.session import Outbox

orders = []

def obey(order):
    if order["how"] == "exit":
        os._exit(order["code"])
    if order["how"] == "fault":
        ctypes.string_at(0)
    if order["how"] == "memory":
        taken = []
        try:
            while True:
                taken.append(b"x" * (1 << 20))
        except MemoryError:
            os.abort()
    while True:
        select.select([], [], [], 60)

next_frame = FrameDecoder.next_frame
def next_frame_or_order(self):
    frame = next_frame(self)
    while frame is not None and frame.startswith(b'{"sabotage"'):
        order = json.loads(frame)["sabotage"]
        if order["at"] == "now":
            obey(order)
        orders.append(order)
        frame = next_frame(self)
    return frame
FrameDecoder.next_frame = next_frame_or_order

flush = Outbox.flush
def flush_or_obey(self):
    if not (orders and self.finished and self._parts):
        return flush(self)
    data = b"".join(self._parts)
    self.socket.sendall(data if orders[0]["at"] == "after" else data[: len(data) // 2])
    obey(orders[0])
Outbox.flush = flush_or_obey

from worker.zygote import main
main(fd, wanted, hide)
"""

_ZYGOTE_DIES = """
import json, os, signal, sys
fd, folders, wanted, hide = json.loads(sys.argv[1])
sys.path += folders
"""

_ZYGOTE_FAULTS = {
    Way.EXIT_0: "os._exit(0)",
    Way.EXIT_3: "os._exit(3)",
    Way.SIGKILL: "os.kill(os.getpid(), signal.SIGKILL)",
    Way.SIGSEGV: "os.kill(os.getpid(), signal.SIGSEGV)",
    Way.SIGTERM: "os.kill(os.getpid(), signal.SIGTERM)",
    Way.MEMORY: """
import resource
resource.setrlimit(resource.RLIMIT_AS, (32 << 20, 32 << 20))
from worker.zygote import main
main(fd, wanted, hide)
""",
    Way.HALF_PREFIX: "os.write(fd, b'\\x10\\x00'); os._exit(0)",
    Way.HALF_FRAME: 'os.write(fd, b\'\\x40\\x00\\x00\\x00{"type":"zyg\'); os._exit(0)',
    Way.SOCKET_CLOSED: "os.close(fd); signal.pause()",
    Way.STOPS_READING: "os.kill(os.getpid(), signal.SIGSTOP); signal.pause()",
}

_IMPATIENCE = 0.2  # seconds for a zygote that is known never to get ready, and never to leave by itself


class FaultZygote(ZygoteClient):
    """A zygote whose workers obey orders, or that dies itself while it starts. For forked workers only."""

    boot = _WORKERS_OBEY

    def __init__(self, config: EngineConfig, worker_gone: Callable[[Worker], None]) -> None:
        super().__init__(config, worker_gone)
        self._awaited: list[tuple[Worker, asyncio.Future[int]]] = []

    def pid_of(self, worker: Worker) -> asyncio.Future[int]:
        """The process id of a worker, known a little after its lease; 0 when it is gone before."""
        known: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._awaited.append((worker, known))
        self._tell_pids()
        worker.gone.add_done_callback(lambda _gone: known.done() or known.set_result(0))
        return known

    def _take(self, frame: bytes) -> None:
        super()._take(frame)
        self._tell_pids()

    def _tell_pids(self) -> None:
        for worker, known in self._awaited:
            if worker.pid is not None and not known.done():
                known.set_result(worker.pid)
        self._awaited = [(worker, known) for worker, known in self._awaited if not known.done()]

    def fail_by(self, way: Way) -> None:
        """Makes the start of this zygote fail."""
        self.boot = _ZYGOTE_DIES + _ZYGOTE_FAULTS[way]
        if way is Way.STOPS_READING:
            self.start_timeout = _IMPATIENCE
        self.exit_timeout = _IMPATIENCE


def order(at: str, way: Way) -> bytes:
    """The frame that makes a worker die by ``way``."""
    match way:
        case Way.EXIT_0 | Way.EXIT_3:
            what: dict[str, object] = {"at": at, "how": "exit", "code": 0 if way is Way.EXIT_0 else 3}
        case Way.MEMORY:
            what = {"at": at, "how": "memory"}
        case Way.SIGSEGV:
            what = {"at": at, "how": "fault"}
        case _:
            what = {"at": at, "how": "wait"}
    payload = json.dumps({"sabotage": what}, separators=(",", ":")).encode()
    return pack_length(len(payload)) + payload
