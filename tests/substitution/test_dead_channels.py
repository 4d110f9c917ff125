"""Networks without their dead channels compute the same in numpy, on random graphs and rule by rule."""

from __future__ import annotations

import numpy as np
import pytest

from tvm_cascade.operators import table
from tvm_cascade.operators.fixed_point import activation_range, rescale, rescale_even
from tvm_cascade.substitution.dag import Dag, Node, Pool, Ref, postorder
from tvm_cascade.substitution.dead_channels import Shrunk, has_dead_channels, without_dead_channels
from tvm_cascade.substitution.evaluate import run
from tvm_cascade.substitution.integer_arithmetic import Arithmetic


class Table(Arithmetic):
    """The rounding of the operator table, by which numpy runs graphs: the operator itself, on channels of one pixel."""

    def computes(self, node: Node, multipliers: np.ndarray, bound: int) -> bool:
        return True

    def stored(self, node: Node, sums: np.ndarray, multipliers: np.ndarray) -> np.ndarray:
        scale, zero = node["y_quantum"]
        real = sums * multipliers * scale
        if node["act"]:
            low, high = (0.0, None) if node["act"] == "relu" else node["act"]
            real = np.clip(real, low, high)
        return np.clip(np.rint(real / scale) + zero, *node["range"]).astype("int64")

    def added(self, node: Node, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return table.evaluate("qadd", dict(node.attrs), [x, y])[0].astype("int64")


TABLE = Table(False)


class Net:
    """A quantized network with filters that are all zero, and inputs that no filter reads."""

    def __init__(self, seed: int = 0, dead: float = 0.4, unread: float = 0.2) -> None:
        self.random, self.dead, self.unread = np.random.default_rng(seed), dead, unread
        self.pool, self.leaves = Pool(), dict[str, np.ndarray]()

    def pick(self, *options):
        return options[int(self.random.integers(len(options)))]

    def quantum(self) -> tuple[float, int]:
        return self.pick(0.5, 0.25), int(self.pick(-3, 0, 5, -128))

    def weight(self, value: np.ndarray) -> Ref:
        name = f"w{len(self.leaves)}"
        self.leaves[name] = value
        return self.pool.weight(name, value.shape, str(value.dtype))

    def input(self, *shape: int) -> Ref:
        self.leaves["x"] = self.random.integers(-128, 128, shape).astype("int8")
        return self.pool.input("x", shape, "int8")

    def operands(self, weights: np.ndarray, outputs: int, inputs: int, zero: int, bias: bool) -> list[Ref]:
        """Weights of axes `outputs` and `inputs` with planted channels, scales and perhaps biases."""
        for axis, share in ((outputs, self.dead), (inputs, self.unread)):
            np.moveaxis(weights, axis, 0)[self.random.random(weights.shape[axis]) < share] = zero
        n = weights.shape[outputs]
        scales = (0.05 * self.random.integers(1, 5, n)).astype("float32")
        made = [self.weight(weights), self.weight(scales)]
        biases = self.random.integers(-300, 300, n).astype("int32")
        return [*made, self.weight(biases), self.weight(scales)] if bias else made

    def end(self, x_quantum: tuple[float, int], zero: int, act: object = "") -> dict[str, object]:
        y = self.quantum()
        return {
            "x_quantum": x_quantum,
            "w_zero": zero,
            "act": act,
            "y_quantum": y,
            "range": (-128, 127),
            "dtype": "int8",
        }

    def conv(self, x: Ref, out: int, k: int = 1, pad: int = 0, depthwise: bool = False, **more) -> Ref:
        """A convolution that reads its input in a quantization of its own, as if it were requantized."""
        c, zero = x.shape[3], int(self.pick(0, 0, 2))
        weights = self.random.integers(-9, 10, (c * out if depthwise else out, 1 if depthwise else c, k, k)).astype(
            "int8"
        )
        operands = self.operands(weights, 0, 1, zero, more.pop("bias", bool(self.pick(True, True, False))))
        stride = more.pop("stride", 1)
        geometry = {"strides": (stride, stride), "dilation": (1, 1), "padding": (pad,) * 4}
        attrs = {**self.end(more.pop("x_quantum", self.quantum()), zero, self.pick("", "relu", (0.0, 6.0))), **more}
        groups = c if depthwise else 1
        return self.pool.make("qconv2d", x, *operands, groups=groups, layout="NHWC", **geometry, **attrs)

    def dense(self, x: Ref, out: int) -> Ref:
        zero = int(self.pick(0, 2))
        weights = self.random.integers(-9, 10, (x.shape[1], out)).astype("int8")
        return self.pool.make("qmatmul", x, *self.operands(weights, 1, 0, zero, True), **self.end(self.quantum(), zero))

    def sum(self, a: Ref, b: Ref) -> Ref:
        quanta = (self.quantum(), self.quantum())
        end = {"act": "", "y_quantum": self.quantum(), "range": (-128, 127), "dtype": "int8"}
        return self.pool.make("qadd", a, b, quanta=quanta, **end)

    def pool2d(self, x: Ref, kind: str, pad: int) -> Ref:
        counted = {"count_pad": bool(self.pick(True, False))} if kind == "avg_pool2d" else {}
        geometry = {"kernel": (3, 3), "strides": (1, 1), "padding": (pad,) * 4, "ceil": False, "layout": "NHWC"}
        return self.pool.make(kind, x, **geometry, **counted)

    def step(self, values: list[Ref]) -> Ref:
        x, p = self.pick(*values), self.pool
        like = self.pick(*[v for v in values if v.shape == x.shape])
        c = x.shape[3]
        kind = self.pick("conv", "conv", "conv", "depthwise", "depthwise", "sum", "concat", "rows", "split", "clip", "views",
                         "pool", "pad", "relu")  # fmt: skip
        if kind == "conv":
            k = int(self.pick(1, 1, 3))
            return self.conv(x, int(self.pick(2, 3, 5)), k, k // 2)
        if kind == "depthwise":
            return self.conv(x, int(self.pick(1, 1, 2)), 3, 1, True) if c < 6 else x
        if kind == "sum":
            return self.sum(x, like)
        if kind == "concat":
            return p.make("concat", x, like, axis=3) if c < 5 else x
        if kind == "rows" and x.shape[1] % 2 == 0:
            parts = p.make("split", x, axis=1, sizes=(x.shape[1] // 2,) * 2).node
            return p.make("concat", Ref(parts, 1), Ref(parts, 0), axis=1)
        if kind == "split" and c > 1:
            parts = p.make("split", x, axis=3, sizes=(1, c - 1)).node
            return p.make("concat", *(self.conv(Ref(parts, i), 1, 3, 1, True) for i in (0, 1)), axis=3)
        if kind == "views":
            turned = p.make("transpose", x, perm=(0, 2, 1, 3))
            n, h, w, _ = turned.shape
            return p.make("reshape", p.make("reshape", turned, shape=(n, h, w * c)), shape=(n, w, h, c))
        if kind == "pool":
            return self.pool2d(x, self.pick("max_pool2d", "avg_pool2d"), 1)
        if kind == "pad":
            wide = p.make("pad", x, widths=((0, 0), (1, 1), (1, 1), (0, 0)))
            return self.conv(wide, int(self.pick(2, 4)), 3, 0)
        if kind == "relu":
            return p.make("relu", x)
        return p.make("clip", x, low=-100.0, high=float(self.pick(20, 90)))

    def dag(self, steps: int = 9) -> Dag:
        x = self.input(1, 4, 4, 3)
        values = [self.conv(x, 4)]
        for _ in range(steps):
            values.append(self.step(values[-3:]))
        last = values[-1]
        flat = self.pool.make("reshape", last, shape=(1, int(np.prod(last.shape))))
        heads = (self.dense(self.dense(flat, 6), 3), self.conv(values[-2], 2))
        return Dag(self.pool, (x,), heads)


def shrunk(net: Net, dag: Dag) -> Shrunk:
    """`dag` without dead channels, after both are found to compute the same on random inputs."""
    done = without_dead_channels(dag, net.leaves, TABLE)
    for _ in range(3):
        x = net.random.integers(-128, 128, dag.inputs[0].shape).astype("int8")
        before, after = run(dag, {**net.leaves, "x": x}), run(done.dag, {**done.constants, "x": x})
        for a, b in zip(before, after, strict=True):
            assert (a.dtype, a.shape) == (b.dtype, b.shape)
            np.testing.assert_array_equal(a, b)
    return done


@pytest.mark.parametrize("share", (0.0, 0.2, 0.5, 1.0))
def test_random_networks_compute_the_same(share: float) -> None:
    removed = kinds = 0
    for seed in range(60):
        net = Net(seed, share, share / 2)
        dag = net.dag(int(net.pick(3, 6, 9)))
        done = shrunk(net, dag)
        removed += sum(layer.channels for layer in done.layers)
        kinds += len(done.layers)
        assert done.layers or done.dag is dag
    assert kinds > 0 and removed > 200 * share  # a few single weights are zero without being planted


def _kept(done: Shrunk, ref: Ref) -> int:
    return done.moved.get(ref, ref).shape[-1]


def _weights(net: Net, ref: Ref) -> np.ndarray:
    return net.leaves[str(ref.node.inputs[1].node["name"])]


def _biases(net: Net, ref: Ref) -> np.ndarray:
    return net.leaves[str(ref.node.inputs[3].node["name"])]


def _planted(net: Net, ref: Ref, filters: list[int]) -> None:
    """Let these filters of a convolution be zero, and no other."""
    weights = _weights(net, ref)
    weights[weights == ref.node["w_zero"]] += 1
    weights[filters] = ref.node["w_zero"]


def test_a_constant_goes_into_the_bias_of_a_convolution_without_padding() -> None:
    net = Net(1, 0, 0)
    x = net.input(1, 4, 4, 3)
    a = net.conv(x, 4)
    b = net.conv(a, 3, 3)
    _planted(net, a, [1, 2])
    _planted(net, b, [])
    done = shrunk(net, Dag(net.pool, (x,), (b,)))
    assert _kept(done, a) == 2
    assert [(layer.output, layer.channels, layer.of) for layer in done.layers] == [(a, 2, 4), (b, 0, 3)]


@pytest.mark.parametrize("equal", (True, False))
def test_a_padded_convolution_takes_only_constants_that_equal_its_zero_point(equal: bool) -> None:
    net = Net(2, 0, 0)
    x = net.input(1, 4, 4, 3)
    a = net.conv(x, 4, act="relu", y_quantum=(0.5, -7), bias=True)  # a negative bias gives -7
    _biases(net, a)[:] = -500
    _planted(net, a, [0])
    b = net.conv(a, 3, 3, 1, x_quantum=(0.5, -7 if equal else -8))
    _planted(net, b, [])
    done = shrunk(net, Dag(net.pool, (x,), (b,)))
    assert _kept(done, a) == (3 if equal else 4)


def test_a_bias_stays_within_32_bits() -> None:
    net = Net(3, 0, 0)
    x = net.input(1, 2, 2, 2)
    a = net.conv(x, 3, bias=True, act="", y_quantum=(0.5, 0))
    _planted(net, a, [1])
    _biases(net, a)[1] = 1 << 20  # a constant of 127
    b = net.conv(a, 2, bias=True, x_quantum=(0.5, 0))
    _planted(net, b, [])
    _biases(net, b)[:] = (1 << 31) - 1
    done = shrunk(net, Dag(net.pool, (x,), (b,)))
    assert _kept(done, a) == 3


def test_channels_that_nobody_reads_are_left_out_of_all_layers_before() -> None:
    net = Net(4, 0, 0)
    x = net.input(1, 4, 4, 3)
    a = net.conv(x, 4)
    b = net.conv(a, 1, 3, 1, depthwise=True)
    c = net.conv(b, 3)
    for ref in (a, b, c):
        _planted(net, ref, [])
    _weights(net, c)[:, [0, 3]] = c.node["w_zero"]
    done = shrunk(net, Dag(net.pool, (x,), (c,)))
    assert (_kept(done, a), _kept(done, b)) == (2, 2)
    assert done.moved[b].node["groups"] == 2


def test_both_operands_of_a_sum_lose_the_same_channels() -> None:
    net = Net(5, 0, 0)
    x = net.input(1, 4, 4, 3)
    a, b = net.conv(x, 4), net.conv(x, 4)
    _planted(net, a, [0, 1])
    _planted(net, b, [1, 2])
    total = net.sum(a, b)
    c = net.conv(total, 2)
    _planted(net, c, [])
    done = shrunk(net, Dag(net.pool, (x,), (c,)))
    assert [_kept(done, r) for r in (a, b, total)] == [3, 3, 3]


def test_a_depthwise_convolution_of_several_outputs_keeps_or_loses_them_together() -> None:
    net = Net(6, 0, 0)
    x = net.input(1, 4, 4, 3)
    a = net.conv(x, 3)
    b = net.conv(a, 2, 3, 1, depthwise=True)
    c = net.conv(b, 2)
    for ref in (a, b, c):
        _planted(net, ref, [])
    _weights(net, c)[:, [0, 2, 3]] = c.node["w_zero"]
    done = shrunk(net, Dag(net.pool, (x,), (c,)))
    assert (_kept(done, a), _kept(done, b)) == (2, 4)


def test_outputs_and_inputs_keep_their_channels_and_no_tensor_loses_all() -> None:
    net = Net(7, 1.0, 1.0)
    x = net.input(1, 4, 4, 3)
    a = net.conv(x, 4)
    b = net.conv(a, 5)
    done = shrunk(net, Dag(net.pool, (x,), (b,)))
    assert (_kept(done, a), _kept(done, b), done.dag.inputs) == (1, 5, (x,))


def test_opaque_operators_keep_all_channels_unless_they_say_that_channels_do_not_mix() -> None:
    for told, kept in (({}, 4), ({"channelwise": True}, 3), ({"channelwise": True, "moves": ()}, 2)):
        net = Net(8, 0, 0)
        x = net.input(1, 2, 2, 3)
        a = net.conv(x, 4)
        _planted(net, a, [1])
        b = net.pool.make("opaque", a, key=0, types=((a.shape, "int8"),), **told)
        c = net.conv(b, 2)
        _planted(net, c, [])
        _weights(net, c)[:, 0] = c.node["w_zero"]
        done = without_dead_channels(Dag(net.pool, (x,), (c,)), net.leaves, TABLE)
        assert _kept(done, a) == kept


def test_what_is_opaque_fills_constants_up_with_their_own_value_alone() -> None:
    for fill, kept in ((-7.0, 3), (0.0, 4)):
        net = Net(9, 0, 0)
        x = net.input(1, 2, 2, 3)
        a = net.conv(x, 4, act="relu", y_quantum=(0.5, -7), bias=True)
        _biases(net, a)[:] = -500
        _planted(net, a, [1])
        b = net.pool.make("opaque", a, key=0, types=(((1, 4, 4, 4), "int8"),), channelwise=True, moves=(fill,))
        c = net.conv(b, 2, 3)
        _planted(net, c, [])
        done = without_dead_channels(Dag(net.pool, (x,), (c,)), net.leaves, TABLE)
        assert _kept(done, a) == kept


def test_the_saved_bytes_are_those_of_weights_and_biases() -> None:
    for seed in range(20):
        net = Net(seed, 0.5, 0.3)
        dag = net.dag(4)
        done = shrunk(net, dag)

        def held(graph: Dag, constants) -> int:
            nodes = [n for n in graph.nodes if n.kind in ("qconv2d", "qmatmul")]
            return sum(
                constants[str(n.inputs[i].node["name"])].nbytes for n in nodes for i in (1, 3) if i < len(n.inputs)
            )

        assert sum(layer.weight_bytes for layer in done.layers) == held(dag, net.leaves) - held(
            done.dag, done.constants
        )
        assert all(n.kind != "weight" or n["name"] in done.constants for n in postorder(done.dag.outputs))


def test_dead_slices_are_found_along_either_axis() -> None:
    weights = np.ones((3, 3, 16, 8), "int8")
    weights[0] = 5  # the first weights of every filter
    assert not has_dead_channels(weights, 5, (2, 3))
    weights[:, :, :, 3] = 5
    assert has_dead_channels(weights, 5, (2, 3)) and not has_dead_channels(weights, 0, (2, 3))
    weights[:, :, :, 3] = 1
    weights[:, :, 9] = 7
    assert has_dead_channels(weights, 7, (2, 3)) and not has_dead_channels(weights, 7, (3,))


def test_fixed_point_on_arrays_equals_exact_arithmetic() -> None:
    random = np.random.default_rng(0)
    for _ in range(300):
        x, m, s = (
            int(random.integers(-(1 << 24), 1 << 24)),
            int(random.integers(1 << 30, 1 << 31)),
            int(random.integers(-20, 6)),
        )
        product = (x << max(s, 0)) * m
        high = (product + (1 << 30)) >> 31
        e = max(-s, 0)
        twice = high if e == 0 else (abs(high) + (1 << (e - 1))) // (1 << e) * (1 if high >= 0 else -1)
        assert int(rescale(np.array([x]), m, s)[0]) == twice
        exact = x * m
        shift = 31 - s
        whole, rest = exact >> shift, exact & ((1 << shift) - 1)
        once = whole + (rest > 1 << (shift - 1) or (rest == 1 << (shift - 1) and whole % 2 == 1))
        assert int(rescale_even(np.array([x]), m, s)[0]) == max(-(1 << 30), min(1 << 30, once))
    assert activation_range((0.0, 6.0), np.float32(0.1), -5, "int8") == (-5, 55)
