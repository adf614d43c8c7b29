"""File access: one interface for every file operation, and the file systems that implement it."""
