"""The index of a ledger directory: which block holds an entry, in LMDB, or in memory for tests."""
