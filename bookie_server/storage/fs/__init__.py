"""The door to the disk: one interface, and the file systems behind it."""
