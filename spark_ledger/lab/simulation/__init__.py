"""A deterministic world: an event loop in virtual time, processes, and the network between them.

The simulator of the tests (``tests/sim``) and the replication lab stand on it. A seed decides
everything, so whatever happens can be seen again.
"""
