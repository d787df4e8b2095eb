"""A series of runs: a digest of each, the runs from which on the step takes another time, and why."""
