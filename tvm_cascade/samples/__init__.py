"""Data sets for `validate` and `quantize`: N samples for a network's inputs, from an .npz, arrays, or a folder of
files.
"""
