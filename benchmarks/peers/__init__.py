"""The systems a user would pick instead, started here and given the same work."""
