"""What runs inside the job's own Python processes: this folder comes first on their PYTHONPATH.

The job's Python need not have stepscope, and may be older than ours (3.8 or later): the modules here use the standard
library alone, say nothing, and fail silently into notes, for the job must not notice them.
"""
