"""Profiles in the Chrome trace format: PyTorch, JAX and whatever else writes it."""
