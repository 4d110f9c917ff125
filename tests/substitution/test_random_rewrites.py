"""Thousands of random applications of random rules to random graphs keep what the graphs compute."""

from __future__ import annotations

from dataclasses import replace as changed

import numpy as np
import pytest

from tvm_cascade.substitution.costs import TVM, figures, peak_bytes
from tvm_cascade.substitution.dag import Dag, Pool, Ref, postorder, replace
from tvm_cascade.substitution.evaluate import run
from tvm_cascade.substitution.pattern import Matcher
from tvm_cascade.substitution.rules import ALL_RULES, integer_rules

TOLERANCE = 1e-7  # relative to the largest value, float64: many reassociations in a row
APPLICATIONS = 60  # per graph


class Random:
    """A random network: images in one layout, branches that meet again, a few products at the end."""

    def __init__(self, seed: int, integers: bool = False) -> None:
        self.random = np.random.default_rng(seed)
        self.pool = Pool()
        self.layout = str(self.random.choice(["NCHW", "NHWC"]))
        self.axis = 1 if self.layout == "NCHW" else 3
        self.integers = integers
        self.leaves = 0

    def pick(self, *options):
        return options[int(self.random.integers(len(options)))]

    def weight(self, *shape: int) -> Ref:
        self.leaves += 1
        return self.pool.weight(f"w{self.leaves}", shape)

    def conv(self, x: Ref, out: int) -> Ref:
        channels = x.shape[self.axis]
        kh, kw = self.pick((1, 1), (3, 3), (1, 3), (3, 1))
        groups = self.pick(1, 1, 1, channels, 2 if channels % 2 == 0 else 1)
        out = -(-out // groups) * groups
        pad = ((kh - 1) // 2, (kw - 1) // 2) * 2
        operands = [x, self.weight(out, channels // groups, kh, kw)] + ([self.weight(out)] if self.pick(0, 1) else [])
        attrs = {"strides": (1, 1), "padding": pad, "dilation": (1, 1), "groups": groups, "layout": self.layout}
        return self.pool.make("conv2d", *operands, act=self.pick("", "", "relu"), **attrs)

    def step(self, values: list[Ref]) -> Ref:
        x = self.pick(*values)
        like = [v for v in values if v.shape == x.shape]
        kind = self.pick("conv", "conv", "unary", "binary", "concat", "split", "channel", "norm", "pool", "views")
        p = self.pool
        if kind == "conv":
            return self.conv(x, self.pick(2, 4))
        if kind == "unary":
            return p.make(self.pick("relu", "relu6") if self.integers else self.pick("relu", "tanh", "sigmoid"), x)
        if kind == "binary":
            return p.make(self.pick("add", "sub", "mul") if len(values) < 8 else "add", x, self.pick(*like))
        if kind == "concat":
            return p.make("concat", x, self.pick(*like), axis=self.axis)
        if kind == "split" and x.shape[self.axis] > 1:
            sizes = (1, x.shape[self.axis] - 1)
            parts = p.make("split", x, axis=self.axis, sizes=sizes).node
            return p.make("concat", *[p.make("relu", Ref(parts, i)) for i in (0, 1)], axis=self.axis)
        if kind == "channel":
            c = x.shape[self.axis]
            return p.make(self.pick("add", "mul"), x, self.weight(*((c, 1, 1) if self.axis == 1 else (c,))))
        if kind == "norm" and not self.integers:
            stats = [self.weight(x.shape[self.axis]) for _ in range(4)]
            return p.make("batch_norm", x, *stats, axis=self.axis, eps=1e-3)
        if kind == "pool":
            attrs = {"kernel": (3, 3), "strides": (1, 1), "padding": (1, 1, 1, 1), "ceil": False}
            return p.make("max_pool2d", x, layout=self.layout, **attrs)
        if kind == "views":
            there, back = ((0, 2, 3, 1), (0, 3, 1, 2))
            return p.make("transpose", p.make("relu", p.make("transpose", x, perm=there)), perm=back)
        return p.make("relu", x)

    def dag(self, steps: int = 9) -> Dag:
        shape = (1, 2, 4, 4) if self.layout == "NCHW" else (1, 4, 4, 2)
        x = self.pool.input("x", shape)
        values = [x]
        for _ in range(steps):
            values.append(self.step(values[-4:]))
        flat = self.pool.make("reshape", values[-1], shape=(1, int(np.prod(values[-1].shape))))
        heads = [self.pool.make("matmul", flat, self.weight(flat.shape[1], n), act="") for n in (2, 3)]
        heads[0] = self.pool.make("add", heads[0], self.weight(2))
        return Dag(self.pool, (x,), (values[-2], *heads))

    def siblings(self, count: int = 6) -> Dag:
        """Convolutions and products that read the same, and one that computes weights of another."""
        x = self.pool.input("x", (1, 4, 4, 4))
        flat = self.pool.make("reshape", x, shape=(8, 8))
        products = [self.pool.make("matmul", flat, self.weight(8, 8), act="") for _ in range(2)]
        square = self.pool.make("matmul", flat, self.pool.make("relu", products[-1]), act="")
        return Dag(self.pool, (x,), (*[self.conv(x, self.pick(2, 4)) for _ in range(count)], *products, square))

    def values(self, dag: Dag) -> dict[str, np.ndarray]:
        made = {}
        for node in postorder(dag.outputs):
            if node.kind in ("input", "weight"):
                if self.integers:
                    made[str(node["name"])] = self.random.integers(-2, 3, node.shape).astype("float64")
                else:
                    made[str(node["name"])] = self.random.uniform(0.1, 0.6, node.shape)
        return made


def walk(seed: int, integers: bool) -> int:
    made = Random(seed, integers)
    dag = made.dag()
    values = made.values(dag)
    expected = run(dag, values)
    matcher = Matcher(integer_rules() if integers else ALL_RULES)
    applied = 0
    for k in range(APPLICATIONS):
        sites = [s for s in matcher.sites(dag)]
        if not sites:
            break
        names = sorted({s.rule.name for s in sites})
        name = names[int(made.random.integers(len(names)))]  # rules first, so that rare ones are not drowned
        chosen = [s for s in sites if s.rule.name == name]
        dag = replace(dag, chosen[int(made.random.integers(len(chosen)))].target)
        applied += 1
        if len(dag.nodes) > 60:
            break
        if k % 6 == 5:
            check(expected, run(dag, values), integers)
    check(expected, run(dag, values), integers)
    assert sum(figures(n, TVM).launches for n in dag.nodes) <= len(dag.nodes) and peak_bytes(dag) > 0
    return applied


def check(expected, found, integers: bool) -> None:
    for a, b in zip(expected, found, strict=True):
        assert a.shape == b.shape
        if integers and np.abs(a).max() < 2**52:
            np.testing.assert_array_equal(a, b)
        elif not integers:
            np.testing.assert_allclose(a, b, rtol=0, atol=TOLERANCE * max(1.0, float(np.abs(a).max())))


@pytest.mark.parametrize("integers", [False, True])
def test_random_applications_keep_the_outputs(integers: bool) -> None:
    applied = sum(walk(seed, integers) for seed in range(60))
    assert applied > 2000


@pytest.mark.parametrize("integers", [False, True])
def test_pairs_that_signatures_tell_apart_are_no_sites(integers: bool) -> None:
    """The sites are those of rules that look at every pair of operators and build what replaces it."""
    rules = integer_rules() if integers else ALL_RULES
    slow = tuple(changed(r, alike=None, fits=None) for r in rules)
    spared = found = 0
    for seed in range(40):
        made = Random(seed, integers)
        dag, quick, plain = made.siblings(), Matcher(rules), Matcher(slow)
        for _ in range(6):
            sites = [(s.rule.name, s.nodes) for s in quick.sites(dag)]
            assert sites == [(s.rule.name, s.nodes) for s in plain.sites(dag)]
            found += sum(len(nodes) > 1 for _, nodes in sites)
            if sites:
                dag = replace(dag, made.pick(*quick.sites(dag)).target)
        spared += len(plain._pairs) - len(quick._pairs)
    assert spared > 20 and found > 20
