"""What `stepscope record` writes: counters, stacks, scheduling, and the notes about the job."""
