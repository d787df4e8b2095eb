"""Memory and counters over time."""
