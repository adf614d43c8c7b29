"""Streams: named, typed, totally ordered logs with atomic, exactly-once commits over ledgers.

Knows the ledger client (through ``ledgers.Ledgers``) and the metadata store's interface; knows
nothing of gRPC, ZooKeeper or Spark. Rules are pure (``model``, ``codec``, ``schema``, ``entries``,
``ipc_message``, ``commits``), the rest performs them: ``segment_writer`` -> ``committer`` on the
way in, ``commit_log`` -> ``reader`` on the way out. ``blocking`` is the face without a loop.
"""
