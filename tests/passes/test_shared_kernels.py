"""Candidates of a network choose kernels once for the operators that they share, as each would alone."""

from __future__ import annotations

import pytest
import tvm_ffi

from tvm_cascade.cores import kernel_target
from tvm_cascade.passes import prepare_graph as module
from tvm_cascade.passes.extract_graph import Analyses
from tvm_cascade.passes.lower_quantized import lowered
from tvm_cascade.passes.prepare_graph import PreparedGraph, prepare_graph
from tvm_cascade.passes.rewrite_for_memory import foldable, without_concats
from tvm_cascade.testing.builder import Net


def network():
    """Two branches behind each other whose parts a convolution reads; some convolutions are of one shape and other weights."""
    net = Net("int8", seed=3)
    x = net.conv(net.input((1, 12, 12, 4), "image"), 8, (3, 3), padding="same", activation="relu")
    for _ in range(2):
        parts = [net.conv(x, 8, (3, 3), padding="same", activation="relu") for _ in range(2)]
        x = net.conv(net.concat(parts), 8, kernel=(1, 1), activation="relu")
    return lowered(net.finish(net.dense(net.flatten(x), 6)))


def same(one: PreparedGraph, other: PreparedGraph) -> bool:
    """Whether graphs are equal, and kernels are in code, name and constants."""
    pairs = [(a, b) for a, b in zip(one.kernels, other.kernels, strict=True) if a is not None and b is not None]
    return one.graph == other.graph and all(
        a.rule == b.rule
        and tvm_ffi.structural_equal(a.func, b.func)
        and all((x == y).all() for x, y in zip(a.constants, b.constants, strict=True))
        for a, b in pairs
    )


def test_candidates_choose_kernels_once_for_what_they_share(monkeypatch: pytest.MonkeyPatch) -> None:
    mod = network()
    core, known, asked = kernel_target("cortex-m4", "c"), Analyses(), []
    select = module.select
    monkeypatch.setattr(module, "select", lambda made, *rest: asked.append(made) or select(made, *rest))
    plain = prepare_graph(mod, core, known=known)
    variant = without_concats(mod, foldable(plain.graph))
    first = len(asked)
    shared = prepare_graph(variant, core, known=known)
    second = len(asked) - first
    alone = prepare_graph(variant, core)
    third = len(asked) - first - second
    assert second < third / 2  # only what reads the parts is new
    assert same(shared, alone) and same(plain, prepare_graph(mod, core))
    other = prepare_graph(mod, kernel_target("cortex-m55", "c"), known=known)
    assert same(other, prepare_graph(mod, kernel_target("cortex-m55", "c")))
