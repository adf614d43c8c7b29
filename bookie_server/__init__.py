"""The bookie: a server that stores ledger entries durably and serves them.

``python -m bookie_server --config FILE`` runs one. ``server`` is the process, ``bookie`` applies
the rules of ``core`` to requests over ``storage``, ``service`` is the network, ``registration`` the
bookie's identity in the cluster.
"""
