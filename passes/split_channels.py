"""`SplitChannels`: channel tiling for inverted bottlenecks: the wide intermediate is computed one channel group at a
time.

Expansion, depthwise convolution and projection are fused into one PrimFunc with the attribute `channel_groups`. The
kernels hold a single group of the intermediate's channels at a time (`cascading.channels`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import tvm

from tvm_cascade.cascading.channels import KIND, blocks, group_counts
from tvm_cascade.errors import UsageError
from tvm_cascade.passes import relax_functions
from tvm_cascade.passes.base import CascadePass, PassResult
from tvm_cascade.passes.extract_graph import extract_graph
from tvm_cascade.passes.operator_names import operator_names
from tvm_cascade.schedules.kernels.spec import Attributes, read_attributes, with_spec
from tvm_cascade.schedules.tir import relax


@dataclass(frozen=True)
class SplitChannels(CascadePass):
    """Fuse inverted bottlenecks into operators that compute the wide intermediate a single channel group at a time.

    Requires a function `main` of straight-line code with static shapes; run it after `LowerQuantized`. Operators are
    identified by their names in `extract_graph`. Ensures the same values bit for bit.

    Before::

        e = R.call_tir(cls.conv2d, (x, we), out_ty=R.Tensor((1, 8, 8, 96), "int8"))
        f = R.call_tir(cls.depthwise_conv2d, (e, wd), out_ty=R.Tensor((1, 8, 8, 96), "int8"))
        y = R.call_tir(cls.conv2d_1, (f, wp), out_ty=R.Tensor((1, 8, 8, 16), "int8"))

    After `SplitChannels({"conv2d_1": 4})`, with kernels that hold 24 of the 96 channels at a time::

        y = R.call_tir(cls.inverted_bottleneck, (x, we, wd, wp), out_ty=R.Tensor((1, 8, 8, 16), "int8"))

    Raises `UsageError` for a name that is not an inverted bottleneck's projection, or a number of groups that does not
    divide the channels.
    """

    groups: Mapping[str, int] = field(default_factory=dict)  # number of groups, by name of the projection

    def call(self, mod: tvm.IRModule) -> PassResult:
        """Fuse the bottlenecks in `groups`."""
        return PassResult(with_channel_groups(mod, self.groups), bool(self.groups))


def with_channel_groups(mod: tvm.IRModule, groups: Mapping[str, int]) -> tvm.IRModule:
    """Apply `SplitChannels(groups)` to `mod` as a function. Raises `UsageError` as the pass does."""
    return _Merger(mod.clone()).run(groups) if groups else mod


class _Merger:
    """Rebuilds `main` with the chosen bottlenecks fused."""

    def __init__(self, mod: Any) -> None:
        self.mod, self.builder = mod, relax_functions.without_main(mod)
        self.calls = {b.var: b.value for b in relax_functions.bindings_of(mod["main"])}

    def run(self, groups: Mapping[str, int]) -> tvm.IRModule:
        names = operator_names(self.mod["main"])
        unknown = set(groups) - set(names.values())
        if unknown:
            raise UsageError(f"no operator is named {', '.join(sorted(unknown))}: see `plan` for names")
        chains = {v: self._chain(self.calls[v], name, groups[name]) for v, name in names.items() if name in groups}

        def value_of(binding: Any, renamed: Mapping[Any, Any]) -> Any:
            chain = chains.get(binding.var)
            value = binding.value if chain is None else self._merged(chain, groups[names[binding.var]])
            return relax_functions.substitute(value, renamed)

        return relax_functions.rewritten_main(self.mod, self.builder, value_of)

    def _chain(self, call: Any, name: str, groups: int) -> list[Any]:
        """Return the calls of expansion, depthwise convolution and projection; `call` is the last."""
        chain = [call]
        while len(chain) < 3 and _reads_one(chain[0]) and chain[0].args[1].fields[0] in self.calls:
            chain.insert(0, self.calls[chain[0].args[1].fields[0]])
        if len(chain) == 3 and all(_reads_one(c) for c in chain):
            graph = extract_graph(_alone(chain, self._functions(chain))).graph
            if any(groups in group_counts(graph, block) for block in blocks(graph)):
                return chain
        raise UsageError(f"{name} is no projection of an inverted bottleneck with channels in {groups} equal groups")

    def _merged(self, chain: Sequence[Any], groups: int) -> Any:
        """Build a `call_tir` to the function fused from the three calls in `chain`."""
        gv = self.builder.add_func(merged_function(chain, self._functions(chain), groups), KIND)
        return relax.op.call_tir(gv, _arguments(chain), out_ty=chain[-1].ty_args[0])

    def _functions(self, chain: Sequence[Any]) -> list[Any]:
        return [self.mod[c.args[0]] for c in chain]


def _arguments(chain: Sequence[Any]) -> list[Any]:
    """List the external arguments of a call chain: the first call's input, then each call's constants."""
    return [chain[0].args[1].fields[0], *(a for c in chain for a in c.args[1].fields[1:])]


def _reads_one(call: Any) -> bool:
    """Test that a value is a `call_tir` on a variable, followed by constants."""
    if not relax_functions.is_call_tir(call):
        return False
    first, *rest = call.args[1].fields
    return isinstance(first, relax.Var) and all(isinstance(a, tvm.ir.GenericConst) for a in rest)


def _emit_chain(builder: Any, chain: Sequence[Any], funcs: Sequence[Any], arguments: Sequence[Any]) -> Any:
    """Emit the call chain on `arguments`, in the order of `_arguments`; return the last variable."""
    value, rest = arguments[0], iter(arguments[1:])
    for k, (call, func) in enumerate(zip(chain, funcs, strict=True)):
        constants = [next(rest) for _ in call.args[1].fields[1:]]
        gv = builder.add_func(func, f"stage{k}")
        value = builder.emit(relax.op.call_tir(gv, [value, *constants], out_ty=call.ty_args[0]))
    return value


def _alone(chain: Sequence[Any], funcs: Sequence[Any]) -> tvm.IRModule:
    """Build a module with this call chain alone as `main`."""
    builder, x = relax.BlockBuilder(), relax.Var("x", chain[0].args[1].fields[0].ty)
    arguments = [x, *_arguments(chain)[1:]]
    relax_functions.add_function(builder, "main", [x], lambda: _emit_chain(builder, chain, funcs, arguments))
    return builder.finalize()


def merged_function(chain: Sequence[Any], funcs: Sequence[Any], groups: int) -> Any:
    """Build the PrimFunc fused from three calls, each of which reads its predecessor and constants."""
    types = [a.ty for a in _arguments(chain)]
    func = relax_functions.fused_function(types, lambda builder, params: _emit_chain(builder, chain, funcs, params))
    filtered, kernel = read_attributes(funcs[1]), tuple(int(d) for d in funcs[1].params[1].ty.shape)[:2]
    attributes = Attributes(kernel=kernel, strides=filtered.strides, padding=filtered.padding, channel_groups=groups)
    func = func.with_attr("tirx.noalias", True).without_attr("global_symbol")
    return with_spec(func, KIND, 1, attributes)
