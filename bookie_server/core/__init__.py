"""What a bookie may answer, decided by pure functions over what it keeps of a ledger.

``transitions`` decides requests, ``ledger_record`` is what they are decided on, ``admission`` says
whether an add is taken now. The answers are values of ``spark_ledger.bookie_api``.
``bookie_server.bookie`` performs what is decided here: it writes to memory and journal, waits for
the disk, and answers.
"""
