"""The bookie's disk: journal, write cache, entry logs, index, checkpoints. Knows no network.

``engine`` holds the ledger directories together, ``directory_store`` is one of them, ``journal``
makes changes durable, ``replay`` brings the directories up to the journal at the start. Every file
operation goes through ``vfs``, so that tests can crash and fail each of them.
"""
