"""Kernel tuning: choice among variants by counts of instructions, and MetaSchedule for kernels of the host."""
