"""What kernels do: by name, by class, by time bin, and how well they use the device."""
