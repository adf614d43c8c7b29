"""The journal: what makes an add durable, its files, and their replay at start."""
