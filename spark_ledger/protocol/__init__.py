"""The ledger protocol as pure state machines: events in, commands out.

Knows the rules of replication, confirmation, fencing, recovery and reading. Does not know
sockets, clocks, randomness or files: time arrives as an argument, replies arrive as events, and
``spark_ledger.client`` performs the commands. DESIGN of one machine: construct it with values,
call ``handle(event, now)``, perform the returned commands in order; properties show the state.
"""
