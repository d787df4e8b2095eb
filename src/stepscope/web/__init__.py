"""The page: a server on loopback, and the same pages as one file. Every number on it comes from an analysis."""
