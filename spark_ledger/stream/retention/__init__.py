"""The end of streams: what is dropped of them, who holds it up, and how its space is freed."""
