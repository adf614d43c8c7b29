"""How a stream is stored: schemas, entries of Arrow batches, metadata nodes. Pure."""
