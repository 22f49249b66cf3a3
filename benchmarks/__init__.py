"""Measures the engine, and with ``--peer`` the reference beside it. Run ``python -m benchmarks --help``."""
