"""Choosing among kernels: counts of instructions, and MetaSchedule."""
