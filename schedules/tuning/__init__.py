"""Kernel tuning: choice among variants by instruction counts, and MetaSchedule for the host's kernels."""
