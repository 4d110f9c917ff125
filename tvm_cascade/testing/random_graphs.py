"""Random graphs for the ordering: small ones with everything in them, large ones like randomly wired networks."""

from __future__ import annotations

from random import Random

from tvm_cascade.graph import Graph, Op, Tensor


class _Maker:
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.tensors: list[Tensor] = []
        self.ops: list[Op] = []

    def tensor(self, size: int) -> int:
        self.tensors.append(Tensor(len(self.tensors), f"t{len(self.tensors)}", (size,), "int8"))
        return len(self.tensors) - 1

    def op(self, inputs: tuple[int, ...], outputs: tuple[int, ...], kind: str = "op", **fields: object) -> None:
        index = len(self.ops)
        self.ops.append(Op(index, f"{kind}{index}", kind, inputs, outputs, **fields))  # type: ignore[arg-type]

    def size(self, t: int) -> int:
        return self.tensors[t].shape[0]


def mixed_graph(seed: int, ops: int) -> Graph:
    """A small graph with views, splits, joins, in-place and multi-output operators, scratch, and kept tensors."""
    make = _Maker(seed)
    random = make.random
    inputs = tuple(make.tensor(random.randrange(1, 9)) for _ in range(random.randrange(1, 3)))
    while len(make.ops) < ops:
        reach = range(max(0, len(make.tensors) - 6), len(make.tensors))
        reads = tuple(random.sample(reach, min(len(reach), random.randrange(1, 4))))
        draw = random.random()
        if draw < 0.15:
            make.op(reads[:1], _pieces(make, reads[0]), "view", view=True)
        elif draw < 0.3 and len(make.ops) + 3 <= ops:
            _join(make, reads)
        else:
            _compute(make, reads)
    computed = range(len(inputs), len(make.tensors))
    outputs = tuple(sorted(random.sample(computed, min(len(computed), random.randrange(1, 3)))))
    return Graph(tuple(make.tensors), tuple(make.ops), inputs, outputs)


def _pieces(make: _Maker, source: int) -> tuple[int, ...]:
    count = make.random.randrange(1, 3)
    return tuple(make.tensor(max(1, make.size(source) // count)) for _ in range(count))


def _compute(make: _Maker, reads: tuple[int, ...]) -> None:
    random = make.random
    first = make.size(reads[0]) if random.random() < 0.4 else random.randrange(1, 9)
    outputs = tuple(
        make.tensor(first if k == 0 else random.randrange(1, 9)) for k in range(random.choice((1, 1, 1, 2)))
    )
    in_place = tuple(range(len(reads))) if random.random() < 0.5 else ()
    make.op(reads, outputs, in_place=in_place, scratch_bytes=random.choice((0, 0, 3)))


def _join(make: _Maker, reads: tuple[int, ...]) -> None:
    """Two operators that write into one memory: side by side, or adding up."""
    random = make.random
    adds, beside = random.random() < 0.5, random.random() < 0.5
    size = random.randrange(1, 9)
    parts = (make.tensor(size), make.tensor(size if adds else random.randrange(1, 9)))
    for k, part in enumerate(parts):
        make.op((reads[k % len(reads)],), (part,), attrs={"beside": True} if adds and beside else {})
    total = size if adds else make.size(parts[0]) + make.size(parts[1])
    offsets = (0, 0 if adds else make.size(parts[0]))
    make.op(parts, (make.tensor(total),), "accumulate" if adds else "concat", view=True, part_offsets=offsets)


def wired_graph(seed: int, ops: int, span: int = 20) -> Graph:
    """A large graph with wires at random, tensors of 1 to 64 KiB, all read, mostly within `span` operators."""
    make = _Maker(seed)
    random = make.random
    make.tensor(65_536)
    unread = [0]
    for k in range(ops - 1):
        reach = range(max(0, k + 1 - span), k + 1)
        reads = set(random.sample(reach, min(len(reach), random.choice((1, 1, 2, 2)))))
        if len(unread) > span // 2:
            reads.add(unread[0])
        unread = [t for t in unread if t not in reads]
        unread.append(make.tensor(1024 * random.choice((1, 4, 8, 16, 32, 64))))
        make.op(tuple(sorted(reads)), (unread[-1],))
    last = make.tensor(1024)
    make.op(tuple(unread), (last,))
    return Graph(tuple(make.tensors), tuple(make.ops), (0,), (last,))


def cell_graph(seed: int, cells: int, states: int = 7) -> Graph:
    """Random cells, one behind the other, each reading the outputs of the two before it, as ENAS, DARTS and NASNet have them.

    A cell preprocesses both, then each of its states adds two operators of earlier ones, convolutions of one to four
    operators, and it ends in a concat of the states that nothing reads. 16 KiB a tensor, 64 KiB between cells.
    """
    make = _Maker(seed)
    random = make.random

    def chain(source: int, length: int) -> int:
        for _ in range(length):
            made = make.tensor(16_384)
            make.op((source,), (made,))
            source = made
        return source

    before = last = make.tensor(65_536)
    for _ in range(cells):
        known, read = [chain(before, 1), chain(last, 1)], set[int]()
        for _ in range(states):
            pair = random.sample(range(len(known)), 2)
            read.update(pair)
            made = make.tensor(16_384)
            make.op(tuple(chain(known[k], random.randrange(1, 5)) for k in pair), (made,))
            known.append(made)
        before, last = last, make.tensor(65_536)
        make.op(tuple(t for k, t in enumerate(known) if k not in read and k > 1), (last,), "concat")
    read_by = {t for op in make.ops for t in op.inputs}
    return Graph(
        tuple(make.tensors), tuple(make.ops), (0,), tuple(t for t in range(1, len(make.tensors)) if t not in read_by)
    )
