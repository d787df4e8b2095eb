"""The values and definitions that every other package shares. It imports nothing else of stepscope."""
