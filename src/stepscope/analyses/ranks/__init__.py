"""Analyses of all ranks of a job together: collectives matched across ranks, clocks, groups, stragglers."""
