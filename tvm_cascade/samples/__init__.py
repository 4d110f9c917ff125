"""Data sets of `validate` and `quantize`: N samples for the inputs of one network, from an .npz, arrays, or a folder of files."""
