"""Streams: named, typed, totally ordered logs with atomic, exactly-once commits over ledgers.

Knows the ledger client (through ``ledgers.Ledgers``) and the metadata store's interface; knows
nothing of gRPC, ZooKeeper or Spark. ``model``, ``format`` and ``commit.commit_rules`` are pure. The
rest acts on what they decide: ``segment_writer`` and ``committer`` write, ``commit_log`` and
``reader`` read, ``manifest`` holds old commits. ``blocking`` wraps it for code without a loop.
README.md has the rules T1 to T31.
"""
