"""Reading with Spark: the driver's side turns positions into partitions, tasks fetch their rows.

One micro-batch, step by step (``readers`` says what differs for a batch read):

1. In a source process beside Spark's driver, which lives as long as the query,
   ``LedgerStreamReader`` asks its
   ``Source`` (``StreamSource`` or ``LedgerSource``) where the micro-batch ends: ``latest_offset``
   reads the stream's head and applies the trigger's limits. Spark writes the offsets, which are
   JSON (``offsets``), into its checkpoint.
2. There too, ``plan`` turns the commits between two offsets into ranges of entries and packs those
   into partitions (``spark_ledger.stream.plan``). They depend on commits only, so a repeated
   micro-batch has the same partitions (rule T5). Each also names the bookies to ask first, so that
   all of them serve about as much (rule T20). A long read becomes spans of commits, which the tasks
   look up.
3. Spark pickles the partitions (``partitions``) and a reader into the tasks. A partition names
   ledgers, entries and rows, so a task needs no metadata of the stream but its schema.
4. In each task on an executor, ``task.read_partition`` reads the entries from the bookies and gives
   Arrow batches to Spark. Committed entries are confirmed, so no LAC is asked for (rule T9).
5. When Spark has noted the end of the micro-batch, ``commit`` lets the source drop cached commits.
"""
