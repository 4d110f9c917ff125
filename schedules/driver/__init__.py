"""The driver of a plan: the generated TIR function that calls the kernels in the order of the traces."""
