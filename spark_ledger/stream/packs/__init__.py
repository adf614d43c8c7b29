"""Packs: many small segments of old commits, copied into few large entries (rules T21 to T24)."""
