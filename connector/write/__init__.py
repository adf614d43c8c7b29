"""Writing with Spark: tasks append entries that nobody can see, then one commit shows them all.

One micro-batch, step by step (``writers`` says the same for a batch write):

1. In a planner process beside Spark's driver, ``LedgerStreamWriter`` is made. ``prepare_stream``
   opens or creates the stream and checks the schema. Spark pickles the writer into the tasks.
2. In each task on an executor, ``write`` appends the rows of one partition as ledger entries and
   waits until they are confirmed (``task.write_segments``). The segments stay out of the stream.
3. Each task answers with a pickled ``TaskWritten``: its segments, query, query run and batch.
4. In a commit process beside the driver, Spark makes the writer again and calls ``commit`` with
   those messages. One transaction under (sink id, batch id) makes the segments visible (rule T2),
   at most once (rule T3).
5. If a driver dies, its successor repeats the micro-batch. ``repeated`` tells such a repetition
   from the commit of a second driver.
"""
