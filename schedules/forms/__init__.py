"""Kernel forms: a single row, several rows, some pixels, a stripe's row, an accumulating step, or in place."""
