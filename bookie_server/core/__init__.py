"""What a bookie may answer, and how much unfinished work it holds. Pure."""
