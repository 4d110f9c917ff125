"""Performance schedules: what makes the fast kernels of a core, and what they share."""
