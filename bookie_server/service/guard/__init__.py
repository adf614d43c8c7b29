"""Guards of the service: what clients may cost in memory, connections and log lines."""
