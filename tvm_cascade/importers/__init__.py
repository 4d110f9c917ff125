"""Model files to Relax modules: `from_tflite`, `from_onnx` and `from_torch`, one module for each file format.

`tvm_cascade.frontend` chooses between them by the file's suffix. The files named after a format hold its converters; the
others (`batch_norms`, `biases`, `stored_io`, ...) rewrite an imported module.
"""
