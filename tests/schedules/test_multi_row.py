"""Kernels of several rows: exact on every core, through rings as well."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tvm.ir import IRModule

from tvm_cascade import api
from tvm_cascade.boards.board import load_board
from tvm_cascade.cascading import validate
from tvm_cascade.cascading.access_tables import AccessTables
from tvm_cascade.cascading.assemble import Figures, Layout, assemble
from tvm_cascade.cascading.interleaving import Interleaving
from tvm_cascade.cascading.segments import SegmentCosts, Settings
from tvm_cascade.cores import get_core, kernel_target
from tvm_cascade.emit.codegen import emit_network
from tvm_cascade.graph import Tile
from tvm_cascade.pipeline import lower, prepare
from tvm_cascade.runs.emulator import run
from tvm_cascade.schedules.forms.multi_row import MultiRowSteps
from tvm_cascade.schedules.forms.rows import RowSteps
from tvm_cascade.testing.builder import Net
from tvm_cascade.testing.builds import build
from tvm_cascade.testing.host_check import run_plan

pytestmark = pytest.mark.usefixtures("quick_host")


def narrow() -> IRModule:
    """Small maps: a 3 x 3 over padding, one with a stride, pixels in odd rows, channels that no block divides."""
    net = Net("int8", seed=5)
    x = net.conv(net.input((1, 12, 10, 8)), 24, kernel=3, padding="same", activation="relu")
    x = net.conv(net.depthwise(x, kernel=3, padding="same"), 20, kernel=1)
    x = net.conv(x, 22, kernel=3, stride=2, padding="same")
    y = net.conv(net.conv(x, 32, kernel=1, activation="relu"), 22, kernel=1)
    return net.finish(net.conv(net.add(x, y), 6, kernel=1))


@pytest.mark.emulator
@pytest.mark.parametrize(
    "target,backend", [("cortex-m3", "c"), ("cortex-m4", "c"), ("cortex-m4", "obj"), ("cortex-m55", "obj")]
)
def test_whole_maps_are_exact(target: str, backend: str, emulator: None, tmp_path: Path) -> None:
    made = api.compile(narrow(), target=target, emit=backend, output=tmp_path / "p", layerwise=True)
    kernels = prepare(narrow(), kernel_target(target, backend)).kernels_of(made.plan)
    found = [k.rows for k in kernels if isinstance(k, MultiRowSteps)]
    assert 6 in found and (backend == "obj" or 12 in found)
    assert api.run(tmp_path / "p", board=made.board).equals_host


@pytest.mark.emulator
def test_a_stride_along_a_single_column_is_none(emulator: None, tmp_path: Path) -> None:
    net = Net("int8", seed=5)
    x = net.conv(net.input((1, 12, 1, 8)), 6, kernel=1, stride=(1, 2))
    made = api.compile(net.finish(x), target="cortex-m4", output=tmp_path / "p", layerwise=True)
    kernels = prepare(net.finish(x), kernel_target("cortex-m4", "c")).kernels_of(made.plan)
    assert [k.rows for k in kernels if isinstance(k, MultiRowSteps)] == [12]
    assert api.run(tmp_path / "p", board=made.board).equals_host


@pytest.mark.emulator
@pytest.mark.parametrize("target,backend", [("cortex-m4", "c"), ("cortex-m55", "obj")])
def test_rings_of_taller_steps_are_exact(target: str, backend: str, emulator: None, tmp_path: Path) -> None:
    """One cascade in steps of two rows: kernels write two rows of a ring, and read them where its end lies between."""
    made, machine = prepare(narrow(), kernel_target(target, backend)), get_core(target)
    costs = SegmentCosts(AccessTables(made.graph), range(len(made.graph.ops)), Settings(overlap=True))
    plan = assemble(costs, Layout((0, len(made.graph.ops)), (Interleaving(Tile(rows=2)),)), Figures(0, 0))
    validate(plan)
    rings = [s.height for s in plan.storages if s.height < plan.graph.tensors[s.tensor].rows]
    kernels = made.kernels_of(plan)
    several = [k.rows for k in kernels if isinstance(k, MultiRowSteps)]
    assert len(rings) >= 4 and several.count(2) >= 3 and sum(isinstance(k, RowSteps) for k in kernels) >= 2
    llvm, board = machine.llvm if backend == "obj" else None, load_board(machine.default_board)
    network = emit_network(
        lower(made, plan), "rows", made.io, target=llvm, align=max(machine.align, 8), prelude=made.prelude
    )
    x = np.random.default_rng(0).integers(-128, 128, (1, 12, 10, 8)).astype("int8")
    ran = run(build(tmp_path / "p", network, machine, board).elf, board, network.interface, [[x]])
    want = run_plan(made, plan, [x])  # generic kernels, row by row
    np.testing.assert_array_equal(ran.outputs[0][0], want.outputs[0])
    assert want.executed_macs == plan.macs and ran.arena_high_water_bytes <= plan.peak
