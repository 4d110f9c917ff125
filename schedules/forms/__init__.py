"""Forms of kernels: one row, several rows, some pixels, a row of a stripe, an accumulating step, or in place."""
