"""The systems that a user might choose instead, started here and given the same work."""
