"""Many schedules of the replication lab's models: ``python -m tests.lab``."""
