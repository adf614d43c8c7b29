"""Bytes on the wire: messages of ``bookie.proto``, the entry frame, its digests. No network."""
