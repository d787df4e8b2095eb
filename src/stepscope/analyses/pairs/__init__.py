"""Analyses of two traces: a base and another one."""
