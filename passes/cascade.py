"""`Cascade`: replaces every static region of a Relax module by a call to its planned program, which runs in an arena.

The call is `cascade_main(inputs..., flash image) -> (outputs..., arena)`. The program's row kernels and driver are
private functions of the module (`planned_program`). Bindings outside the regions (`static_regions`) are not changed.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any

from tvm.ir import IRModule
from tvm.target import Target

from tvm_cascade.cores import KernelTarget
from tvm_cascade.errors import InfeasibleError, UsageError
from tvm_cascade.messages import last_line
from tvm_cascade.passes.base import CascadePass, PassResult
from tvm_cascade.passes.lower_quantized import SOURCE_ATTR, products_of_inputs_spread
from tvm_cascade.passes.outline_region import functions_called, region_call
from tvm_cascade.passes.partition_regions import REGION
from tvm_cascade.passes.plan_network import is_lowering_of, promised, source_of
from tvm_cascade.passes.plan_region import Planned, Probe, plan_region
from tvm_cascade.passes.planned_program import flash_image, with_program, workspace_type
from tvm_cascade.passes.relax_functions import OF_OTHERS, sequence
from tvm_cascade.passes.static_regions import Levels, Region, levels_of, unsupported
from tvm_cascade.request import PlanRequest
from tvm_cascade.schedules.tir import relax, tirx
from tvm_cascade.search_monitor import SearchMonitor

LOG = logging.getLogger("tvm_cascade")
ARENA_ATTR = "cascade.arena_bytes"  # module attribute: total bytes of the arenas of all regions
SUBSTITUTIONS_ATTR = "cascade_substitutions"  # module attribute: names of the substitutions made in its regions
PREFIX_ATTR = "system_lib_prefix"  # module attribute for libraries that register their functions when they are loaded
_CPUS = ("c", "llvm")  # target kinds for which kernels are made


@dataclass(frozen=True)
class Cascade(CascadePass):
    """Plan the static regions of every function, and replace each region by a call to the planned program.

    Works on every module. Quantized operators inside regions become integer operators with TFLite's arithmetic; to
    lower the operators outside regions too, run `LowerQuantized` first; substitutions are then made in the network
    before that, unless another pass has changed the network since. Ensures that the module computes the same values
    (floats up to reassociation) and that the attribute `cascade.arena_bytes` holds the total bytes of all arenas, 0
    without regions. Code that cannot be planned is left to TVM unchanged: symbolic shapes, control flow, calls out of
    TVM, operators without kernels. The logger `tvm_cascade` reports the rest, with reasons.

    Before::

        a = R.nn.conv2d(x, v)
        b = R.nn.conv2d(a, w)
        c = R.sort(b)

    After::

        p = R.call_tir(cls.cascade_main, (x, flash), out_ty=[R.Tensor((1, 16, 16, 4), "float32"), R.Tensor((4360,), "int8")])
        b = p[0]
        c = R.sort(b)

    Raises `InfeasibleError` if the arenas together exceed `request.sram`. A single region is planned under that cap; several
    regions are each planned for the smallest arena. Raises `UsageError` for a request with `stream_input`, `ram`, `flash`,
    `memory` or copies of weights.
    """

    request: PlanRequest = field(default_factory=PlanRequest)  # as for the command line; `stream_input` is refused
    core: KernelTarget = field(default_factory=KernelTarget)

    def __post_init__(self) -> None:
        if self.request.stream_input:
            raise UsageError("a Relax function gets its inputs whole: plan without stream_input")
        if self.request.flash is not None:
            raise UsageError("a Relax module is linked into no image, whose flash could be capped: leave flash out")
        if self.request.ram is not None:
            raise UsageError(
                "a Relax module is linked into no image, whose RAM could be capped: cap the arenas by sram"
            )
        if self.request.memory:
            raise UsageError("a Relax function has one arena: plan without memory, which is for boards")
        if self.request.weights != "linked":
            raise UsageError("a Relax function's weights lie where its module has them: leave weights out")
        if self.request.ram_weights or self.request.prefetch:
            raise UsageError("a Relax function's weights lie where its module has them: plan without copies of them")
        super().__post_init__()

    def call(self, mod: IRModule) -> PassResult:
        """Return the module with planned regions, and the attribute `cascade.arena_bytes`."""
        target = Target.current(allow_none=True)
        if target is not None and target.kind.name not in _CPUS:
            LOG.info("everything is left to TVM: kernels are made for CPUs, not for %s", target.kind.name)
            return _unplanned(mod)
        if PREFIX_ATTR in dict(getattr(mod, "attrs", None) or {}):
            LOG.info(
                "everything is left to TVM: its pass that prefixes names of a system library breaks calls of functions"
            )
            return _unplanned(mod)
        with SearchMonitor(self.request.time_limit) as limit:
            done = _Rewriter(_regions_inlined(_to_plan(mod, self.request)), self.request, self.core).run(mod)
        if limit.limited:
            LOG.warning("the limit on time ended the search: more time may give smaller arenas")
        return done


@dataclass(frozen=True)
class _Block:
    """A dataflow block with static regions, and the plan of each."""

    function: Any  # global variable
    position: int  # among the blocks of the function
    levels: Levels
    planned: tuple[Planned | None, ...]  # by level; None is left to TVM


class _Rewriter:
    """Writer of a module with planned regions and programs."""

    def __init__(self, mod: Any, request: PlanRequest, core: KernelTarget) -> None:
        self.mod, self.request, self.core = mod, request, core
        self.probe = Probe(mod)
        self._plans: dict[tuple[Any, ...], Planned | str] = {}

    def run(self, before: Any) -> PassResult:
        """Return the module with a call in place of every planned region; without any, `before` with the attribute."""
        blocks = [b for gv, f in self.mod.functions_items() if _is_ours(gv, f) for b in self._blocks(gv, f)]
        if not blocks:
            return _unplanned(before)
        blocks = self._under_the_cap(blocks)
        made = self.mod.clone()
        for gv in dict.fromkeys(b.function for b in blocks):
            made = self._rewritten(made, gv, {b.position: b for b in blocks if b.function.same_as(gv)})
        programs = [p for b in blocks for p in b.planned if p is not None]
        _drop_unused(made, {g for p in programs for b in p.region.bindings for g in functions_called(b.value)})
        substitutions = [name for p in programs for name in p.substitutions]
        made = made.with_attr(SUBSTITUTIONS_ATTR, substitutions) if substitutions else made
        return PassResult(_with_arena(made, sum(p.plan.peak for p in programs)), True)

    def _blocks(self, gv: Any, func: Any) -> list[_Block]:
        found = []
        for position, block in enumerate(func.body.blocks):
            if not isinstance(block, relax.DataflowBlock):
                why = "they stand in no dataflow block; relax.transform.ConvertToDataflow makes some"
                names = ", ".join(b.var.name for b in block.bindings)
                LOG.info("%s: left to TVM: %s: %s", gv.name_hint, names, why)
                continue
            levels, plans = self._planned(func, block)
            _tell(gv.name_hint, block, levels, plans)
            planned = tuple(p if isinstance(p, Planned) else None for p in plans)
            if any(planned):
                found.append(_Block(gv, position, levels, planned))
        return found

    def _planned(self, func: Any, block: Any) -> tuple[Levels, list[Planned | str]]:
        """Plan a block's regions; exclude refused operators until none is left.

        Return the regions, each with a plan or the reason for having none.
        """
        refused: dict[Any, str] = {}
        while True:
            levels = levels_of(func, block, unsupported(self.mod, block, refused))
            plans = [self._plan(func, r) for r in levels.regions]
            failed = [r for r, p in zip(levels.regions, plans, strict=True) if isinstance(p, str) and r.computes]
            more = {var: why for r in failed for var, why in self.probe.refused(r).items()}
            if not more:
                return levels, plans
            refused |= more

    def _plan(self, func: Any, region: Region) -> Planned | str:
        """Return the region's plan with the smallest arena, or the reason why there is none."""
        if not region.computes:
            return "it computes nothing"
        key = (*(b.var for b in region.bindings), *region.outputs)
        if key not in self._plans:
            self._plans[key] = plan_region(self.mod, func, region, replace(self.request, sram=None), self.core)
        return self._plans[key]

    def _under_the_cap(self, blocks: list[_Block]) -> list[_Block]:
        """Return the blocks with plans that together fit `request.sram`; plan a single region again for that cap."""
        programs = [p for b in blocks for p in b.planned if p is not None]
        cap = self.request.sram
        if not isinstance(cap, int):
            return blocks
        if len(programs) == 1:
            made = plan_region(self.mod, self.mod[blocks[0].function], programs[0].region, self.request, self.core)
            planned = tuple(made if p is not None and isinstance(made, Planned) else None for p in blocks[0].planned)
            return [replace(blocks[0], planned=planned)]
        needed = sum(p.plan.peak for p in programs)
        if needed > cap:
            largest = max(programs, key=lambda p: p.plan.peak)
            names = [b.var.name for b in largest.region.bindings]
            raise InfeasibleError(needed, cap, [names[0], names[-1]], "cascade fewer regions, or allow more memory")
        return blocks

    def _rewritten(self, made: Any, gv: Any, own: Mapping[int, _Block]) -> Any:
        """Return module `made` with the programs of function `gv`'s planned regions, called by the function.

        `own` maps block positions in the function to the blocks with regions.
        """
        func = self.mod[gv]
        blocks = list(func.body.blocks)
        for position, block in own.items():
            bindings: list[Any] = []
            for between, region, planned in zip(block.levels.between, block.levels.regions, block.planned, strict=True):
                bindings += between
                if planned is None:
                    bindings += region.bindings
                    continue
                made, entry = with_program(made, planned.lowered, f"cascade_{gv.name_hint}")
                flash, arena = flash_image(planned.lowered), workspace_type(planned.lowered)
                bindings += region_call(region, entry, [flash], [arena])
            blocks[position] = relax.DataflowBlock(bindings)
        body = sequence(blocks, func.body.body)
        function = relax.Function(func.params, body, func.ret_ty, func.is_pure, func.attrs)
        made.update_func(made.get_global_var(gv.name_hint), function)
        return made


def _to_plan(mod: Any, request: PlanRequest) -> Any:
    """Return the source lowered by `LowerQuantized`, if its plan has more candidates than `mod`: substitutions that promise a
    smaller arena, or, under a cap, inputs of transposed convolutions spread apart. Return `mod` otherwise.
    """
    source = source_of(mod)
    try:
        if source is not None and promised(mod, request).steps:
            return source
        spreads = request.sram is not None and source is not None and products_of_inputs_spread(source)
        if spreads and is_lowering_of(source, mod):
            return source
    except Exception as error:  # a network that substitutions cannot read or write is planned as it is
        LOG.info("main: no substitutions: %s: %s", type(error).__name__, last_line(error))
    return mod.without_attr(SOURCE_ATTR)


def _is_ours(gv: Any, func: Any) -> bool:
    """Return True for a Relax function without the mark for foreign TVM passes (`OF_OTHERS`)."""
    if not isinstance(func, relax.Function) or not isinstance(func.body, relax.SeqExpr):
        return False
    owner = next((a for a in OF_OTHERS if a in dict(func.attrs or {})), None)
    if owner is not None:
        LOG.info("%s: left to TVM: a function with the attribute %s", gv.name_hint, owner)
    return owner is None


def _tell(function: str, block: Any, levels: Levels, plans: Sequence[Planned | str]) -> None:
    """Log the cascaded regions, and the operators left to TVM with the reasons."""
    for region, plan in zip(levels.regions, plans, strict=True):
        if isinstance(plan, Planned):
            LOG.info("%s: cascaded: %s: %d bytes of arena", function, _named(region), plan.plan.peak)
            for candidate, exactness in plan.candidate.exactness.items():
                LOG.info("%s: %s: %s", function, candidate, exactness)
        elif region.computes:
            LOG.info("%s: left to TVM: %s: %s", function, _named(region), plan)
    for binding in block.bindings:
        if reason := levels.reasons.get(binding.var):
            operator = getattr(getattr(binding.value, "op", None), "name", type(binding.value).__name__)
            LOG.info("%s: left to TVM: %s (%s): %s", function, binding.var.name, operator, reason)


def _named(region: Region) -> str:
    return f"{len(region.bindings)} bindings, {region.bindings[0].var.name} to {region.bindings[-1].var.name}"


def _regions_inlined(mod: Any) -> Any:
    """Inline the region functions of `PartitionRegions` into the callers."""
    regions = {g: f for g, f in mod.functions.items() if f.attrs is not None and REGION in f.attrs}
    if not regions:
        return mod
    made = {g: f for g, f in mod.functions.items() if g not in regions}
    made |= {g: f.inline_functions(regions) for g, f in made.items() if isinstance(f, relax.Function)}
    return relax.transform.CanonicalizeBindings()(IRModule(made, attrs=mod.attrs))


def _drop_unused(mod: Any, candidates: Set[Any]) -> None:
    """Remove the private PrimFuncs among `candidates` not called in `mod` any more."""
    bodies = [f.body for f in mod.functions.values() if isinstance(f, (relax.Function, tirx.PrimFunc))]
    called = {g for body in bodies for g in functions_called(body)}
    for gv in candidates - called:
        if "global_symbol" not in (mod[gv].attrs or {}):
            del mod[gv]


def _unplanned(mod: Any) -> PassResult:
    """Return the result without any planned region: a copy of `mod` with `ARENA_ATTR`."""
    return PassResult(
        _with_arena(mod.without_attr(SOURCE_ATTR), 0), ARENA_ATTR not in dict(getattr(mod, "attrs", None) or {})
    )


def _with_arena(mod: Any, arena_bytes: int) -> Any:
    """Add `arena_bytes` to the `ARENA_ATTR` of `mod`, which may count an earlier run's regions."""
    return mod.with_attr(ARENA_ATTR, int(dict(getattr(mod, "attrs", None) or {}).get(ARENA_ATTR, 0)) + arena_bytes)
