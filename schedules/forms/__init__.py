"""Forms of kernels: of a row, of several, of some pixels, of a stripe; in place."""
