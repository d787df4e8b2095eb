"""Two runs: what is observed in each, what differs and how surely, and what caused it."""
