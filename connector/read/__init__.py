"""Reading with Spark: positions, plans, and the tasks that fetch rows."""
