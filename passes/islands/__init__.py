"""Read and write islands, the Relax form of quantized operators.

An island is a float operator between dequantized operands and a quantized result, with an optional activation. `stored`
knows the integer form, `reader` and `writer` the operator form.
"""
