"""The chain of work and waits that sets the length of a step."""
