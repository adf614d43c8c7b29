"""The ledger protocol as pure state machines: events in, commands out.

Knows the rules of replication, confirmation, fencing, recovery and reading. Does not know
sockets, clocks, randomness or files: time arrives as an argument, replies arrive as events, and
``spark_ledger.client`` performs the commands. Every machine is used in the same way: construct it
with values, call ``handle(event, now)``, perform the returned commands in order. Read-only
properties show the state; ``TRANSITIONS`` in ``append_phases``, ``read_phases`` and
``recovery_phases`` says which event may lead from which phase to which.

README.md in this folder states the rules P1 to P25 that the code refers to.
"""
