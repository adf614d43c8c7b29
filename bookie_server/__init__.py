"""The bookie: a server that stores ledger entries durably and serves them.

``python -m bookie_server --config FILE`` runs one. ``server`` is the process, ``registration`` its
identity in the cluster, ``service`` the network. ``core`` decides requests, ``bookie`` performs
what is decided over ``storage``, ``reads`` answers reads, ``opening`` puts a bookie together.
"""
