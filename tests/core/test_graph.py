from __future__ import annotations

from dataclasses import replace

import pytest

from tvm_cascade.errors import GraphError
from tvm_cascade.graph import Graph, Op, Tensor, Window


def tensor(index: int, shape: tuple[int, ...] = (1, 4, 4, 2), dtype: str = "int8") -> Tensor:
    return Tensor(index, f"t{index}", shape, dtype, row_axis=1, col_axis=2)


def test_a_window_clips_to_the_tensor() -> None:
    window = Window(extent=3, stride=2, dilation=2, padding=1)
    assert window.span == 5
    assert [list(window.rows(y, 8)) for y in range(4)] == [[0, 1, 2, 3], [1, 2, 3, 4, 5], [3, 4, 5, 6, 7], [5, 6, 7]]


def test_an_enlarging_window_reads_a_row_more_than_once() -> None:
    window = Window(extent=1, stride=1, denominator=2)
    assert [list(window.rows(y, 3)) for y in range(6)] == [[0], [0], [1], [1], [2], [2]]


def test_a_whole_window_reads_everything_every_time() -> None:
    window = Window.whole(5)
    assert list(window.rows(0, 5)) == list(window.rows(7, 5)) == [0, 1, 2, 3, 4]


def test_sizes_of_a_tensor() -> None:
    t = tensor(0, (1, 6, 5, 3), "int16")
    assert (t.bytes, t.rows, t.columns, t.row_bytes) == (180, 6, 5, 30)


def test_neighbours() -> None:
    ops = (
        Op(0, "a", "conv2d", (0,), (1,)),
        Op(1, "b", "conv2d", (0,), (2,)),
        Op(2, "c", "add", (1, 2), (3,)),
    )
    graph = Graph(tuple(tensor(i) for i in range(4)), ops, (0,), (3,))
    assert graph.producer == (None, 0, 1, 2)
    assert graph.consumers == ((0, 1), (2,), (2,), ())
    assert graph.predecessors == ((), (), (0, 1))
    assert graph.successors == ((2,), (2,), ())
    assert graph.is_order([1, 0, 2])
    assert not graph.is_order([2, 0, 1])
    assert not graph.is_order([0, 1])


@pytest.mark.parametrize(
    ("ops", "message"),
    [
        ((Op(0, "a", "add", (1,), (2,)), Op(1, "b", "add", (0,), (1,))), "before anything writes it"),
        ((Op(0, "a", "add", (0,), (1,)), Op(1, "b", "add", (0,), (1,))), "written already"),
        ((Op(1, "a", "add", (0,), (1,)),), "index 1 at position 0"),
        ((Op(0, "a", "add", (0,), (1,), windows=()), Op(1, "b", "add", (0,), (2,), windows=(None, None))), "2 windows"),
        ((Op(0, "a", "add", (0,), (1,)), Op(1, "b", "concat", (0, 1), (2,), view=True)), "a view has one input"),
        (
            (Op(0, "a", "add", (0,), (1,)), Op(1, "b", "concat", (0, 1), (2,), view=True, part_offsets=(0,))),
            "one input",
        ),
    ],
)
def test_a_broken_graph_is_refused(ops: tuple[Op, ...], message: str) -> None:
    with pytest.raises(GraphError, match=message):
        Graph(tuple(tensor(i) for i in range(3)), ops, (0,), (1,))


@pytest.mark.parametrize(
    ("parts", "offsets", "message"),
    [
        ((1, 2), (0, 8), "b reads t1 and another part depends on it"),
        ((0, 1), (0, 8), "t0 is an input or a view"),
        ((1, 3), (0, 8), "t3 is an input or a view"),
        ((1, 1), (0, 8), "t1 is a part already"),
        ((1, 4), (0, 9), "t4 goes beyond its output"),
    ],
)
def test_a_join_whose_parts_cannot_be_written_into_it_is_refused(
    parts: tuple[int, ...], offsets: tuple[int, ...], message: str
) -> None:
    """Planning a join whose parts depend on one another never ended; of the others an invalid plan was made."""
    ops = (
        Op(0, "a", "conv2d", (0,), (1,)),
        Op(1, "b", "conv2d", (1,), (2,)),
        Op(2, "c", "reshape", (2,), (3,), view=True),
        Op(3, "d", "conv2d", (0,), (4,)),
        Op(4, "e", "concat", parts, (5,), view=True, part_offsets=offsets),
    )
    tensors = tuple(tensor(i, (8,)) for i in range(5))
    with pytest.raises(GraphError, match=f"e cannot be a join, since {message}"):
        Graph((*tensors, tensor(5, (16,))), ops, (0,), (5,))
    apart = replace(ops[4], inputs=(1, 4), part_offsets=(0, 8))
    Graph((*tensors, tensor(5, (16,))), (*ops[:4], apart), (0,), (5,))
