"""Profiles in the Chrome trace format: PyTorch, JAX and other tools that write it."""
