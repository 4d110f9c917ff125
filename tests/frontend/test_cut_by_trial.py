"""Operators that can be read and not compiled: refusals name the cut of the file in front of them."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

pytest.importorskip("onnx")

import tvm_cascade
from tvm_cascade.errors import GraphError
from tvm_cascade.frontend import load
from tvm_cascade.importers.cut import FileGraph, Node, needed_for
from tvm_cascade.importers.cut_by_trial import until_by_trial
from tvm_cascade.passes.legalizations import LEGALIZATIONS
from tvm_cascade.testing.onnx_layers import Layers


def _network(path: Path, build: Any) -> Path:
    """A file of a stem, of what `build` adds behind it, and of an output beside that does not need it."""
    net = Layers()
    stem = net.node("Relu", "x")
    beside = net.node("Neg", stem)
    result = net.node("Abs", build(net, net.node("Sigmoid", stem)))
    net.save(path, result, (1, 4, 6), 3, (beside,))
    return path


def _without_tir(net: Any, x: str) -> str:
    places, updates = net.constant(np.zeros((1, 1, 3), "int64")), net.constant(np.ones((1, 1, 3), "float32"))
    return net.node("ScatterElements", net.node("ScatterElements", x, places, updates, axis=2), places, updates, axis=2)


@pytest.fixture(autouse=True)
def _scatters_without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scatters are left to TVM, which states no blocks of them."""
    monkeypatch.delitem(cast(dict[str, Any], LEGALIZATIONS), "relax.scatter_elements")


def test_refusals_of_planning_name_the_cut_too(tmp_path: Path) -> None:
    """Operators that can be read, and that no kernel exists for: found in the file by trying how much of it compiles."""
    path = _network(tmp_path / "n.onnx", _without_tir)
    for command in (tvm_cascade.plan, tvm_cascade.doctor):
        with pytest.raises(GraphError, match="no TIR form") as refused:
            command(path)
        option, names, *_ = shlex.split(refused.value.remedy)
        assert (option, names) == ("--until", "v2,v1") and refused.value.remedy in str(refused.value)
    assert tvm_cascade.plan(path, until=names).peak_bytes > 0


def test_refusals_of_orders_and_of_cut_networks_name_the_cut(tmp_path: Path) -> None:
    path = _network(tmp_path / "n.onnx", _without_tir)
    for start in ((), "v0"):
        with pytest.raises(GraphError, match="no TIR form") as refused:
            tvm_cascade.order(path, from_=start)
        assert shlex.split(refused.value.remedy)[:2] == ["--until", "v2,v1"]
    with pytest.raises(GraphError, match=r"end the network before it$"):
        tvm_cascade.plan(load(path))


def test_few_parts_of_a_file_are_tried() -> None:
    """One of 200 operators, then another: no more trials than two bisections take, and one for each cut."""
    nodes = [Node((f"t{k}",), (f"t{k + 1}",), f"K{k}") for k in range(200)]
    nodes += [Node(("t3",), ("b",), "B"), Node(("b",), ("c",), "C")]
    graph, tried = FileGraph(tuple(nodes), ("t0",), ("t200", "c")), []

    def compiles(names: Any) -> bool:
        tried.append(names)
        return needed_for(graph, names).isdisjoint((137, 201))

    remedy = until_by_trial(graph, compiles)
    assert remedy.text.startswith("--until t137,b ends") and remedy.operators == ("K137", "C") and len(tried) <= 20
