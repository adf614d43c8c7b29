"""Commits of a stream: the rules, the transaction, the log of commits, and how they are sealed."""
