"""Serenity's rewriting as the paper has it (section 3.3), on the `Graph`: what it saves, and what it really costs.

Channel-wise partitioning turns `concat -> conv` into k partial convolutions, one per part, that add up in one output
(equations 3 to 6), in any order; an `add` of two convolutions is absorbed, both adding to the same output. Kernel-wise
partitioning turns `concat -> depthwise` into k depthwise convolutions whose results are concatenated (7, 8).

Partial sums of integers are exact only in int32, which the paper does not count: `Accumulate.INT32` does, and shows
that full-map accumulators cost more than they save. The product reads the parts where they lie instead
(`ordering.rewriting.fold_concats`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

from tvm_cascade.graph import Graph, Op, Tensor, rebuilt
from tvm_cascade.ordering.rewriting import fold_concats

CONVOLUTIONS = frozenset(("conv2d", "dense"))
DEPTHWISE = frozenset(("depthwise_conv2d",))


class Accumulate(Enum):
    """How partial convolutions add up, in any order."""

    BESIDE = "beside"  # each computed beside the accumulator, then added; in the output's type: the paper's figures
    IN_PLACE = "in place"  # each added to the accumulator as it is computed, in the output's type: exact for floats
    INT32 = "int32"  # the same in int32, requantized at the end: exact for integers


def cell(graph: Graph, ops: Sequence[int], name: str = "cell") -> Graph:
    """The operators `ops` as a graph of their own: what they read from elsewhere are inputs, what others read are outputs."""
    inside = set(ops)
    written = {t for i in ops for t in graph.ops[i].outputs}
    inputs = tuple(dict.fromkeys(t for i in ops for t in graph.ops[i].inputs if t not in written))
    results = set(graph.outputs)
    outputs = tuple(t for t in sorted(written) if t in results or any(c not in inside for c in graph.consumers[t]))
    return rebuilt(graph.tensors, [graph.ops[i] for i in sorted(ops)], inputs, outputs, name)


def fold_activations(graph: Graph) -> Graph:
    """`graph` without the rectifiers that only convolutions read: these clamp what they read, bit for bit the same.

    The literature counts relu -> convolution -> normalization as one node of a cell; this makes graphs comparable.
    """
    source: dict[int, int] = {}
    ops = []
    for op in graph.ops:
        readers = [graph.ops[c] for t in op.outputs for c in graph.consumers[t]]
        able = readers and all(r.kind in CONVOLUTIONS | DEPTHWISE for r in readers)
        if op.kind in ("relu", "clip") and len(op.inputs) == 1 and able and op.outputs[0] not in graph.outputs:
            source[op.outputs[0]] = source.get(op.inputs[0], op.inputs[0])
        else:
            ops.append(replace(op, inputs=tuple(source.get(t, t) for t in op.inputs)))
    return rebuilt(graph.tensors, ops, graph.inputs, graph.outputs, graph.name)


@dataclass(slots=True)
class _Rewriter:
    graph: Graph
    form: Accumulate
    tensors: list[Tensor]
    ops: list[Op]

    def tensor(self, like: Tensor, name: str, dtype: str | None = None) -> int:
        made = Tensor(len(self.tensors), name, like.shape, dtype or like.dtype, like.row_axis, like.col_axis)
        self.tensors.append(made)
        return made.index

    def partial(self, op: Op, inputs: tuple[int, ...], name: str, share: int) -> int:
        """An operator that adds to an accumulator; returns the tensor that stands for its share."""
        out = self.graph.tensors[op.outputs[0]]
        wide = "int32" if self.form is Accumulate.INT32 else out.dtype
        sums = self.tensor(out, f"{name}_sum", wide)
        attrs = {"beside": True} if self.form is Accumulate.BESIDE else {}
        self.ops.append(
            Op(0, name, op.kind, inputs, (sums,), macs=op.macs // share, scratch_bytes=op.scratch_bytes, attrs=attrs)
        )
        return sums

    def join(self, op: Op, shares: Sequence[int], output: int) -> None:
        """The accumulator that the shares lie in, as `output`."""
        exact = self.form is Accumulate.INT32
        total = self.tensor(self.graph.tensors[output], f"{op.name}_total", "int32") if exact else output
        offsets = (0,) * len(shares)
        self.ops.append(Op(0, f"{op.name}_sum", "accumulate", tuple(shares), (total,), view=True, part_offsets=offsets))
        if exact:
            self.ops.append(Op(0, f"{op.name}_requantize", "requantize", (total,), (output,), in_place=(0,)))

    def channel_wise(self, op: Op) -> list[int]:
        """k partial convolutions, one per part."""
        k = len(op.inputs)
        return [self.partial(op, (part,), f"{op.name}_part{i}", k) for i, part in enumerate(op.inputs)]

    def kernel_wise(self, op: Op, parts: Sequence[int]) -> None:
        """k partial depthwise convolutions and the concat behind them."""
        out = self.graph.tensors[op.outputs[0]]
        partial_sums = []
        for k, part in enumerate(parts):
            x = self.tensors[part]
            shape = (*out.shape[:-1], x.shape[-1] * out.shape[-1] // sum(self.tensors[p].shape[-1] for p in parts))
            partial_sums.append(self.tensor(replace(out, shape=shape), f"{out.name}_part{k}"))
            self.ops.append(
                Op(0, f"{op.name}_part{k}", op.kind, (part,), (partial_sums[-1],), macs=op.macs // len(parts))
            )
        self.ops.append(Op(0, f"{op.name}_concat", "concat", tuple(partial_sums), op.outputs))


def partition_channels(graph: Graph, form: Accumulate = Accumulate.BESIDE, kernel_wise: bool = False) -> Graph:
    """Channel-wise partitioning of every convolution behind a concat; the paper leaves depthwise ones as they are.

    Partial convolutions add up in any order: the accumulator is a join (see `model`), a view that counts as no node.
    A following `add` is absorbed where both of its operands are convolutions that nothing else reads: both add to the
    same accumulator. `kernel_wise` also partitions depthwise convolutions. `macs` are split evenly.
    """
    behind = _behind_concats(graph)
    folded = fold_concats(graph)
    names = {op.name: op.index for op in graph.ops}
    targets = {op.index for op in folded.ops if names[op.name] in behind and len(op.inputs) > 1}
    convs = {i for i in targets if folded.ops[i].kind in CONVOLUTIONS}
    rewriter = _Rewriter(folded, form, list(folded.tensors), [])
    absorbed = _absorbed_adds(folded, convs)
    terms = {conv for pair in absorbed.values() for conv in pair}
    shares: dict[int, list[int]] = {}
    for op in folded.ops:
        if op.index in absorbed:
            rewriter.join(op, [s for conv in absorbed[op.index] for s in shares[conv]], op.outputs[0])
        elif op.index in convs:
            shares[op.index] = rewriter.channel_wise(op)
            if op.index not in terms:
                rewriter.join(op, shares[op.index], op.outputs[0])
        elif op.index in terms:
            shares[op.index] = [rewriter.partial(op, op.inputs, op.name, 1)]
        elif kernel_wise and op.index in targets and op.kind in DEPTHWISE:
            rewriter.kernel_wise(op, op.inputs)
        else:
            rewriter.ops.append(op)
    return rebuilt(rewriter.tensors, rewriter.ops, folded.inputs, folded.outputs, graph.name)


def _behind_concats(graph: Graph) -> set[int]:
    """Operators whose only input is a concat."""
    concats = {op.outputs[0] for op in graph.ops if op.kind == "concat"}
    return {op.index for op in graph.ops if len(op.inputs) == 1 and op.inputs[0] in concats}


def _absorbed_adds(graph: Graph, convs: set[int]) -> dict[int, tuple[int, int]]:
    """For each add that is absorbed its two convolutions, of which at least one is partitioned."""
    absorbed: dict[int, tuple[int, int]] = {}
    for op in graph.ops:
        if op.kind != "add" or len(op.inputs) != 2 or op.inputs[0] == op.inputs[1]:
            continue
        terms = [p for t in op.inputs if (p := graph.producer[t]) is not None and _only_read_by(graph, t, op.index)]
        same = len({graph.tensors[t].shape for t in op.inputs}) == 1
        if len(terms) == 2 and same and convs & set(terms) and all(graph.ops[p].kind in CONVOLUTIONS for p in terms):
            absorbed[op.index] = (terms[0], terms[1])
    return absorbed


def _only_read_by(graph: Graph, tensor: int, op: int) -> bool:
    """Whether a tensor is read by `op` and nothing else."""
    return graph.consumers[tensor] == (op,) and tensor not in graph.outputs
