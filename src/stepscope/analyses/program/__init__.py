"""What the program did: operators, modules, ranges, Python functions, scheduling of threads."""
