"""Cycles of a run: steps, or whatever comes again, and what fills each."""
