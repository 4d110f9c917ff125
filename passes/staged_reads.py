"""Copies before the readers of a tensor: rows of a tensor in slow memory are then read from there once.

A copy is a plain operator: planned in stripes it keeps a few rows in fast memory, and the readers take rows from there.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from tvm_cascade.passes.relax_ops import Call, Source, copy_func


def copy_of(name: str) -> str:
    """Return the name of a tensor's copy."""
    return f"{name}_copy"


def with_staged(source: Source, names: Collection[str]) -> Source:
    """Return a function in which all readers of the named tensors read copies.

    The caller's tensors stay the same: an output of the function is no reader.
    """
    tensors, calls = list(source.tensors), list(source.calls)
    for tensor in [t for t in source.tensors if t.name in names]:
        readers = [k for k, call in enumerate(calls) if tensor.index in call.inputs]
        if not readers:
            continue
        copied, name = len(tensors), copy_of(tensor.name)
        tensors.append(replace(tensor, index=copied, name=name))
        for k in readers:
            inputs = tuple(copied if t == tensor.index else t for t in calls[k].inputs)
            calls[k] = replace(calls[k], inputs=inputs)
        made = Call(name, "copy", copy_func(tensor), (tensor.index,), (), (copied,), must_copy=True)
        calls.insert(readers[0], made)
    return replace(source, tensors=tuple(tensors), calls=tuple(calls))
