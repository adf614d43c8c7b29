"""Queries that run for long: what piles up, and what is left at their end.

``python -m tests.endurance``: one that loses a worker again and again. ``query`` is its driver,
``killing`` ends its workers, ``looking`` counts what the cluster holds, ``judging`` says whether it
grew, ``keeping`` cleans up behind them.

``python -m tests.endurance.many``: ten on one driver. ``many_queries`` is that driver, ``memory``
measures its processes.
"""
