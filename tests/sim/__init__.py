"""Deterministic simulation: the real client, streams and bookies in one process, under faults."""
