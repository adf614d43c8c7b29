"""Malformed inputs for every parser: only named errors, no hang, nothing damaged is accepted."""
