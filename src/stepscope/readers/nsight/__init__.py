"""Profiles that NVIDIA Nsight Systems and Nsight Compute write."""
