"""Islands, the form that quantized operators have in Relax: read as operators of a program, and written.

An island is an operator of real numbers between those that make its operands real and the one that stores its result, with an
activation or not; `stored` knows the form of integers, `reader` and `writer` that of operators.
"""
