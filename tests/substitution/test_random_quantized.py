"""Thousands of random applications of exact rules to random quantized graphs change no bit."""

from __future__ import annotations

from itertools import combinations, product

import numpy as np

from tvm_cascade.substitution.dag import Dag, Pool, Ref, postorder, replace
from tvm_cascade.substitution.evaluate import run
from tvm_cascade.substitution.pattern import Matcher
from tvm_cascade.substitution.rules import integer_rules
from tvm_cascade.substitution.rules_quantized import quantized_sum

APPLICATIONS = 50  # per graph
_QUANTUM = (0.5, -3)  # of every activation, so that rules find partners
_END = {"y_quantum": _QUANTUM, "range": (-128, 127), "dtype": "int8"}


class Quantized:
    """A random network of stored values: convolutions, sums, concatenations and moves, fully connected layers behind."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.pool = Pool()
        self.leaves: dict[str, np.ndarray] = {}

    def pick(self, *options):
        return options[int(self.random.integers(len(options)))]

    def weight(self, shape: tuple[int, ...], dtype: str) -> Ref:
        name = f"w{len(self.leaves)}"
        small = 0.05 * self.random.integers(1, 5, shape) if dtype == "float32" else self.random.integers(-9, 10, shape)
        self.leaves[name] = small.astype("float64" if dtype == "float32" else dtype)
        return self.pool.weight(name, shape, dtype)

    def per_output(self, out: int) -> list[Ref]:
        kinds = ("float32", "int32", "float32") if self.pick(True, False) else ("float32",)
        return [self.weight((out,), k) for k in kinds]

    def conv(self, x: Ref, depthwise: bool) -> Ref:
        c, k = x.shape[3], self.pick(1, 3)
        groups = c if depthwise else 1
        out = c * self.pick(1, 2) if depthwise else self.pick(2, 3, 4)
        attrs = {"strides": (1, 1), "dilation": (1, 1), "padding": (k // 2,) * 4, "groups": groups, "layout": "NHWC"}
        operands = [self.weight((out, c // groups, k, k), "int8"), *self.per_output(out)]
        quanta = {"x_quantum": _QUANTUM, "w_zero": 0, "act": self.pick("", "relu"), **_END}
        return self.pool.make("qconv2d", x, *operands, **attrs, **quanta)

    def step(self, values: list[Ref]) -> Ref:
        x, p = self.pick(*values), self.pool
        like = self.pick(*[v for v in values if v.shape == x.shape])
        kind = self.pick("conv", "conv", "depthwise", "sum", "sum", "concat", "split", "clip", "views", "pool")
        if kind in ("conv", "depthwise"):
            return self.conv(x, kind == "depthwise")
        if kind == "sum":
            return quantized_sum(p, x, _QUANTUM, like, self.pick(_QUANTUM, (0.25, 2)), act="", **_END)
        if kind == "concat":
            return p.make("concat", x, like, axis=3) if x.shape[3] < 7 else x
        if kind == "split" and x.shape[3] > 1:
            parts = p.make("split", x, axis=3, sizes=(1, x.shape[3] - 1)).node
            return p.make("concat", *(self.conv(Ref(parts, i), True) for i in (0, 1)), axis=3)
        if kind == "views":
            a, b = (p.make("transpose", v, perm=(0, 2, 1, 3)) for v in (x, like))
            return p.make("transpose", quantized_sum(p, a, _QUANTUM, b, _QUANTUM, act="", **_END), perm=(0, 2, 1, 3))
        if kind == "pool":
            geometry = {"kernel": (3, 3), "strides": (1, 1), "padding": (1, 1, 1, 1), "ceil": False}
            return p.make("max_pool2d", x, layout="NHWC", **geometry)
        return p.make("clip", x, low=-100.0, high=float(self.pick(20, 90)))

    def dag(self, steps: int = 9) -> Dag:
        x = self.pool.input("x", (1, 4, 4, 2), "int8")
        self.leaves["x"] = self.random.integers(-128, 128, (1, 4, 4, 2)).astype("int8")
        values = [x]
        for _ in range(steps):
            values.append(self.step(values[-4:]))
        flat = self.pool.make("reshape", values[-1], shape=(1, int(np.prod(values[-1].shape))))
        attrs = {"x_quantum": _QUANTUM, "w_zero": 0, "act": "", **_END}
        heads = [
            self.pool.make(
                "qmatmul", flat, self.weight((flat.shape[1], n), "int8"), self.weight((n,), "float32"), **attrs
            )
            for n in (2, 3)
        ]
        return Dag(self.pool, (x,), (values[-2], *heads))


def walk(seed: int, used: set[str]) -> int:
    made = Quantized(seed)
    dag = made.dag()
    values = {n["name"]: made.leaves[str(n["name"])] for n in postorder(dag.outputs) if n.kind in ("input", "weight")}
    expected = run(dag, values)
    matcher = Matcher(integer_rules())
    applied = 0
    for _ in range(APPLICATIONS):
        sites = matcher.sites(dag)
        names = sorted({s.rule.name for s in sites})
        if not names or len(dag.nodes) > 60:
            break
        name = made.pick(*names)  # rules first, so that rare ones are not drowned
        dag = replace(dag, made.pick(*[s for s in sites if s.rule.name == name]).target)
        used.add(name)
        applied += 1
    for a, b in zip(expected, run(dag, values), strict=True):
        assert a.dtype == b.dtype == np.int8
        np.testing.assert_array_equal(a, b)
    return applied


def test_random_applications_change_no_bit() -> None:
    used: set[str] = set()
    assert sum(walk(seed, used) for seed in range(100)) > 2000
    wanted = {"concat_of_depthwise", "depthwise_of_concat", "fuse_grouped_convs", "concat_of_quantized_sums"}
    wanted |= {r.name for r in integer_rules() if "quantized" in r.name} - {"merge_quantized_rows"}
    assert wanted <= used


def test_a_rule_fits_where_it_has_a_target() -> None:
    """Pairs are told from one another without building what replaces them: no operator appears in the pool."""
    rules = [r for r in integer_rules() if r.fits is not None and r.alike is not None]
    fitting = others = 0
    for seed in range(60):
        made = Quantized(seed)
        dag = made.dag()
        nodes = [n for n in postorder(dag.outputs) if not n.constant]
        for rule, (a, b) in product(rules, combinations(nodes, 2)):
            if all(n.kind in root.kinds for n, root in zip((a, b), rule.roots, strict=True)) and a.kind == b.kind:
                fits, size = rule.alike(a, b) and rule.fits(a=a, b=b), len(made.pool._nodes)  # type: ignore[misc]
                Matcher((rule,)).sites(dag)
                assert len(made.pool._nodes) == size
                assert fits == bool(rule.target(made.pool, a=a, b=b))
                fitting, others = fitting + fits, others + (not fits)
    assert fitting > 20 and others > 20
