"""Real bookies under load, and a stranger who takes them away: what is left is counted on disks."""
