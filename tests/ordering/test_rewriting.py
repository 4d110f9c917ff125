"""Rewriting on graphs of our own: what folds, what partitions, and what stays."""

from __future__ import annotations

from tvm_cascade.graph import Graph, Op, Tensor
from tvm_cascade.ordering import order
from tvm_cascade.ordering.rewriting import fold_concats, nodes
from tvm_cascade.testing.channel_partition import Accumulate, partition_channels


def tensor(index: int, channels: int) -> Tensor:
    return Tensor(index, f"t{index}", (1, 4, 4, channels), "int8", 1, 2)


def branches(consumer: str, outputs: tuple[int, ...] = (5,)) -> Graph:
    """Three convolutions of the input, a concat, and one consumer of it."""
    ops = [Op(k, f"branch{k}", "conv2d", (0,), (k + 1,), macs=8) for k in range(3)]
    ops.append(Op(3, "concat", "concat", (1, 2, 3), (4,)))
    ops.append(Op(4, "consumer", consumer, (4,), (5,), macs=30))
    sizes = (2, 4, 4, 4, 12, 4 if consumer == "conv2d" else 12)
    return Graph(tuple(tensor(i, c) for i, c in enumerate(sizes)), tuple(ops), (0,), outputs)


def test_a_folded_concat_is_read_where_its_parts_lie() -> None:
    folded = fold_concats(branches("conv2d"))
    assert [op.kind for op in folded.ops] == ["conv2d"] * 4
    assert len(folded.ops[3].inputs) == 3
    assert order(folded).peak < order(branches("conv2d")).peak


def test_a_concat_that_is_an_output_stays() -> None:
    assert nodes(fold_concats(branches("conv2d", (4, 5)))) == 5


def test_partial_convolutions_add_up_in_one_tensor() -> None:
    graph = partition_channels(branches("conv2d"), Accumulate.IN_PLACE)
    assert nodes(graph) == 6 and graph.ops[-1].kind == "accumulate" and graph.ops[-1].view
    assert order(graph).peak == 16 * (2 + 4 + 4)
    assert sum(op.macs for op in graph.ops) == branches("conv2d").macs


def test_exact_integers_need_wide_sums() -> None:
    graph = partition_channels(branches("conv2d"), Accumulate.INT32)
    assert graph.ops[-1].kind == "requantize"
    assert order(graph).peak == 16 * (2 + 4 + 4 * 4)


def test_kernel_wise_moves_the_concat_behind() -> None:
    graph = partition_channels(branches("depthwise_conv2d"), kernel_wise=True)
    assert [op.kind for op in graph.ops].count("depthwise_conv2d") == 3
    assert graph.ops[-1].kind == "concat" and graph.tensors[graph.outputs[0]].shape[-1] == 12


def test_depthwise_is_untouched_unless_asked() -> None:
    assert partition_channels(branches("depthwise_conv2d")) == fold_concats(branches("depthwise_conv2d"))
