"""`quantize`: int8 networks from float ones, by the quantizers of ONNX Runtime and torchao, calibrated on a data set."""
