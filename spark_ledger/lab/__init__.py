"""The replication lab: ways to replicate a log, on one simulated network, under the same faults.

README.md in this folder says what is there and what may be relied on.
"""
