"""TASO's file of substitutions: read, verified, and applied, on files of the test's own and on the public one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tvm_cascade import api
from tvm_cascade.errors import LoadError
from tvm_cascade.substitution.dag import Dag, Pool, replace
from tvm_cascade.substitution.evaluate import run
from tvm_cascade.substitution.pattern import Matcher
from tvm_cascade.substitution.rules_taso import build, load_taso_rules, small_cases
from tvm_cascade.substitution.taso_file import TasoRule, read_taso_rules
from tvm_cascade.testing.zoo.resnet import resnet_module

RELU, CONCAT, SPLIT, ADD, MUL, MATMUL = 8, 12, 13, 16, 17, 18
X, Y, Z = -1, -2, -3
RANK, AXIS = 10, 11
Given = tuple[int, tuple[tuple[int, int], ...], dict[int, int]]  # kind, operands, parameters


def number(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def record(*fields: tuple[int, int | bytes]) -> bytes:
    """A protocol buffer of these fields."""
    return b"".join(
        number(name << 3) + number(value)
        if isinstance(value, int)
        else number(name << 3 | 2) + number(len(value)) + value
        for name, value in fields
    )


def written(path: Path, *rules: tuple[list[Given], list[Given], list[tuple[int, int, int, int]]]) -> Path:
    """A file of rules: source, target, and outputs (operator of the source, of the target, port, port)."""

    def operator(given: Given) -> bytes:
        kind, inputs, parameters = given
        read = [(2, record((1, o), (2, port))) for o, port in inputs]
        return record((1, kind), *read, *((3, record((1, k), (2, v))) for k, v in parameters.items()))

    data = [
        (1, record(*((1, operator(o)) for o in source), *((2, operator(o)) for o in target),
                   *((3, record((1, a), (2, b), (3, p), (4, q))) for a, b, p, q in outputs)))
        for source, target, outputs in rules
    ]  # fmt: skip
    path.write_bytes(record(*data))
    return path


def binary(kind: int, a: int, b: int) -> Given:
    return kind, ((a, 0), (b, 0)), {}


DISTRIBUTE = (
    [binary(ADD, X, Y), binary(MUL, Z, 0)],
    [binary(MUL, X, Z), binary(MUL, Y, Z), binary(ADD, 0, 1)],
    [(1, 2, 0, 0)],
)
FALSE = ([binary(ADD, X, Y), binary(MUL, Z, 0)], [binary(MUL, X, Z), binary(ADD, Y, 0)], [(1, 1, 0, 0)])
MERGE = (
    [binary(MATMUL, X, Y), binary(MATMUL, X, Z)],
    [(CONCAT, ((Y, 0), (Z, 0)), {RANK: 2, AXIS: 1}), binary(MATMUL, X, 0), (SPLIT, ((1, 0),), {AXIS: 1})],
    [(0, 2, 0, 0), (1, 2, 0, 1)],
)
APART = (
    [(RELU, ((X, 0),), {}), (RELU, ((Y, 0),), {})],
    [(RELU, ((Y, 0),), {}), (RELU, ((X, 0),), {})],
    [(0, 1, 0, 0), (1, 0, 0, 0)],
)


def test_rules_that_hold_are_used_and_others_are_refused_with_the_reason(tmp_path: Path):
    found = load_taso_rules(written(tmp_path / "r.pb", DISTRIBUTE, FALSE, MERGE, APART))
    assert found.names == ("taso_0", "taso_2")
    assert "differ on tensors" in found.refused["taso_1"] and "nothing in common" in found.refused["taso_3"]


def test_both_orders_of_a_sum_and_of_a_product_are_matched(tmp_path: Path):
    found = load_taso_rules(written(tmp_path / "r.pb", DISTRIBUTE))
    pool = Pool()
    x, y, z = (pool.input(n, (2, 3)) for n in "xyz")
    for total in (pool.make("mul", pool.make("add", x, y), z), pool.make("mul", z, pool.make("add", y, x))):
        sites = Matcher(found.rules).sites(Dag(pool, (x, y, z), (total,)))
        assert {new.node.kind for site in sites for new in site.target.values()} == {"add"}
    broadcast = pool.make("mul", pool.make("add", x, y), pool.input("w", (3,)))
    assert not Matcher(found.rules).sites(Dag(pool, (x, y), (broadcast,)))  # TASO's operands have one shape


def test_products_of_one_input_are_merged_and_split_where_they_were_joined(tmp_path: Path):
    found = load_taso_rules(written(tmp_path / "r.pb", MERGE))
    pool = Pool()
    x = pool.input("x", (4, 3))
    a, b = (pool.make("matmul", x, pool.weight(n, (3, width)), act="") for n, width in (("v", 2), ("w", 5)))
    dag = Dag(pool, (x,), (a, b))
    merged = replace(dag, Matcher(found.rules).sites(dag)[0].target)
    assert [n.kind for n in merged.nodes] == ["matmul", "split"] and merged.outputs[0].node["sizes"] in ((2, 5), (5, 2))
    random = np.random.default_rng(0)
    values = {n: random.standard_normal(s) for n, s in (("x", (4, 3)), ("v", (3, 2)), ("w", (3, 5)))}
    for got, expected in zip(run(merged, values), run(dag, values), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-12)


def test_axes_mean_what_they_say_for_as_many_axes_alone(tmp_path: Path):
    found = load_taso_rules(written(tmp_path / "r.pb", MERGE))
    pool = Pool()
    x = pool.input("x", (2, 4, 3))  # a batch of matrices: axis 1 of the products is not that of the weights
    products = tuple(pool.make("matmul", x, pool.weight(n, (3, 2)), act="") for n in "vw")
    assert not Matcher(found.rules).sites(Dag(pool, (x,), products))


def test_a_split_of_nothing_that_was_joined_matches_nothing(tmp_path: Path):
    joined = (CONCAT, ((0, 0), (0, 1)), {RANK: 2, AXIS: 1})
    found = load_taso_rules(
        written(tmp_path / "r.pb", ([(SPLIT, ((X, 0),), {AXIS: 1}), joined], [binary(ADD, X, X)], [(1, 0, 0, 0)]))
    )
    assert found.names == () and "no small shapes" in found.refused["taso_0"]


@pytest.mark.parametrize("data", [b"", b"\x0a", b"\x0a\xff", b"not a protocol buffer", b"\x00" * 40, b"\x80" * 30,
                                  record((1, record((1, record((1, 99)))))), record((1, b""))])  # fmt: skip
def test_other_files_are_refused_in_one_line(tmp_path: Path, data: bytes):
    path = tmp_path / "x.pb"
    path.write_bytes(data)
    with pytest.raises(LoadError, match="no file of TASO's substitutions"):
        read_taso_rules(path)
    with pytest.raises(LoadError, match="No such file"):
        read_taso_rules(tmp_path / "none.pb")


def test_cyclic_rules_and_missing_outputs_are_refused(tmp_path: Path):
    cyclic = ([binary(ADD, X, 1), binary(ADD, 0, Y)], [binary(ADD, X, Y)], [(1, 0, 0, 0)])
    lacking = ([binary(ADD, X, Y)], [binary(ADD, X, Y)], [(0, 7, 0, 0)])
    for rule, why in ((cyclic, "before it is made"), (lacking, "that it lacks")):
        with pytest.raises(LoadError, match=why):
            read_taso_rules(written(tmp_path / "x.pb", rule))


def applied(rule: TasoRule, matcher: Matcher) -> int:
    """Every site that `matcher` finds in the rule's own source computes the same; their number."""
    sites = 0
    for pool, values in small_cases(rule):
        made = build(pool, rule.source, values)
        dag = Dag(pool, tuple(values.values()), tuple(made[a][p] for (a, p), _ in rule.outputs))
        random = np.random.default_rng(sites)
        arrays = {f"v{-v}": random.standard_normal(ref.shape) for v, ref in values.items()}
        expected = run(dag, arrays)
        for site in matcher.sites(dag):
            for got, want in zip(run(replace(dag, site.target), arrays), expected, strict=True):
                np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-9)
            sites += 1
    return sites


def test_rules_of_the_public_file(test_data: Path):
    path = test_data / "cases" / "taso" / "graph_subst.pb"
    found = load_taso_rules(path)
    assert len(found.names) == 120 and len(found.refused) == 13
    matcher = Matcher(found.rules)
    every = read_taso_rules(path)
    assert sum(applied(every[int(name.removeprefix("taso_"))], matcher) > 0 for name in found.names) == 120


def test_optimize_searches_rules_of_a_file_and_says_what_became_of_them(tmp_path: Path):
    path = written(tmp_path / "r.pb", DISTRIBUTE, FALSE)
    mod = resnet_module(8, 8)
    made, text = api.optimize(mod, target="cuda", rules=path)
    assert (
        made["rules"]["verified"] == 1 and list(made["rules"]["refused"]) == ["taso_1"] and made["rules"]["taken"] == []
    )
    assert "1 of 2 hold on random tensors" in text and "differ on tensors" in text
    plain, without = api.optimize(mod, target="cuda")
    assert "rules" not in plain and "of the file" not in without and plain["cost_after"] == made["cost_after"]
