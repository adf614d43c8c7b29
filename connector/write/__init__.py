"""Writing with Spark: the tasks that append rows, and the commit on the driver."""
