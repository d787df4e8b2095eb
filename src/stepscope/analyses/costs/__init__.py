"""FLOP and bytes of operators and kernels, and how close they come to the hardware's peaks."""
