"""The bookie's disk: journal, write cache, entry logs, index, checkpoints. Knows no network.

README.md beside this file has the rules S1 to S25 and says which thread may touch what.
``journal`` makes changes durable, ``journal.replay`` brings the ledger directories up to it at the
start; ``ledgers.ledger_storage`` holds those directories together, ``ledgers.directory_store`` is
one of them, and ``index`` finds its blocks. Every file operation goes through ``fs.vfs``, so that
tests can crash and fail each.
"""
