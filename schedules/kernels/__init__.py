"""What a kernel is, and the kernels that are cut out of an operator's own PrimFunc: they run on every machine."""
