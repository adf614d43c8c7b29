"""Packs: many small segments of old commits, copied into few large entries (rules T23 to T26)."""
