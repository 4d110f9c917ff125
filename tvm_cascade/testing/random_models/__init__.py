"""Random small networks as files of every format, for fuzzing, `make bench`, `make differential` and the suite.

`draw` makes a `RandomModel`, a list of operators that knows no format, from a seed; `write` makes it a `.tflite`, `.onnx` or
`.pt2` file; `check` compiles the file with planning options at random, runs it, and compares with the format's framework.
"""
