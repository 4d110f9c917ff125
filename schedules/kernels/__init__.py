"""The calling convention of kernels, and the generic kernels, derived from an operator's PrimFunc for any machine."""
