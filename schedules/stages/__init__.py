"""Kernels of the stages of multi-branch networks, on CPUs and GPUs."""
