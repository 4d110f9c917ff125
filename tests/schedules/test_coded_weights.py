"""Weights in a prefix code: the code is the best, and kernels that decode it are exact on every core."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from tvm.ir import IRModule

from tvm_cascade import api, pipeline
from tvm_cascade.cores import kernel_target
from tvm_cascade.emit.flash_cap import FlashExceededError
from tvm_cascade.passes.candidates.candidate import KernelSource
from tvm_cascade.passes.coded_weights import CodedLayer, coded_layers, coding_that_saves
from tvm_cascade.request import PlanRequest
from tvm_cascade.schedules.kernels.storage import CODED
from tvm_cascade.schedules.rules.coded import encoded, middle_of
from tvm_cascade.schedules.rules.prefix_code import BEHIND, BITS, ESCAPE, HEAD, best_code, decoded, limited_lengths
from tvm_cascade.testing.builder import Net

pytestmark = pytest.mark.usefixtures("quick_host")
CORES = (("cortex-m0plus", "c"), ("cortex-m4", "c"), ("cortex-m55", "obj"), ("riscv32", "c"))
ALL = 1e9  # instructions for a byte: every layer is coded that can be


class Peaked(Net):
    """Networks with weights that are mostly small."""

    def _integers(self, shape: tuple[int, ...]) -> np.ndarray:
        drawn = np.round(self._random.standard_normal(shape) * self._random.choice([1.5, 6, 20]))
        return np.clip(drawn, -127, 127).astype(np.int8)

    def _weight_scale(self, depth: int) -> float:
        return 8 * super()._weight_scale(depth)


def mixed(seed: int) -> IRModule:
    """Draw windows over padding with strides and dilation, pointwise layers, channels that no block divides, a dense layer."""
    rng, net = np.random.default_rng(seed), Peaked("int8", seed=seed)
    height, width, channels = (int(n) for n in rng.integers((9, 9, 3), (14, 14, 9)))
    x = net.conv(net.input((1, height, width, channels)), 24, kernel=3, padding="same", activation="relu")
    x = net.conv(net.depthwise(x, kernel=3, padding="same"), int(rng.choice([20, 22, 32])), kernel=1)
    x = net.conv(x, 26, kernel=3, stride=2, padding=str(rng.choice(["same", "valid"])))
    x = net.conv(x, 32, kernel=3, dilation=int(rng.integers(1, 3)), padding="same")
    y = net.conv(net.conv(x, 48, kernel=1, activation="relu"), 32, kernel=1)
    return net.finish(net.dense(net.flatten(net.add(x, y)), 10))


@pytest.mark.parametrize("seed", range(60))
def test_lengths_are_the_best_within_the_limit(seed: int) -> None:
    rng = np.random.default_rng(seed)
    limit, count = 3, int(rng.integers(2, 7))
    weights = [int(n) for n in rng.integers(1, 60, count)]
    found = limited_lengths(weights, limit)
    every = (c for c in product(range(1, limit + 1), repeat=count) if sum(2.0**-n for n in c) <= 1)
    least = min(sum(w * n for w, n in zip(weights, c, strict=True)) for c in every)
    assert sum(2.0**-n for n in found) == 1 and max(found) <= limit
    assert sum(w * n for w, n in zip(weights, found, strict=True)) == least


@pytest.mark.parametrize("seed", range(30))
def test_streams_hold_the_values(seed: int) -> None:
    """Also values behind the escape, and more different values than the table has entries."""
    rng = np.random.default_rng(seed)
    drawn = np.round(rng.standard_normal(int(rng.integers(64, 2000))) * rng.choice([1, 6, 40]))
    values = np.clip(drawn, -128, 127).astype(np.int8)
    stored = values.view(np.uint8)
    counts = np.bincount(stored, minlength=256)
    code = best_code(counts.tobytes())
    stream, lengths = code.encoded(stored), code.lengths[code.lengths > 0]
    assert sum(2.0**-n for n in lengths) + (2.0**-code.escape if code.escape else 0) == 1 and lengths.max() <= BITS
    assert stream.size == -(-int(counts @ code.bits) // 8) + BEHIND
    np.testing.assert_array_equal(decoded(stream, table_of(code.head), values.size), values)


def table_of(head: np.ndarray) -> np.ndarray:
    """Make a decoder's table of a head: codes are numbered in order of length, the first bit the highest."""
    escape = int(head[0])
    lengths = [n for n, count in enumerate(head[1:HEAD].tolist(), 1) for _ in range(count)]
    table, code, before = np.zeros(1 << BITS, np.uint16), 0, 0
    for nth, (length, value) in enumerate(zip(lengths, head[HEAD:].tolist(), strict=True)):
        code, before = code << (length - before), length
        lowest_first = sum((code >> k & 1) << (length - 1 - k) for k in range(length))
        table[lowest_first :: 1 << length] = value << 8 | length | (ESCAPE if nth == escape else 0)
        code += 1
    return table.view(np.int16)


@pytest.mark.parametrize("seed", range(8))
def test_no_other_number_of_values_makes_fewer_bytes(seed: int) -> None:
    """The search stops at a bound; every number of values with codes of their own is tried here."""
    rng = np.random.default_rng(seed)
    stored = (
        np.clip(np.round(rng.standard_normal(700) * rng.choice([2, 9, 30])), -128, 127).astype(np.int8).view(np.uint8)
    )
    counts = np.bincount(stored, minlength=256)
    order, sizes = np.argsort(-counts, kind="stable"), []
    for kept in range(1, int((counts > 0).sum()) + 1):
        rest = int(counts[order[kept:]].sum())
        weights = [*(int(n) for n in counts[order[:kept]]), *([rest] if rest else [])]
        if 2 <= len(weights) <= 255:
            lengths = limited_lengths(weights, BITS)
            bits = sum(w * n for w, n in zip(weights, lengths, strict=True)) + 8 * rest
            sizes.append(bits + 8 * (HEAD + len(weights)))
    code = best_code(counts.tobytes())
    assert int(counts @ code.bits) + 8 * code.head.size == min(sizes)


def test_wide_weights_are_stored_less_their_middle() -> None:
    weights = np.random.default_rng(0).integers(-60, 190, 300).astype(np.int16)
    words = encoded(weights)
    middle, coded = int(words[0]), words.view(np.uint8)[4:]
    size = HEAD + int(coded[1:HEAD].sum())
    found = decoded(coded[size:], table_of(coded[:size]), weights.size).astype(np.int16) + middle
    assert middle == middle_of(weights)
    np.testing.assert_array_equal(found, weights)


@pytest.mark.parametrize("core,backend", CORES)
@pytest.mark.parametrize("seed", range(3))
def test_plans_with_coded_weights_are_exact(core: str, backend: str, seed: int) -> None:
    """The kernels run on this machine, on random data beside the network."""
    asked = (
        PlanRequest(),
        PlanRequest(max_macs=1.5, max_time=3.0),
        PlanRequest(layerwise=True),
        PlanRequest(granularity="row"),
    )
    loaded, database = pipeline.Loaded(mixed(seed), "coded"), None
    plain = kernel_target(core, backend)
    for request in (asked[0], asked[1 + seed % 3]):
        sizes = []
        for target in (plain, replace(plain, code_price=ALL)):
            planned = pipeline.plan(loaded, request, KernelSource(target, database))
            pipeline.check(planned)
            kernels = [k for k in planned.prepared.kernels if k is not None]
            sizes.append(sum(c.nbytes for k in kernels for c in k.constants))
            assert any(k.storage.name == CODED for k in kernels) == (target is not plain)
        assert sizes[1] < sizes[0]


@pytest.mark.emulator
@pytest.mark.parametrize("core,backend", CORES)
def test_emulated_boards_decode(core: str, backend: str, emulator: None, tmp_path: Path) -> None:
    made = api.compile(mixed(1), target=core, emit=backend, output=tmp_path / "p", code_weights=ALL)
    assert api.run(tmp_path / "p", board=made.board).equals_host
    assert any(op.storage == CODED for op in made.plan.graph.ops)


def test_layers_are_coded_by_the_cheapest_byte() -> None:
    layers = coded_layers(pipeline.prepare(mixed(2), kernel_target("cortex-m4")))
    prices = [layer.price for layer in layers]
    assert len(layers) > 3 and prices == sorted(prices)
    few, more = (coding_that_saves(layers, n) for n in (1, sum(la.saved for la in layers[:3])))
    assert few.layers < more.layers < len(layers) and few.price < more.price
    assert more.saved == sum(la.saved for la in layers if la.price <= more.price)
    assert coding_that_saves(layers, 1 << 30).layers == len(layers)
    assert coding_that_saves((CodedLayer(100, 123456), CodedLayer(10, 123456)), 1) == coding_that_saves(
        (CodedLayer(100, 123456),), 1
    )


@pytest.mark.emulator
def test_a_cap_on_flash_codes_as_many_layers_as_it_needs(emulator: None, tmp_path: Path) -> None:
    small = api.compile(mixed(3), target="cortex-m4", output=tmp_path / "small", optimise="size")
    most = api.compile(mixed(3), target="cortex-m4", output=tmp_path / "most", optimise="size", code_weights=ALL)
    assert small.flash_bytes is not None and most.flash_bytes is not None and most.flash_bytes < small.flash_bytes
    lines: list[str] = []
    cap = (small.flash_bytes + most.flash_bytes) // 2
    made = api.compile(mixed(3), target="cortex-m4", output=tmp_path / "p", flash=cap, progress=lines.append)
    assert made.flash_bytes is not None and made.flash_bytes <= cap
    assert any("coding the weights of" in line for line in lines)
    coded = [sum(op.storage == CODED for op in one.plan.graph.ops) for one in (most, made)]
    assert 0 < coded[1] < coded[0]
    assert json.loads((tmp_path / "p/metadata.json").read_text())["options"]["code_weights"] > 0
    assert api.run(tmp_path / "p", board=made.board).equals_host
    with pytest.raises(FlashExceededError, match="that is with coded weights"):
        api.compile(mixed(3), target="cortex-m4", output=tmp_path / "no", flash=most.flash_bytes - 200)
    assert not (tmp_path / "no").exists()


def test_flash_of_a_trained_autoencoder(test_data: Path) -> None:
    """Ten dense layers of 264,192 weights: their order-0 entropy is 170,144 bytes."""
    planned = api.plan(test_data / "models" / "ad01_int8.tflite", target="cortex-m4", code_weights=ALL)
    assert 170_144 < planned.to_dict()["weight_bytes"] <= 179_172


def test_plans_keep_a_cap_that_weights_alone_exceed() -> None:
    usual = api.plan(mixed(3), target="cortex-m4")
    assert usual.flash is not None
    points = usual.to_dict(details=True).get("flash_frontier", [])
    cap = min(usual.flash[0], *(p["flash_bytes"] for p in points)) - 1  # small code does not obey it either
    told = api.plan(mixed(3), target="cortex-m4", flash=cap)
    assert told.flash is not None and told.flash[0] <= cap and "in a prefix code" in told.to_text()
    assert "--code-weights" in told.command
    assert next(p["code_weights"] for p in points if p["optimise"] == "size") > 0
