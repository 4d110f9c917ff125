"""`SplitChannels`: inverted bottlenecks that make their wide channels in groups (`cascading.channels`).

Before: `e = conv2d(x, we); f = depthwise_conv2d(e, wd); y = conv2d(f, wp)`. After: `y = inverted_bottleneck(x, we, wd, wp)`,
one PrimFunc of the three with the attribute `channel_groups`, whose kernels never have all channels at once. Every bit
stays. Run it after `LowerQuantized`; operators are named as `extract_graph` names them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import tvm

from tvm_cascade.cascading.channels import KIND, blocks, group_counts
from tvm_cascade.errors import UsageError
from tvm_cascade.passes.base import CascadePass, PassResult
from tvm_cascade.passes.extract_graph import extract_graph
from tvm_cascade.passes.rewrite_for_memory import operator_names, substitute
from tvm_cascade.schedules.kernels.spec import Attributes, read_attributes, with_spec
from tvm_cascade.schedules.tir import relax


@dataclass(frozen=True)
class SplitChannels(CascadePass):
    """Merge inverted bottlenecks into operators that make their wide channels in groups.

    Requires a function `main` of straight-line code with static shapes; run it after `LowerQuantized`. Ensures the same
    values bit for bit.

    Before::

        e = R.call_tir(cls.conv2d, (x, we), out_ty=R.Tensor((1, 8, 8, 96), "int8"))
        f = R.call_tir(cls.depthwise_conv2d, (e, wd), out_ty=R.Tensor((1, 8, 8, 96), "int8"))
        y = R.call_tir(cls.conv2d_1, (f, wp), out_ty=R.Tensor((1, 8, 8, 16), "int8"))

    After `SplitChannels({"conv2d_1": 4})`, of whose kernels each holds 24 of the 96 channels::

        y = R.call_tir(cls.inverted_bottleneck, (x, we, wd, wp), out_ty=R.Tensor((1, 8, 8, 16), "int8"))

    Raises `UsageError` for a name that is no projection of an inverted bottleneck whose channels that many groups divide.
    """

    groups: Mapping[str, int] = field(
        default_factory=dict
    )  # of channels, by the name of the projection that sums them up

    def call(self, mod: tvm.IRModule) -> PassResult:
        """The module with the bottlenecks merged."""
        return PassResult(with_channel_groups(mod, self.groups), bool(self.groups))


def with_channel_groups(mod: tvm.IRModule, groups: Mapping[str, int]) -> tvm.IRModule:
    """`mod` with the blocks that end in projections of those names as operators that make their channels in groups.

    Raises `UsageError` for a name that is no projection of an inverted bottleneck whose channels that many groups divide.
    """
    return _Merger(mod.clone()).run(groups) if groups else mod


class _Merger:
    """Rebuilds `main` with the chosen blocks merged."""

    def __init__(self, mod: Any) -> None:
        self.mod = mod
        self.builder = relax.BlockBuilder(
            tvm.IRModule({g: f for g, f in mod.functions.items() if g.name_hint != "main"})
        )
        self.calls = {b.var: b.value for block in mod["main"].body.blocks for b in block.bindings}

    def run(self, groups: Mapping[str, int]) -> tvm.IRModule:
        main = self.mod["main"]
        names = operator_names(main)
        unknown = set(groups) - set(names.values())
        if unknown:
            raise UsageError(f"no operator is named {', '.join(sorted(unknown))}: see `plan` for names")
        chains = {v: self._chain(self.calls[v], name, groups[name]) for v, name in names.items() if name in groups}
        renamed: dict[Any, Any] = {}
        with self.builder.function("main", list(main.params), attrs=dict(main.attrs or {})):
            with self.builder.dataflow():
                for block in main.body.blocks:
                    for binding in block.bindings:
                        value = binding.value
                        if binding.var in chains:
                            value = self._merged(chains[binding.var], groups[names[binding.var]])
                        renamed[binding.var] = self.builder.emit(substitute(value, renamed), name_hint=binding.var.name)
                result = self.builder.emit_output(substitute(main.body.body, renamed))
            self.builder.emit_func_output(result)
        return relax.transform.DeadCodeElimination()(self.builder.finalize())

    def _chain(self, call: Any, name: str, groups: int) -> list[Any]:
        """The calls of the three operators that end in `call`."""
        chain = [call]
        while len(chain) < 3 and _reads_one(chain[0]) and chain[0].args[1].fields[0] in self.calls:
            chain.insert(0, self.calls[chain[0].args[1].fields[0]])
        if len(chain) == 3 and all(_reads_one(c) for c in chain):
            graph = extract_graph(_alone(chain, self._functions(chain))).graph
            if any(groups in group_counts(graph, block) for block in blocks(graph)):
                return chain
        raise UsageError(f"{name} is no projection of an inverted bottleneck with channels in {groups} equal groups")

    def _merged(self, chain: Sequence[Any], groups: int) -> Any:
        """The call of the three operators as one."""
        gv = self.builder.add_func(merged_function(chain, self._functions(chain), groups), KIND)
        arguments = [a for k, c in enumerate(chain) for a in (c.args[1].fields if k == 0 else c.args[1].fields[1:])]
        return relax.op.call_tir(gv, arguments, out_ty=chain[-1].ty_args[0])

    def _functions(self, chain: Sequence[Any]) -> list[Any]:
        return [self.mod[c.args[0]] for c in chain]


def _reads_one(call: Any) -> bool:
    """Whether a value is a call of a PrimFunc over one variable and constants."""
    if not isinstance(call, relax.Call) or getattr(call.op, "name", "") != "relax.call_tir":
        return False
    first, *rest = call.args[1].fields
    return isinstance(first, relax.Var) and all(isinstance(a, tvm.ir.GenericConst) for a in rest)


def _alone(chain: Sequence[Any], funcs: Sequence[Any]) -> tvm.IRModule:
    """A module of these calls, one behind the other, and nothing else."""
    builder = relax.BlockBuilder(tvm.IRModule({}))
    value: Any = relax.Var("x", chain[0].args[1].fields[0].ty)
    with builder.function("main", [value]):
        with builder.dataflow():
            for call, func in zip(chain, funcs, strict=True):
                arguments = [value, *call.args[1].fields[1:]]
                value = builder.emit(
                    relax.op.call_tir(builder.add_func(func, "stage"), arguments, out_ty=call.ty_args[0])
                )
            value = builder.emit_output(value)
        builder.emit_func_output(value)
    return builder.finalize()


def merged_function(chain: Sequence[Any], funcs: Sequence[Any], groups: int) -> Any:
    """The PrimFunc of three calls, each of which reads the one before it and constants."""
    builder = relax.BlockBuilder(tvm.IRModule({}))
    made = [builder.add_func(f, f"stage{k}") for k, f in enumerate(funcs)]
    own = [list(c.args[1].fields) if k == 0 else list(c.args[1].fields[1:]) for k, c in enumerate(chain)]
    params = [relax.Var(f"a{k}", a.ty) for k, a in enumerate(a for ours in own for a in ours)]
    with builder.function("fused", params, attrs={"Primitive": 1}, private=True):
        with builder.dataflow():
            value: Any = None
            at = 0
            for gv, call, ours in zip(made, chain, own, strict=True):
                arguments = [*([] if value is None else [value]), *params[at : at + len(ours)]]
                value, at = builder.emit(relax.op.call_tir(gv, arguments, out_ty=call.ty_args[0])), at + len(ours)
            result = builder.emit_output(value)
        builder.emit_func_output(result)
    outer = relax.BlockBuilder(builder.finalize())
    fused = outer.get().get_global_var("fused")
    params = [relax.Var(p.name, p.ty) for p in params]
    with outer.function("main", params):
        with outer.dataflow():
            result = outer.emit_output(outer.emit(relax.Call(fused, params)))
        outer.emit_func_output(result)
    mod = relax.transform.FuseTIR()(outer.finalize())
    func = next(f for g, f in mod.functions.items() if g.name_hint == "fused")
    filtered, kernel = read_attributes(funcs[1]), tuple(int(d) for d in funcs[1].params[1].ty.shape)[:2]
    attributes = Attributes(kernel=kernel, strides=filtered.strides, padding=filtered.padding, channel_groups=groups)
    func = func.with_attr("tirx.noalias", True).without_attr("global_symbol")
    return with_spec(func, KIND, 1, attributes)
