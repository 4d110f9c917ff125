"""The proof obligation of every rule: source and target compute the same, on random shapes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tvm_cascade.substitution.dag import Dag, Node, Pool, Ref, postorder, replace
from tvm_cascade.substitution.evaluate import run
from tvm_cascade.substitution.pattern import Matcher
from tvm_cascade.substitution.rules import ALL_RULES, integer_rules, rules
from tvm_cascade.substitution.rules_quantized import quantized_sum

TOLERANCE = 1e-9  # relative, float64: reassociation only


class Maker:
    """Random operators on random shapes, for the sources of rules."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.pool = Pool()
        self.layout = str(self.random.choice(["NCHW", "NHWC"]))
        self.axis = 1 if self.layout == "NCHW" else 3
        self.leaves = 0

    def pick(self, *options):
        return options[int(self.random.integers(len(options)))]

    def leaf(self, shape, constant: bool = False) -> Ref:
        self.leaves += 1
        make = self.pool.weight if constant else self.pool.input
        return make(f"v{self.leaves}", shape)

    def weight(self, *shape: int) -> Ref:
        return self.leaf(shape, constant=True)

    def image(self, channels: int | None = None, size: int | None = None) -> Ref:
        c = channels or self.pick(2, 3, 4)
        h, w = (size, size) if size else (self.pick(5, 6, 7), self.pick(5, 6, 8))
        return self.leaf((self.pick(1, 2), c, h, w) if self.layout == "NCHW" else (self.pick(1, 2), h, w, c))

    def channels(self, x: Ref) -> int:
        return x.shape[self.axis]

    def conv(self, x: Ref, out: int, kernel=(3, 3), strides=(1, 1), padding=None, groups=1, bias=None, act="",
             dilation=(1, 1)) -> Ref:  # fmt: skip
        kh, kw = kernel
        if padding is None:
            (top, left), (dh, dw) = ((kh - 1) // 2, (kw - 1) // 2), dilation
            padding = (top * dh, left * dw, (kh - 1 - top) * dh, (kw - 1 - left) * dw)
        operands = [x, self.weight(out, self.channels(x) // groups, kh, kw)]
        if bias if bias is not None else self.pick(True, False):
            operands.append(self.weight(out))
        attrs = {"strides": strides, "padding": padding, "dilation": dilation, "groups": groups, "act": act}
        return self.pool.make("conv2d", *operands, layout=self.layout, **attrs)

    def vector(self, x: Ref) -> Ref:
        """A constant per channel that broadcasts over an image."""
        c = self.channels(x)
        return self.weight(*((c, 1, 1) if self.layout == "NCHW" else self.pick((c,), (1, 1, 1, c))))

    def matmul(self, x: Ref, w: Ref, bias: Ref | None = None, act: str = "") -> Ref:
        return self.pool.make("matmul", x, w, *([] if bias is None else [bias]), act=act)

    def concat(self, *parts: Ref, axis: int | None = None) -> Ref:
        return self.pool.make("concat", *parts, axis=self.axis if axis is None else axis)

    def split(self, x: Ref, *sizes: int, axis: int | None = None) -> list[Ref]:
        node = self.pool.make("split", x, axis=self.axis if axis is None else axis, sizes=sizes).node
        return [Ref(node, i) for i in range(len(sizes))]

    def full(self, shape, value: float) -> Ref:
        return self.pool.make("full", types=((tuple(shape), "float32"),), value=value)

    def dag(self, *outputs: Ref) -> Dag:
        inputs = tuple(Ref(n, 0) for n in postorder(outputs) if n.kind == "input")
        return Dag(self.pool, inputs, outputs)


def _enlarge(m: Maker) -> list[Ref]:
    x, s = m.image(), m.pick((1, 1), (2, 2))
    big = m.pick((3, 3), (3, 1), (5, 3))
    pads = m.pick(None, (0, 0, big[0] - 1, big[1] - 1))
    return [m.conv(x, 3, m.pick((1, 1), (1, 3)), s), m.conv(x, 2, big, s, pads)]


def _fuse(m: Maker) -> list[Ref]:
    x, k, s, act = m.image(), m.pick((1, 1), (3, 3)), m.pick((1, 1), (2, 1)), m.pick("", "relu")
    return [m.conv(x, m.pick(1, 3), k, s, act=act), m.conv(x, 2, k, s, act=act)]


def _quantized(
    m: Maker, x: Ref, out: int, kernel: tuple[int, int], bias: bool, stride: int = 1, groups: int = 1
) -> Ref:
    """A convolution of stored values with a scale for every output."""
    kh, kw = kernel
    operands = [m.weight(out, m.channels(x) // groups, kh, kw), *(m.weight(out) for _ in range(3 if bias else 1))]
    attrs = {"strides": (stride, stride), "dilation": (1, 1), "groups": groups, "layout": m.layout, "act": "relu"}
    same = {"padding": (kh // 2, kw // 2, kh // 2, kw // 2), "range": (-128, 127), "dtype": "int8", "w_zero": 0}
    return m.pool.make("qconv2d", x, *operands, x_quantum=(0.05, 3), y_quantum=(0.7, -4), **attrs, **same)


def _quantized_pair(m: Maker, kernels) -> list[Ref]:
    x, bias, stride = m.image(), m.pick(True, False), m.pick(1, 2)
    return [_quantized(m, x, m.pick(2, 4), k, bias, stride) for k in kernels]


_END = {"y_quantum": (0.7, -4), "range": (-128, 127), "dtype": "int8", "act": ""}


def _quantized_matmul(m: Maker, x: Ref, w: Ref, bias: bool) -> Ref:
    out = w.shape[1]
    operands = [w, *(m.weight(out) for _ in range(3 if bias else 1))]
    return m.pool.make("qmatmul", x, *operands, x_quantum=(0.05, 3), w_zero=m.pick(0, 2), **_END)


def _quantized_columns(m: Maker) -> list[Ref]:
    x, bias = m.leaf((m.pick(1, 3), 5)), m.pick(True, False)
    zero = m.pick(0, 2)
    attrs = {"x_quantum": (0.05, 3), "w_zero": zero, **_END}
    sizes = (4, m.pick(2, 3))
    return [
        m.pool.make("qmatmul", x, m.weight(5, n), *(m.weight(n) for _ in range(3 if bias else 1)), **attrs)
        for n in sizes
    ]


def _quantized_rows(m: Maker) -> list[Ref]:
    first = _quantized_matmul(m, m.leaf((2, 5)), m.weight(5, 3), m.pick(True, False)).node
    second = m.pool.make("qmatmul", m.leaf((m.pick(1, 4), 5)), *first.inputs[1:], **dict(first.attrs))
    return [Ref(first, 0), second]


def _quantized_sum(m: Maker, a: Ref, b: Ref, same: bool) -> Ref:
    return quantized_sum(m.pool, a, (0.3, 1), b, (0.3, 1) if same else (0.2, -2), **_END)


def _sum_of_views(m: Maker) -> list[Ref]:
    view = _view(m)
    return [_quantized_sum(m, view(m.leaf((1, 2, 3, 4))), view(m.leaf((1, 2, 3, 4))), m.pick(True, False))]


def _sum_of_concats(m: Maker) -> list[Ref]:
    x = m.image()
    a, b = (m.concat(m.leaf(x.shape), m.leaf(x.shape)) for _ in range(2))
    return [_quantized_sum(m, a, b, m.pick(True, False))]


def _concat_of_sums(m: Maker) -> list[Ref]:
    x, same = m.image(), m.pick(True, False)
    leaves = [m.leaf(x.shape) for _ in range(4)]
    # Operands come in the pool's order: of the second sum the other way round where the leaves are.
    order = m.pick((2, 3), (3, 2))
    return [m.concat(*(_quantized_sum(m, leaves[i], leaves[j], same) for i, j in ((0, 1), order)))]


def _joint_depthwise(m: Maker) -> list[Ref]:
    x, times, quantized, bias = m.image(), m.pick(1, 2), m.pick(True, False), m.pick(True, False)
    y = m.leaf(x.shape)
    k, s, parts = m.pick((3, 3), (3, 1)), m.pick(1, 2), []
    for z in (x, y):
        c = m.channels(z)
        if quantized:
            parts.append(_quantized(m, z, c * times, k, bias, s, c))
        else:
            parts.append(m.conv(z, c * times, k, (s, s), groups=c))
    return [m.concat(*parts)]


def _grouped_pair(m: Maker) -> list[Ref]:
    x = m.image(4)
    if m.pick(True, False):
        return [_quantized(m, x, 4 * n, (3, 3), False, 1, 4) for n in (1, m.pick(1, 2))]
    groups = m.pick(2, 4)
    return [m.conv(x, groups * n, (3, 3), groups=groups) for n in (2, m.pick(1, 3))]


def _clipped(m: Maker) -> list[Ref]:
    made = m.pick(
        lambda: _quantized(m, m.image(), 3, (1, 1), True),
        lambda: _quantized_matmul(m, m.leaf((2, 5)), m.weight(5, 3), True),
        lambda: _quantized_sum(m, x := m.image(), m.leaf(x.shape), False),
    )()
    return [m.pool.make("clip", made, low=-20.0, high=m.pick(30.0, 127.0))]


def _fuse_add(m: Maker) -> list[Ref]:
    x, d = m.image(), m.pick((1, 1), (2, 1))
    y = m.conv(x, 3, m.pick((1, 1), (3, 3), (3, 1), (2, 2)), dilation=d)
    return [m.pool.make("add", y, m.leaf(y.shape))]


def _add_convs(m: Maker) -> list[Ref]:
    x = m.image()
    y = m.pick(x, m.leaf(x.shape))
    return [m.pool.make("add", m.conv(x, 3), m.conv(y, 3))]


def _conv_of_concat(m: Maker) -> list[Ref]:
    x = m.image()
    parts = [x, m.leaf(x.shape), *m.pick([], [m.leaf(x.shape)])]
    return [m.conv(m.concat(*parts), 3, strides=m.pick((1, 1), (2, 2)))]


def _depthwise_of_concat(m: Maker) -> list[Ref]:
    x = m.image()
    y = m.concat(x, m.leaf(x.shape))
    c = m.channels(y)
    if m.pick(True, False):
        return [_quantized(m, y, c * m.pick(1, 2), (3, 3), m.pick(True, False), 1, c)]
    return [m.conv(y, c * m.pick(1, 2), groups=c)]


def _norm(m: Maker, x: Ref) -> Ref:
    stats = [m.weight(m.channels(x)) for _ in range(4)]
    return m.pool.make("batch_norm", x, *stats, axis=m.axis, eps=1e-3)


def _compose(m: Maker) -> list[Ref]:
    x = m.image(4)
    inner = m.conv(x, 4, m.pick((3, 3), (1, 1)), m.pick((1, 1), (2, 2)), groups=m.pick(1, 2, 4))
    return [m.conv(inner, 3, (1, 1), act=m.pick("", "relu"))]


def _group_convs(m: Maker) -> list[Ref]:
    x = m.image(4)
    a, b = m.split(x, 2, 2)
    return [m.concat(m.conv(a, 3), m.conv(b, 3))]


def _sum_with_products(m: Maker) -> tuple[Ref, Ref, Ref]:
    shape = (2, m.pick(3, 4))
    return m.leaf(shape), m.leaf(shape), m.leaf(m.pick(shape, (1, shape[1])))


def _distribute(m: Maker) -> list[Ref]:
    a, b, c = _sum_with_products(m)
    return [m.pool.make("mul", a, m.pool.make(m.pick("add", "sub"), b, c))]


def _factor(m: Maker) -> list[Ref]:
    a, b, c = _sum_with_products(m)
    p = m.pool
    return [p.make(m.pick("add", "sub"), p.make("mul", a, b), p.make("mul", a, c))]


def _reorder(m: Maker) -> list[Ref]:
    a, b, c = (m.leaf((2, 3)) for _ in range(3))
    p = m.pool
    b = m.pick(b, p.make("mul", m.full((2, 3), 1), b))
    return [p.make("add", a, p.make("sub", b, c))]


def _nested(m: Maker) -> list[Ref]:
    kind = m.pick("add", "mul")
    a, b, c = (m.leaf((2, 3)) for _ in range(3))
    return [m.pool.make(kind, m.pool.make(kind, a, b), c)]


def _drop(m: Maker) -> list[Ref]:
    x, kind = m.leaf((2, 3)), m.pick("mul", "div", "add", "sub")
    return [m.pool.make(kind, x, m.full(m.pick((2, 3), (1,)), 1 if kind in ("mul", "div") else 0))]


def _columns(m: Maker) -> list[Ref]:
    x, constant = m.leaf(m.pick((2, 4), (3, 2, 4))), m.pick(True, False)
    act = m.pick("", "tanh")
    biases = m.pick((None, None), (m.weight(3), None))
    return [m.matmul(x, m.leaf((4, n), constant), b, act) for n, b in zip((3, 5), biases, strict=True)]


def _rows(m: Maker) -> list[Ref]:
    w = m.weight(4, 3)
    return [m.matmul(m.leaf((2, 4)), w), m.matmul(m.leaf((1, 4)), w)]


def _all_rows(m: Maker) -> list[Ref]:
    """Four products of one weight, the last of which depends on the first."""
    w, bias = m.weight(4, 4), m.pick(None, m.weight(4))
    act = m.pick("", "relu")
    first = [m.matmul(m.leaf((n, 4)), w, bias, act) for n in (1, 2, 3)]
    return [*first, m.matmul(m.pool.make("relu", first[0]), w, bias, act)]


def _elementwise(m: Maker) -> list[Ref]:
    p, x = m.pool, m.leaf((2, 3))
    s = p.make("sigmoid", x)
    a = p.make("mul", s, m.leaf(m.pick((2, 3), (3,))))
    return [p.make("add", a, p.make("sub", m.leaf((2, 3)), s))]


def _batch_unary(m: Maker) -> list[Ref]:
    a, b = m.split(m.leaf((2, 7)), 3, 4, axis=1)
    kind = m.pick("tanh", "relu")
    return [m.pool.make(kind, a), m.pool.make(kind, b)]


def _concat_of_split(m: Maker) -> list[Ref]:
    parts = m.split(m.leaf((2, 6)), 1, 2, 3, axis=1)
    return [m.concat(*m.pick([], [m.leaf((2, 2))]), *parts, axis=1), parts[0]]


def _split_of_concat(m: Maker) -> list[Ref]:
    joined = m.concat(m.leaf((2, 1)), m.leaf((2, 2)), m.leaf((2, 3)), axis=1)
    return m.split(joined, *m.pick((1, 2, 3), (3, 3), (1, 5)), axis=1)


def _flatten_split(m: Maker) -> list[Ref]:
    outer = m.split(m.leaf((2, 6)), 1, 4, 1, axis=1)
    return [*m.split(outer[1], 1, 3, axis=1), outer[0], outer[2]]


def _exclusive(m: Maker) -> list[Ref]:
    return [m.concat(m.pool.make("relu", m.leaf((2, 3))), m.pool.make("tanh", m.leaf((2, 2))), axis=1)]


def _transpose(m: Maker, x: Ref) -> Ref:
    return m.pool.make("transpose", x, perm=(0, 2, 3, 1))


def _two_views(m: Maker) -> list[Ref]:
    a, b = m.leaf((1, 2, 3, 4)), m.leaf((1, 2, 3, 4))
    if m.pick(True, False):
        return [m.pool.make(m.pick("add", "sub"), _transpose(m, a), _transpose(m, b))]
    return [m.pool.make("mul", *(m.pool.make("reshape", r, shape=(6, 4)) for r in (a, b)))]


def _view(m: Maker) -> Callable[[Ref], Ref]:
    return m.pick(lambda x: _transpose(m, x), lambda x: m.pool.make("reshape", x, shape=(6, 4)))


def _drop_view(m: Maker) -> list[Ref]:
    x = m.leaf((2, 3))
    return [m.pick(m.pool.make("transpose", x, perm=(0, 1)), m.pool.make("reshape", x, shape=(2, 3)))]


def _max_pool(m: Maker, x: Ref) -> Ref:
    padding = m.pick((0, 0, 0, 0), (1, 1, 1, 1))
    attrs = {"kernel": (3, 2), "strides": (2, 2), "padding": padding, "ceil": m.pick(True, False)}
    return m.pool.make("max_pool2d", x, layout=m.layout, **attrs)


def _experts(m: Maker) -> list[Ref]:
    """A sum of gated products, of one without a gate and of another term; now and then one product is read elsewhere too."""
    lead = m.pick((3,), (1, 4), (2, 3))
    rest = m.leaf((*lead, 5))
    terms = [m.matmul(m.leaf((*lead, d)), m.weight(d, 5)) for d in (m.pick(2, 3), 4, 3)]
    gated = [m.pool.make("mul", t, m.leaf(m.pick((*lead, 1), (lead[-1], 1)))) for t in terms[:2]]
    total = rest
    for term in (*gated, terms[2]):
        total = m.pool.make("add", *m.pick((total, term), (term, total)))
    return [m.pool.make("tanh", total), *m.pick([], [terms[0]])]


def _batched(m: Maker) -> list[Ref]:
    """Products of equal shapes, with or without biases, the last of which depends on the first."""
    lead, bias, act = m.pick((3,), (1, 4), (2, 3)), m.pick(True, False), m.pick("", "relu")
    made = []
    for k in range(4):
        x = m.leaf((*lead, 4)) if k < 3 else m.pool.make("tanh", made[0])
        made.append(m.matmul(x, m.weight(4, 4), m.weight(4) if bias else None, act))
    return made


SOURCES: dict[str, Callable[[Maker], list[Ref]]] = {
    "enlarge_kernel": _enlarge,
    "fuse_convs": _fuse,
    "fuse_convs_enlarged": _enlarge,
    "fuse_conv_add": _fuse_add,
    "add_of_convs": _add_convs,
    "conv_of_concat": _conv_of_concat,
    "depthwise_of_concat": _depthwise_of_concat,
    "fold_batch_norm": lambda m: [_norm(m, m.conv(m.image(), 3, strides=m.pick((1, 1), (2, 2))))],
    "batch_norm_to_affine": lambda m: [_norm(m, m.image())],
    "fold_bias": lambda m: [m.pool.make("add", c := m.conv(m.image(), 3), m.vector(c))],
    "fold_scale": lambda m: [m.pool.make("mul", c := m.conv(m.image(), 3), m.vector(c))],
    "fold_scale_before": lambda m: [m.conv(m.pool.make("mul", x := m.image(), m.vector(x)), 3)],
    "compose_convs": _compose,
    "merge_groups": lambda m: [m.conv(m.image(4), 8, groups=m.pick(2, 4))],
    "group_convs": _group_convs,
    "fuse_activation": lambda m: [m.pool.make(m.pick("relu", "sigmoid"), m.conv(m.image(), 3))],
    "unfuse_activation": lambda m: [m.conv(m.image(), 3, act=m.pick("relu6", "tanh"))],
    "distribute": _distribute,
    "reorder_sum": _reorder,
    "factor": _factor,
    "associate": _nested,
    "associate_right": _nested,
    "drop_unit": _drop,
    "merge_matmuls": _columns,
    "merge_matmul_rows": _rows,
    "merge_all_rows": _all_rows,
    "sum_of_products": _experts,
    "batch_products": _batched,
    "matmul_bias": lambda m: [
        m.pool.make("add", m.matmul(m.leaf((2, 4)), m.leaf((4, 3)), m.pick(None, m.weight(3))), m.weight(3))
    ],
    "matmul_scale": lambda m: [
        m.pool.make("mul", m.matmul(m.leaf((2, 4)), m.weight(4, 3), m.pick(None, m.weight(3))), m.weight(1, 3))
    ],
    "compose_matmuls": lambda m: [
        m.matmul(m.matmul(m.leaf((2, 4)), m.weight(4, 5), m.pick(None, m.weight(5))), m.weight(5, 3), m.weight(3))
    ],
    "fuse_elementwise": _elementwise,
    "batch_unary": _batch_unary,
    "concat_of_split": _concat_of_split,
    "split_of_concat": _split_of_concat,
    "flatten_concat": lambda m: [m.concat(m.leaf((2, 1)), m.concat(m.leaf((2, 2)), m.leaf((2, 3)), axis=1), axis=1)],
    "flatten_split": _flatten_split,
    "exclusive_concat": _exclusive,
    "compose_transposes": lambda m: [_transpose(m, _transpose(m, m.leaf((1, 2, 3, 4))))],
    "compose_reshapes": lambda m: [
        m.pool.make("reshape", m.pool.make("reshape", m.leaf((2, 6)), shape=(3, 4)), shape=(12,))
    ],
    "drop_view": _drop_view,
    "unary_before_view": lambda m: [m.pool.make("tanh", _view(m)(m.leaf((1, 2, 3, 4))))],
    "unary_after_view": lambda m: [_view(m)(m.pool.make("tanh", m.leaf((1, 2, 3, 4))))],
    "binary_before_view": _two_views,
    "concat_of_transposes": lambda m: [
        m.concat(_transpose(m, m.leaf((1, 2, 3, 4))), _transpose(m, m.leaf((1, 2, 3, 4))), axis=m.pick(1, 3))
    ],
    "unary_of_concat": lambda m: [m.pool.make("relu", m.concat(x := m.image(), m.leaf(x.shape)))],
    "concat_of_unary": lambda m: [m.concat(m.pool.make("tanh", x := m.image()), m.pool.make("tanh", m.leaf(x.shape)))],
    "activation_before_pool": lambda m: [m.pool.make("relu", _max_pool(m, m.image()))],
    "activation_after_pool": lambda m: [_max_pool(m, m.pool.make("relu", m.image()))],
    "fuse_quantized_convs": lambda m: _quantized_pair(m, [m.pick((1, 1), (3, 3))] * 2),
    "fuse_quantized_convs_enlarged": lambda m: _quantized_pair(m, m.pick([(1, 1), (3, 3)], [(1, 3), (3, 1)])),
    "fuse_quantized_clip": _clipped,
    "merge_quantized_matmuls": _quantized_columns,
    "merge_quantized_rows": _quantized_rows,
    "quantized_sum_before_view": _sum_of_views,
    "quantized_sum_of_concats": _sum_of_concats,
    "concat_of_quantized_sums": _concat_of_sums,
    "concat_of_depthwise": _joint_depthwise,
    "fuse_grouped_convs": _grouped_pair,
}


def values_of(dag: Dag, random: np.random.Generator, integers: bool) -> dict[str, np.ndarray]:
    """Arrays for every leaf. Variances must be positive, so all constants are."""
    made: dict[str, np.ndarray] = {}
    for node in postorder(dag.outputs):
        if node.kind in ("input", "weight"):
            made[str(node["name"])] = _value(node, random, integers)
    return made


def _value(node: Node, random: np.random.Generator, integers: bool) -> np.ndarray:
    if integers:
        return random.integers(-8, 9, node.shape).astype("float64")
    return random.uniform(0.1, 1, node.shape) if node.constant else random.standard_normal(node.shape)


def check(dag: Dag, other: Dag, random: np.random.Generator, integers: bool = False) -> None:
    values = values_of(dag, random, integers)
    for a, b in zip(run(dag, values), run(other, values), strict=True):
        assert a.shape == b.shape
        if integers:
            np.testing.assert_array_equal(a, b)
        else:
            np.testing.assert_allclose(a, b, rtol=TOLERANCE, atol=TOLERANCE)


def test_every_rule_has_a_source() -> None:
    assert set(SOURCES) == {r.name for r in ALL_RULES}


@pytest.mark.parametrize("name", SOURCES)
def test_rule_keeps_the_outputs(name: str) -> None:
    (rule,) = rules(name)
    fired = 0
    for seed in range(12):
        maker = Maker(seed)
        dag = maker.dag(*SOURCES[name](maker))
        for site in Matcher((rule,)).sites(dag):
            fired += 1
            other = replace(dag, site.target)
            assert all(a.type == b.type for a, b in zip(dag.outputs, other.outputs, strict=True))
            check(dag, other, np.random.default_rng(seed))
    assert fired >= 6


@pytest.mark.parametrize("name", [r.name for r in integer_rules()])
def test_integer_rule_is_exact(name: str) -> None:
    (rule,) = rules(name)
    for seed in range(8):
        maker = Maker(seed)
        dag = maker.dag(*SOURCES[name](maker))
        for site in Matcher((rule,)).sites(dag):
            check(dag, replace(dag, site.target), np.random.default_rng(seed), integers=True)


@pytest.mark.parametrize("rule", ALL_RULES, ids=lambda r: r.name)
def test_rule_is_documented(rule) -> None:
    assert rule.before and rule.after and rule.before != rule.after


@pytest.mark.parametrize("name", [r.name for r in ALL_RULES if r.folds_weights])
def test_folding_rules_stay_out_of_training_graphs(name: str) -> None:
    (rule,) = rules(name)
    for seed in range(6):
        maker = Maker(seed)
        maker.weight = lambda *shape, m=maker: m.leaf(shape)  # type: ignore[method-assign]
        dag = maker.dag(*SOURCES[name](maker))
        assert not Matcher((rule,)).sites(dag)


def test_identity_of_figure_4b_needs_the_centre_and_same_padding() -> None:
    maker = Maker(0)
    (rule,) = rules("fuse_conv_add")
    x = maker.image(size=6)
    shrunk = maker.conv(x, 3, padding=(0, 0, 0, 0))
    assert not Matcher((rule,)).sites(maker.dag(maker.pool.make("add", shrunk, maker.leaf(shrunk.shape))))
    strided = maker.conv(x, 3, strides=(2, 2))
    assert not Matcher((rule,)).sites(maker.dag(maker.pool.make("add", strided, maker.leaf(strided.shape))))


def test_sums_of_concats_come_apart_also_where_one_concat_is_written_in_place() -> None:
    maker = Maker(0)
    x = maker.image()
    made, read = (
        maker.concat(*(f(maker.leaf(x.shape)) for _ in range(2)))
        for f in (lambda ref: maker.pool.make("relu", ref), lambda ref: ref)
    )
    dag = maker.dag(_quantized_sum(maker, made, read, same=True))
    (written,) = Matcher(rules("exclusive_concat")).sites(dag)
    dag = replace(dag, written.target)
    assert [n.get("in_place") for n in dag.nodes if n.kind == "concat"].count(True) == 1
    (site,) = Matcher(rules("quantized_sum_of_concats")).sites(dag)
    check(dag, replace(dag, site.target), np.random.default_rng(0), integers=True)


def test_merging_products_refuses_a_cycle() -> None:
    """The second product's right side depends on the first product."""
    maker = Maker(0)
    x, a = maker.leaf((3, 3)), maker.leaf((3, 3))
    first = maker.matmul(x, a)
    second = maker.matmul(x, maker.pool.make("tanh", first))
    assert not Matcher(rules("merge_matmuls")).sites(maker.dag(second))
    rows = maker.matmul(maker.pool.make("tanh", first), a)
    assert not Matcher(rules("merge_matmul_rows")).sites(maker.dag(rows))


def test_int8_convolutions_merge_exactly() -> None:
    pool = Pool()
    random = np.random.default_rng(3)
    x = pool.input("x", (1, 6, 6, 3), "int8")
    attrs = {"strides": (1, 1), "dilation": (1, 1), "groups": 1, "layout": "NHWC", "act": ""}
    a = pool.make("conv2d", x, pool.weight("a", (4, 3, 1, 1), "int8"), padding=(0, 0, 0, 0), **attrs)
    b = pool.make("conv2d", x, pool.weight("b", (5, 3, 3, 3), "int8"), padding=(1, 1, 1, 1), **attrs)
    dag = Dag(pool, (x,), (a, b))
    shapes = {"x": (1, 6, 6, 3), "a": (4, 3, 1, 1), "b": (5, 3, 3, 3)}
    values = {n: random.integers(-128, 128, s).astype("int8") for n, s in shapes.items()}
    sites = Matcher(rules("fuse_convs_enlarged")).sites(dag)
    assert len(sites) == 1
    merged = replace(dag, sites[0].target)
    for old, new in zip(run(dag, values), run(merged, values), strict=True):
        assert old.dtype == new.dtype == np.int32
        np.testing.assert_array_equal(old, new)
