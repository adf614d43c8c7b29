"""Malformed inputs to every parser: only named errors, no hang, no damage accepted."""
