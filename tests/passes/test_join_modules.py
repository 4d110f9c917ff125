"""Joined modules compute what each did alone, with every kernel once."""

from __future__ import annotations

import numpy as np
import tvm_ffi
from tvm.tirx import PrimFunc

from tvm_cascade.cost import AnalyticCost, find_device
from tvm_cascade.parallel import Options, schedule
from tvm_cascade.parallel.units import unit_graph
from tvm_cascade.passes.join_modules import join_modules
from tvm_cascade.runtime import Session, compile_stages
from tvm_cascade.staging.program.graph import stage_graph
from tvm_cascade.staging.program.schedule_stages import LowerOptions, lower_stages
from tvm_cascade.testing.zoo.inception import inception_e

VARIANTS = ("sequential", "greedy", "both")


def _modules(target="llvm"):
    net = stage_graph(inception_e(width=0.0625))
    units = unit_graph(net.graph, "fused")
    model = AnalyticCost(find_device("h200"))
    found = {v: schedule(net.graph, model, Options(variant=v)).schedule for v in VARIANTS}
    modules = {v: lower_stages(net, units, s, LowerOptions(target=target)) for v, s in found.items()}
    return net.graph.tensors[net.graph.inputs[0]].shape, modules


def _kernels(mod) -> int:
    return sum(isinstance(f, PrimFunc) for f in mod.functions.values())


def test_every_program_computes_what_it_did_alone():
    shape, modules = _modules()
    before = {name: mod.script() for name, mod in modules.items()}
    joined = compile_stages(join_modules(modules))
    assert {name: mod.script() for name, mod in modules.items()} == before
    x = np.random.default_rng(0).standard_normal(shape).astype("float32")
    for name, mod in modules.items():
        expected = Session(compile_stages(mod)).run(x)[0]
        np.testing.assert_array_equal(Session(joined, function=name).run(x)[0], expected)


def test_equal_kernels_are_one_and_relax_functions_keep_apart():
    modules = _modules("cuda -arch=sm_90")[1]
    joined = join_modules(modules)
    assert _kernels(joined) < sum(map(_kernels, modules.values()))
    kernels = {tvm_ffi.structural_hash(f.without_attr("global_symbol")) for m in modules.values() for f in m.functions.values()
               if isinstance(f, PrimFunc)}  # fmt: skip
    assert _kernels(joined) == len(kernels)
    others = {gv.name_hint for gv, f in joined.functions.items() if not isinstance(f, PrimFunc)}
    assert others == {n for v in VARIANTS for n in (v, f"{v}_staged", f"{v}_stage_resources")}
