"""The shell around the protocol machines: performs their commands over a transport and a store.

Knows asyncio, the transport interface and the metadata repositories. Decides nothing about the
protocol: what to do about an event is asked of a machine in ``spark_ledger.protocol``.
"""
