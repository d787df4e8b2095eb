"""The views of the TensorBoard PyTorch profiler plugin, value by value, as one JSON object."""
