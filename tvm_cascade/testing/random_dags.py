"""Random small int8 DAGs with everything that has a window, each cascaded at several caps and run.

Operators: convolutions (grouped or not), depthwise ones, pools, element-wise ones, concatenations along channels and
rows (of equal and of different scales, of fresh branches, in chains, of parts that others read too), splits along
channels and rows, explicit pads, strided slices, nearest enlargements, transposed convolutions, and stencils written by
hand that nothing knows by name; with strides and dilations up to 3, paddings that differ by side, branches, skips, several
inputs and outputs, transposes to and from NCHW, odd sizes. What a plan computes is compared with the module run by TVM
itself, which shares neither kernels, nor driver, nor arena with it.
"""

# TVM's passes and expressions get their operators at run time, where no type checker sees them.
# pyright: reportArgumentType=false, reportCallIssue=false
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tvm
from tvm import relax as _relax
from tvm import te, tirx

from tvm_cascade import pipeline
from tvm_cascade.cascading import Plan, PlanOptions, baseline_peak, frontier, plan_graph, validate
from tvm_cascade.cores import KernelTarget, get_core
from tvm_cascade.graph import Graph
from tvm_cascade.passes.candidates.candidate import PlannedCandidate
from tvm_cascade.passes.join_concats import joinable, joined
from tvm_cascade.passes.lower_quantized import LowerQuantized
from tvm_cascade.passes.prepare_graph import PreparedGraph
from tvm_cascade.testing.builder import Net, Value
from tvm_cascade.testing.host_check import plan_prepared, run_plan
from tvm_cascade.testing.quick_build import virtual_machine

relax: Any = _relax  # its nodes get their fields at run time, where no type checker sees them

CAN = PlanOptions()
_TO_NHWC, _TO_NCHW = (0, 2, 3, 1), (0, 3, 1, 2)
_LARGEST = 700  # elements of a map: an interpreter's patience


class RandomDag:
    """One network, deterministic for a seed."""

    def __init__(self, seed: int, operators: int | None = None) -> None:
        self.rng = np.random.default_rng(seed)
        self.net = Net("int8", seed=seed, scales="varied" if self.rng.random() < 0.3 else "shared")
        self.maps: list[Value] = []
        self._stencils = 0
        shape = (1, self._int(5, 18), self._int(4, 15), self._int(1, 5))
        for _ in range(1 + (self.rng.random() < 0.15)):
            self.maps.append(self._input(shape))
        self._wanted = self._int(2, 8) if operators is None else operators
        while self._wanted > 0:
            grown = self._grow()
            self.maps += grown
            self._wanted -= bool(grown)

    def module(self) -> tvm.IRModule:
        """The network, with every map that nothing reads among its outputs (three at most)."""
        net, rng = self.net, self.rng
        last = self.maps[-1]
        ending = rng.integers(0, 5)
        if ending == 0:
            last = net.global_pool(last)
        elif ending == 1:
            last = net.dense(net.flatten(last), 5)
        elif ending == 2:
            last = net.softmax(net.flatten(net.global_pool(last)))
        more = [v for v in self.maps[-4:-1] if rng.random() < 0.15]
        results = [
            self._permuted(_TO_NCHW, v) if len(v.shape) == 4 and rng.random() < 0.1 else v for v in (last, *more)
        ]
        return net.finish(results if more else results[0])

    def _int(self, low: int, high: int) -> int:
        return int(self.rng.integers(low, high))

    def _input(self, shape: tuple[int, ...]) -> Value:
        n, h, w, c = shape
        if self.rng.random() > 0.25:
            return self.net.input(shape)
        return self._permuted(_TO_NHWC, self.net.input((n, c, h, w)))

    def _permuted(self, axes: Sequence[int], x: Value) -> Value:
        return self._as(x, relax.op.permute_dims(x.expr, list(axes)), [x.shape[a] for a in axes])

    def _as(self, like: Value, expr: Any, shape: Sequence[int]) -> Value:
        """An operator on integers as they are: scale and zero point stay."""
        return replace(like, expr=self.net._emit(expr), shape=tuple(shape))

    def _grow(self) -> list[Value]:
        """Outputs of one more operator; empty where the one that was drawn does not fit."""
        x = self.maps[-1] if self.rng.random() < 0.7 else self.maps[self._int(0, len(self.maps))]
        names = ("_conv", "_conv", "_conv", "_depthwise", "_depthwise", "_pool", "_add", "_add", "_concat", "_stack",
                 "_cell", "_cell", "_split", "_cut", "_pad", "_slice", "_enlarge", "_stencil", "_stencil", "_wide",
                 "_squash", "_turn")  # fmt: skip
        return getattr(self, names[self._int(0, len(names))])(x)

    def _window(self, x: Value, most: int, dilated: bool = True) -> dict[str, Any] | None:
        """Kernel, stride, dilation and padding that leave something of `x`."""
        _, h, w, _ = x.shape
        kernel = self._int(1, most + 1), self._int(1, min(most, 4) + 1)
        stride = self._int(1, 4), self._int(1, 4)
        dilation = (self._int(1, 4), self._int(1, 3)) if dilated and self.rng.random() < 0.3 else (1, 1)
        spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
        kind = self.rng.random()
        if kind < 0.5:
            padding: Any = "same"
        elif kind < 0.7:
            padding = "valid"
            if spans[0] > h or spans[1] > w:
                return None
        else:
            padding = tuple(self._int(0, min(s, 4)) for s in (*spans, *spans))
            if spans[0] > h + padding[0] + padding[2] or spans[1] > w + padding[1] + padding[3]:
                return None
        return {"kernel": kernel, "stride": stride, "padding": padding} | ({"dilation": dilation} if dilated else {})

    def _conv(self, x: Value) -> list[Value]:
        window = self._window(x, 5)
        activation = "relu" if self.rng.random() < 0.5 else None
        return [self.net.conv(x, self._int(1, 9), activation=activation, **window)] if window else []

    def _depthwise(self, x: Value) -> list[Value]:
        window = self._window(x, 4)
        return [self.net.depthwise(x, **window)] if window else []

    def _pool(self, x: Value) -> list[Value]:
        window = self._window(x, 3, dilated=False)
        if window is None or (isinstance(window["padding"], tuple) and max(window["padding"]) >= min(window["kernel"])):
            return []
        return [self.net.max_pool(x, **window) if self.rng.random() < 0.6 else self.net.avg_pool(x, **window)]

    def _alike(self, x: Value, axes: Sequence[int]) -> list[Value]:
        return [v for v in self.maps if all(v.shape[a] == x.shape[a] for a in axes)]

    def _add(self, x: Value) -> list[Value]:
        others = self._alike(x, (1, 2, 3))
        other = others[self._int(0, len(others))]
        return [self.net.mul(x, other) if self.rng.random() < 0.2 else self.net.add(x, other)]

    def _concat(self, x: Value) -> list[Value]:
        others = [v for v in self._alike(x, (1, 2)) if v.shape[3] + x.shape[3] <= 12]
        return [self._joined([x, others[self._int(0, len(others))]], 3)] if others else []

    def _stack(self, x: Value) -> list[Value]:
        """Concatenation along the rows."""
        others = [v for v in self._alike(x, (2, 3)) if v.shape[1] + x.shape[1] <= 24]
        return [self._joined([x, others[self._int(0, len(others))]], 1)] if others else []

    def _joined(self, parts: Sequence[Value], axis: int) -> Value:
        """Parts of other scales are requantized first, as converters do, or the concatenation goes through floats."""
        if self.rng.random() < 0.8:
            return self.net.concat(parts, axis)
        shape = list(parts[0].shape)
        shape[axis] = sum(p.shape[axis] for p in parts)
        real = self.net._emit(relax.op.concat([self.net._real(p) for p in parts], axis=axis))
        return self.net._back(real, tuple(shape), parts[0].scale, parts[0].zero_point)

    def _cell(self, x: Value) -> list[Value]:
        """Branches of `x` put together, as they can be written into place; at times others read a part, or it goes on."""
        axis = 3 if self.rng.random() < 0.75 else 1
        stride = (self._int(1, 3), self._int(1, 3)) if axis == 3 else (1, 1)
        width = 4 * self._int(1, 3)
        if x.shape[1] * x.shape[2] * 3 * width > 4 * _LARGEST:
            return []
        odd = int(axis == 3 and self.rng.random() < 0.1)  # channels that keep parts from being written into place
        parts = [self._branch(x, width + odd, stride) for _ in range(self._int(2, 4))]
        self._wanted -= len(parts)
        outputs = [self._joined(parts, axis)]
        if self.rng.random() < 0.3 and outputs[0].shape[3] <= 24:
            outputs.append(
                self._joined([*outputs, self._branch(x, outputs[0].shape[3] if axis == 1 else width, stride)], axis)
            )
        if self.rng.random() < 0.6:
            outputs.append(self._reader(outputs[-1]))
        return [*parts[: self.rng.random() < 0.25], *outputs[-1:]]

    def _branch(self, x: Value, channels: int, stride: tuple[int, int]) -> Value:
        """A map of `channels` and of the extents that the stride leaves."""
        net, kind = self.net, self._int(0, 5)
        if kind == 0:
            return net.depthwise(net.conv(x, channels, 1), self._int(1, 4), stride)
        if kind == 1:
            return net.max_pool(net.conv(x, channels, 1), 3, stride, "same")
        if kind == 2:
            return net.relu(net.conv(x, channels, self._int(1, 4), stride))
        if kind == 3:
            return net.avg_pool(net.conv(x, channels, 1), self._int(1, 4), stride, "same")
        return net.conv(x, channels, (self._int(1, 4), self._int(1, 4)), stride, activation="relu")

    def _reader(self, x: Value) -> Value:
        kind = self._int(0, 3)
        if kind == 0:
            return self.net.conv(x, self._int(1, 9), self._int(1, 4))
        if kind == 1:
            return self.net.depthwise(x, 3, self._int(1, 3))
        return self.net.max_pool(x, 3, self._int(1, 3), "same")

    def _turn(self, x: Value) -> list[Value]:
        """To NCHW, element by element there, and back."""
        planes = self.net.relu(self._permuted(_TO_NCHW, x))
        return [self._permuted(_TO_NHWC, planes)]

    def _cut(self, x: Value) -> list[Value]:
        """Upper and lower rows apart: views."""
        n, h, w, c = x.shape
        if h < 2:
            return []
        at = self._int(1, h)
        parts = self.net._emit(relax.op.split(x.expr, [at], axis=1))
        return [self._as(x, relax.TupleGetItem(parts, k), (n, rows, w, c)) for k, rows in enumerate((at, h - at))]

    def _split(self, x: Value) -> list[Value]:
        n, h, w, c = x.shape
        if c % 2:
            return []
        parts = self.net._emit(relax.op.split(x.expr, 2, axis=3))
        return [self._as(x, relax.TupleGetItem(parts, k), (n, h, w, c // 2)) for k in range(2)]

    def _pad(self, x: Value) -> list[Value]:
        n, h, w, c = x.shape
        t, b, left, r = (self._int(0, 3) for _ in range(4))
        expr = relax.op.nn.pad(x.expr, (0, 0, t, b, left, r, 0, 0), pad_value=float(x.zero_point))
        return [self._as(x, expr, (n, h + t + b, w + left + r, c))]

    def _slice(self, x: Value) -> list[Value]:
        n, h, w, c = x.shape
        at, step = self._int(0, 3), self._int(1, 4)
        if at >= h:
            return []
        expr = relax.op.strided_slice(x.expr, [1], [at], [h], [step])
        return [self._as(x, expr, (n, -(-(h - at) // step), w, c))]

    def _enlarge(self, x: Value) -> list[Value]:
        n, h, w, c = x.shape
        factor = self._int(2, 4)
        if h * w * c * factor * factor > _LARGEST:
            return []
        spread = {"layout": "NHWC", "method": "nearest_neighbor", "coordinate_transformation_mode": "asymmetric"}
        expr = relax.op.image.resize2d(
            x.expr, (h * factor, w * factor), rounding_method="floor", out_dtype="int8", **spread
        )
        return [self._as(x, expr, (n, h * factor, w * factor, c))]

    def _tir(self, x: Value, tensors: Sequence[te.Tensor], shape: tuple[int, ...]) -> list[Value]:
        func = te.create_prim_func(list(tensors), index_dtype_override="int32").without_attr("global_symbol")
        self._stencils += 1
        gv = self.net._builder.add_func(func, f"by_hand{self._stencils}")
        return [self._as(x, relax.op.call_tir(gv, (x.expr,), out_ty=relax.TensorType(shape, "int8")), shape)]

    def _stencil(self, x: Value) -> list[Value]:
        """A maximum (or a sum, halved) over the taps of a window, padded by a constant."""
        window = self._window(x, 5)
        if window is None:
            return []
        n, h, w, c = x.shape
        (kh, kw), (sh, sw), (dh, dw) = window["kernel"], window["stride"], window["dilation"]
        pads = window["padding"] if isinstance(window["padding"], tuple) else (self._int(0, 2), 0, self._int(0, 2), 0)
        high = (h + pads[0] + pads[2] - (kh - 1) * dh - 1) // sh + 1
        wide = (w + pads[1] + pads[3] - (kw - 1) * dw - 1) // sw + 1
        if high < 1 or wide < 1:
            return []
        source = te.placeholder((n, h, w, c), "int8", name="x")
        ry, rx = te.reduce_axis((0, kh), name="ry"), te.reduce_axis((0, kw), name="rx")

        def tap(b: Any, y: Any, i: Any, f: Any) -> Any:
            row, column = y * sh + ry * dh - pads[0], i * sw + rx * dw - pads[1]
            inside = tirx.all(row >= 0, row < h, column >= 0, column < w)
            value = tirx.if_then_else(inside, source[b, row, column, f], tirx.const(-7, "int8"))
            return te.max(value, [ry, rx])

        return self._tir(x, [source, te.compute((n, high, wide, c), tap, name="by_hand")], (n, high, wide, c))

    def _wide(self, x: Value) -> list[Value]:
        """A transposed convolution, every tap 1: rows are enlarged and overlap."""
        n, h, w, c = x.shape
        stride, kernel = self._int(2, 4), self._int(2, 5)
        high = (h - 1) * stride + kernel
        if high * w * c > _LARGEST:
            return []
        source = te.placeholder((n, h, w, c), "int8", name="x")
        taps = -(-kernel // stride)
        r = te.reduce_axis((0, taps), name="r")

        def tap(b: Any, y: Any, i: Any, f: Any) -> Any:
            row = tirx.floordiv(y, stride) - r
            inside = tirx.all(row >= 0, row < h, y - row * stride < kernel)
            value = tirx.if_then_else(inside, source[b, row, i, f], tirx.const(-128, "int8"))
            return te.max(value, [r])

        return self._tir(x, [source, te.compute((n, high, w, c), tap, name="wide")], (n, high, w, c))

    def _squash(self, x: Value) -> list[Value]:
        return [self.net.relu(x) if self.rng.random() < 0.5 else self.net.sigmoid(x)]


@dataclass(frozen=True)
class DagResult:
    """What was checked of one network."""

    seed: int
    operators: tuple[str, ...]  # what they are
    plans: tuple[tuple[str, int, int], ...]  # way, bytes of the arena, multiply-accumulates; the smallest arena first
    baseline: int  # bytes layer by layer


Planned = tuple[PreparedGraph, Plan]


def ways(mod: tvm.IRModule, prepared: PreparedGraph) -> dict[str, Callable[[], Planned]]:
    """How a network is planned: plain, smallest in several ways, under caps between, recomputing, with all concats
    written into place, and as `compile` takes it."""
    graph = prepared.graph
    options: dict[str, PlanOptions] = {
        "min": CAN,
        "streamed": replace(CAN, stream_input=True),
        "layerwise": replace(CAN, layerwise=True),
        "no overlap": replace(CAN, overlap=False),
        "rows": replace(CAN, granularity="row"),
        "pixels": replace(CAN, granularity="pixel", overlap=False),
        "streamed, 2x work": replace(CAN, stream_input=True, max_macs=2.0),
    }
    planners: dict[str, Callable[[], Planned]] = {
        name: lambda o=o: (prepared, plan_graph(graph, o)) for name, o in options.items()
    }
    for part in (0.25, 0.6):
        planners[f"cap {part}"] = lambda part=part: (prepared, plan_graph(graph, _capped(graph, part)))
    planners["3x work"] = lambda: (prepared, frontier(graph, replace(CAN, max_macs=3.0))[0])
    planners["between, 3x work"] = lambda: (prepared, _middle(frontier(graph, replace(CAN, max_macs=3.0))))
    with_joins = joined(prepared, joinable(prepared))
    for name in ("min", "streamed", "layerwise", "rows") if joinable(prepared) else ():
        planners[f"joined, {name}"] = lambda o=options[name]: (with_joins, plan_graph(with_joins.graph, o))
    if any(op.kind == "concat" and not op.view for op in graph.ops):
        usual = replace(CAN, steps=get_core("cortex-m4").steps)
        for name, o in {"usual": usual, "usual, no overlap": replace(usual, overlap=False)}.items():
            planners[name] = lambda o=o: _chosen(plan_prepared(mod, prepared, o))
    return planners


def _capped(graph: Graph, part: float) -> PlanOptions:
    """A cap that far between the smallest arena and layer by layer."""
    least, all_of_it = plan_graph(graph, CAN).peak, baseline_peak(graph, CAN.alignment)
    return replace(CAN, sram=max(int(least + part * (all_of_it - least)), least))


def _middle(plans: Sequence[Plan]) -> Plan:
    return plans[len(plans) // 2]


def _chosen(candidate: PlannedCandidate) -> Planned:
    return candidate.prepared, candidate.plan


def check_dag(seed: int, operators: int | None = None, most: int | None = None) -> DagResult:
    """Cascade network `seed`, run each plan, and compare with the module run by TVM.

    Parameters
    ----------
    most : int, optional
        Ways to plan it: the smallest arena first, others drawn; all by default. Plans that come twice run once.

    Raises
    ------
    AssertionError
        An output differs, a multiply-accumulate too many or too few, or a byte beyond the plan's peak.
    ValidationError
        The plan is wrong, or a canary beside the arena died.
    """
    mod = RandomDag(seed, operators).module()
    rng = np.random.default_rng(seed)
    shapes = [[int(d) for d in p.ty.shape.values] for p in mod["main"].params]
    feeds = [rng.integers(-128, 128, s).astype(np.int8) for s in shapes]
    machine = virtual_machine(LowerQuantized()(mod))
    result = machine["main"](*(tvm.runtime.tensor(f) for f in feeds))
    expected = [result.numpy()] if hasattr(result, "numpy") else [r.numpy() for r in result]
    prepared = pipeline.prepare(mod, KernelTarget())
    able = ways(mod, prepared)
    first, *others = able
    drawn = others if most is None else [str(n) for n in rng.permutation(others)[: most - 1]]
    checked: list[tuple[str, int, int]] = []
    seen: list[Plan] = []
    for name in (first, *drawn):
        network, plan = able[name]()
        if replace(plan, bound=0) in seen:
            continue
        seen.append(replace(plan, bound=0))
        validate(plan)
        run = run_plan(network, plan, feeds)
        for k, (got, want) in enumerate(zip(run.outputs, expected, strict=True)):
            np.testing.assert_array_equal(got, want, err_msg=f"seed {seed}, {name}, output {k}")
        assert run.executed_macs == plan.macs, (seed, name, run.executed_macs, plan.macs)
        assert run.arena_high_water <= plan.peak, (seed, name, run.arena_high_water, plan.peak)
        assert "work" in name or plan.macs == plan.baseline_macs, (seed, name)
        checked.append((name, plan.peak, plan.macs))
    kinds = tuple(op.kind for op in prepared.graph.ops)
    return DagResult(seed, kinds, tuple(checked), baseline_peak(prepared.graph, CAN.alignment))
