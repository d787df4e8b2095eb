"""What runs inside the job's own Python processes: this folder comes first on their PYTHONPATH.

The job's Python need not have stepscope, and may be older than ours (3.8 or later): the modules here use the standard
library only, print nothing, and write their failures to the recorder's folder: the job must not notice them.
"""
