"""Kernels of multi-branch networks that run in stages of concurrent operators, on CPUs and GPUs: schedules and tuning."""
