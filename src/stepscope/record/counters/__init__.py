"""Counters of the machine, the job and its accelerators, sampled while it runs."""
