"""A query that loses a worker again and again: what piles up, and what is left at its end.

``query`` is the driver, ``killing`` ends its workers, ``looking`` counts what the cluster holds,
``judging`` says whether it grew.
"""
