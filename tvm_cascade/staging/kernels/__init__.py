"""Kernels for multi-branch networks that run in stages with concurrent operators, on CPUs and GPUs: schedules and
tuning.
"""
