"""Fault injection for hosts: make workers, or their stand-ins, fail on purpose and see what your code does.

Everything public is here. See docs/fault-injection.md.
"""

from orchestrator.faults.fake_worker import FakePool, FakeWorker, FakeWorkerEngine, FakeWorkerScript

__all__ = ["FakePool", "FakeWorker", "FakeWorkerEngine", "FakeWorkerScript"]
