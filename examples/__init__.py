"""Programs to read and to run: each file stands alone."""
