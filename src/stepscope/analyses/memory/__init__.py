"""Snapshots of a caching allocator's memory."""
