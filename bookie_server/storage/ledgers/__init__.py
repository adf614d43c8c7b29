"""Ledger directories: write cache, entry logs and index, and their checkpoints."""
