"""Import model files as Relax modules: `from_tflite`, `from_onnx` and `from_torch`.

`tvm_cascade.frontend` chooses by the file's suffix. Files named after a format hold the converters; `batch_norms`,
`biases`, `stored_io` and the like rewrite an imported module.
"""
