"""The wire and the vocabulary that host and worker share.

Imports neither of the other two packages, does no I/O and reads no clock.
"""
