"""Collectives of one rank: what ran, how long, and at what bandwidth."""
