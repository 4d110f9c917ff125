"""The driver of a plan: the function that calls its kernels in the order of the plan's traces."""
