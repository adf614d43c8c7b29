"""Plans of reads: which rows a partition has, and which bookies it asks first (rule T20).

1. ``partitions`` packs ranges of entries into partitions. It sees commits only, which never change,
   so a repeated micro-batch gets the same partitions, whatever became of bookies and fragments.
2. ``locate`` reads which ledgers have which fragments, and which bookies are registered.
3. ``balance`` cuts the partitions at borders of fragments, and chooses the bookie that each asks
   first, so that all bookies serve about as many bytes. A wrong choice costs time and no row.
4. ``read_plan`` puts the three together, for Spark's source and for ``ledger streams plan``.
"""
