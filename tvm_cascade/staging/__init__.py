"""Stages of IOS made programs: kernels, the program around, the search by measured times.

The search itself, which knows no TVM, is `tvm_cascade.parallel`.
"""
