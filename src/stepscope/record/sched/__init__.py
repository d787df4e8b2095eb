"""The scheduling of the job's threads, from the kernel's trace events."""
