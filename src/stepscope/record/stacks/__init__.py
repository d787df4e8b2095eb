"""Python stacks of the job, sampled by py-spy."""
