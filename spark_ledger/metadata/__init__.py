"""Metadata: one small interface over versioned nodes, its implementations, and what is kept there.

``base`` is the interface, ``memory`` and ``zookeeper`` implement it, ``connect.open_store`` opens
the one of a URI. On the interface stand ``ledgers``, ``bookies`` and ``cluster``. kazoo loads only
when it is used.
"""
