"""The page: a server on loopback, and the same pages as one file. Thin: every number comes from an analysis."""
