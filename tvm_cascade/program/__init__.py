"""A quantized network in any file format: operators, with the tensors read and written."""
