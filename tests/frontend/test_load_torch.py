"""torch.export archives: float ones and PT2E-quantized ones, from file to lowered module, against torch itself."""

from __future__ import annotations

import shutil
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tvm_cascade
from tvm_cascade.checking.sensitivity import read_program, run_exported
from tvm_cascade.errors import LoadError, MissingToolError, UnsupportedOperatorError, UsageError
from tvm_cascade.frontend import io_spec, load
from tvm_cascade.passes.float_remains import float_remains
from tvm_cascade.passes.lower_quantized import LowerQuantized
from tvm_cascade.passes.main_rewriting import bindings_of, name_of, shape_of
from tvm_cascade.testing.reference import Compiled

pytestmark = pytest.mark.torch
_LOWER: Any = LowerQuantized()


def test_without_torch_one_message_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    (tmp_path / "net.pt2").write_bytes(b"PK")
    with pytest.raises(
        MissingToolError,
        match=r"torch is not installed: pip install 'tvm-cascade\[torch\]', or without CUDA: .*, or export",
    ):
        load(tmp_path / "net.pt2")


def test_an_archive_that_unpacks_to_gigabytes(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    with zipfile.ZipFile(tmp_path / "net.pt2", "w") as archive:
        archive.writestr("net/models/model.json", "{}")
    data = bytearray((tmp_path / "net.pt2").read_bytes())
    at = data.rindex(b"PK\1\2") + 24  # of the central directory: the size of the member, unpacked
    data[at : at + 4] = (1 << 31).to_bytes(4, "little")
    (tmp_path / "net.pt2").write_bytes(data)
    with pytest.raises(LoadError, match="holds 2147483648 bytes when unpacked, more than 1073741824"):
        load(tmp_path / "net.pt2")


def _export(path: Path, module: Any, *shape: int, **how: Any) -> Any:
    torch = pytest.importorskip("torch")
    exported = torch.export.export(module.eval(), (torch.zeros(shape),), **how)
    torch.export.save(exported, path)
    return exported.module()


def _residual() -> Any:
    """Convolutions with normalization, a residual sum, a pool, a mean, a product, softmax."""
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    nn = torch.nn

    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU())
            self.depthwise = nn.Sequential(nn.Conv2d(8, 8, 3, 1, 1, groups=8), nn.BatchNorm2d(8), nn.Hardswish())
            self.pointwise = nn.Sequential(nn.Conv2d(8, 8, 1), nn.LeakyReLU(0.1), nn.Hardtanh(-0.5, 2.0))
            self.last = nn.Linear(8, 5)

        def forward(self, x: Any) -> Any:
            a = self.first(x)
            y = nn.functional.max_pool2d(self.pointwise(self.depthwise(a)) + a, 2)
            y = nn.functional.adaptive_avg_pool2d(y, 1).flatten(1)
            return torch.softmax(self.last(y), -1)

    return Residual()


def test_a_float_network(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    plain = _export(tmp_path / "n.pt2", _residual(), 1, 3, 15, 17)
    mod = load(tmp_path / "n.pt2")
    assert [(s.name, s.shape, s.dtype) for s in io_spec(mod).inputs] == [("x", (1, 3, 15, 17), "float32")]
    run = Compiled(_LOWER(mod))
    for seed in range(3):
        x = np.random.default_rng(seed).standard_normal((1, 3, 15, 17)).astype("float32")
        np.testing.assert_allclose(run(x)[0], plain(torch.tensor(x)).detach().numpy(), rtol=1e-5, atol=1e-6)


def test_symbolic_sizes(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    free = ({0: torch.export.Dim("n"), 2: torch.export.Dim("h", min=8, max=64)},)
    _export(tmp_path / "n.pt2", torch.nn.Conv2d(3, 4, 3), 2, 3, 16, 16, dynamic_shapes=free)
    with pytest.raises(
        LoadError, match=r"input input \[s\d+, 3, s\d+, 16\] has sizes .*--input-shape input=1,3,64,16$"
    ):
        load(tmp_path / "n.pt2")
    mod = load(tmp_path / "n.pt2", {"input": (1, 3, 20, 16)})
    assert io_spec(mod).outputs[0].shape == (1, 4, 18, 14)
    with pytest.raises(UsageError, match=r"has the shape .* in the file, not"):
        load(tmp_path / "n.pt2", {"input": (1, 4, 20, 16)})
    with pytest.raises(UsageError, match="the model has no input y; its inputs: input"):
        load(tmp_path / "n.pt2", {"y": (1, 3, 20, 16)})


def test_what_is_no_archive_or_has_unknown_operators(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    (tmp_path / "bad.pt2").write_bytes(b"PK\x03\x04 nothing")
    with pytest.raises(LoadError, match=r"not an archive of torch\.export, or truncated"):
        load(tmp_path / "bad.pt2")

    class Unknown(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return torch.special.i1(x)

    _export(tmp_path / "u.pt2", Unknown(), 1, 4)
    with pytest.raises(UnsupportedOperatorError) as caught:
        load(tmp_path / "u.pt2")
    assert caught.value.operators == ("special_i1.default",)


def _quantized(dtype: str) -> Any:
    """What PT2E's convert leaves: stored weights with a scale a channel, float biases, a pair around every operator."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("torch.ao.quantization.fx._decomposed")
    ops, nn = torch.ops.quantized_decomposed, torch.nn.functional
    kind, lo, hi = getattr(torch, dtype), *((0, 255) if dtype == "uint8" else (-128, 127))
    made = torch.Generator().manual_seed(0)

    class Network(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for name, shape in {"a": (8, 3, 3, 3), "d": (8, 1, 3, 3), "f": (5, 8)}.items():
                self.register_buffer(f"w{name}", torch.randint(-127, 128, shape, generator=made).to(torch.int8))
                self.register_buffer(f"s{name}", torch.rand(shape[0], generator=made) * 0.009 + 0.001)
                self.register_buffer(f"z{name}", torch.zeros(shape[0], dtype=torch.int64))
                setattr(self, f"b{name}", torch.nn.Parameter(torch.randn(shape[0], generator=made)))

        def weights(self, name: str) -> Any:
            w, s, z = (getattr(self, f"{part}{name}") for part in "wsz")
            return ops.dequantize_per_channel(w, s, z, 0, -127, 127, torch.int8)

        def stored(self, x: Any, scale: float, zero: int) -> Any:
            zero += lo
            return ops.dequantize_per_tensor(
                ops.quantize_per_tensor(x, scale, zero, lo, hi, kind), scale, zero, lo, hi, kind
            )

        def forward(self, x: Any) -> Any:
            x = self.stored(x, 1 / 64, 125)
            a = nn.relu(nn.conv2d(x, self.weights("a"), self.ba, stride=2, padding=1))
            a = self.stored(a, 0.05, 0)
            d = self.stored(nn.hardtanh(nn.conv2d(a, self.weights("d"), self.bd, padding=1, groups=8), 0, 6), 0.024, 0)
            y = self.stored(d + a, 0.06, 8)
            y = self.stored(nn.hardswish(self.stored(nn.max_pool2d(y, 2), 0.06, 8)), 0.06, 8)
            y = self.stored(nn.adaptive_avg_pool2d(y, 1), 0.05, 18).flatten(1)
            return self.stored(nn.linear(self.stored(y, 0.05, 18), self.weights("f"), self.bf), 0.2, 133)

    return Network()


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_a_quantized_network_becomes_integers(tmp_path: Path, dtype: str) -> None:
    torch = pytest.importorskip("torch")
    plain = _export(tmp_path / "q.pt2", _quantized(dtype), 1, 3, 17, 15)
    lowered = _LOWER(load(tmp_path / "q.pt2"))
    assert [r.operator for r in float_remains(lowered)] == ["dequantize"]  # the float output itself
    kinds = {str(f.attrs["op_kind"]) for gv, f in lowered.functions.items() if gv.name_hint != "main"}
    assert {"conv2d", "depthwise_conv2d", "add", "max_pool2d", "lut", "mean", "dense"} <= kinds
    run = Compiled(lowered)
    for seed in range(5):
        x = np.random.default_rng(seed).standard_normal((1, 3, 17, 15)).astype("float32")
        ours, theirs = run(x)[0], plain(torch.tensor(x)).detach().numpy()
        assert np.abs(ours - theirs).max() <= 0.2 * 1.01  # one step: torch rounds floats, the kernels integers


def test_a_quantize_clamps_to_its_own_range(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("torch.ao.quantization.fx._decomposed")
    ops, how = torch.ops.quantized_decomposed, (0.05, 3, -100, 90, torch.int8)

    class Network(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            x = ops.dequantize_per_tensor(ops.quantize_per_tensor(x, *how), *how)
            return ops.dequantize_per_tensor(ops.quantize_per_tensor(torch.relu(x), *how), *how)

    plain = _export(tmp_path / "q.pt2", Network(), 1, 64)
    x = np.linspace(-9, 9, 64, dtype="float32")[None]
    lowered = _LOWER(load(tmp_path / "q.pt2"))
    assert [r.operator for r in float_remains(lowered)] == ["dequantize"]
    np.testing.assert_allclose(Compiled(lowered)(x)[0], plain(torch.tensor(x)).numpy(), atol=1e-6)


@pytest.mark.parametrize("step", [float(np.float32(0.1)), 0.053293142967531404], ids=["float32", "float64"])
def test_floats_are_multiplied_by_the_inverse_of_a_scale(tmp_path: Path, step: float) -> None:
    """As torch does, which rounds some floats between two stored values otherwise than a division. The inverse of the second
    scale is another float32 than that of the float32 next to the scale.
    """
    torch = pytest.importorskip("torch")
    pytest.importorskip("torch.ao.quantization.fx._decomposed")
    ops, how = torch.ops.quantized_decomposed, (step, 0, -128, 127, torch.int8)

    class Network(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return ops.dequantize_per_tensor(ops.quantize_per_tensor(x, *how), *how)

    ties = (np.arange(-100, 100) + 0.5).astype("float32") * np.float32(step)
    x = np.concatenate([ties, np.nextafter(ties, np.float32(9)), np.nextafter(ties, np.float32(-9))])[None]
    plain = _export(tmp_path / "q.pt2", Network(), *x.shape)
    want = plain(torch.tensor(x)).numpy()
    assert (np.rint(x / np.float32(step)) != np.rint(want / step)).any()  # a division rounds some otherwise
    np.testing.assert_array_equal(Compiled(_LOWER(load(tmp_path / "q.pt2")))(x)[0], want)


def test_what_the_importer_reads_otherwise_than_torch(tmp_path: Path) -> None:
    """SELU's scales, nearest pixels of a size that is no multiple, amax and amin."""
    torch = pytest.importorskip("torch")

    class Network(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            x = torch.nn.functional.interpolate(torch.nn.functional.selu(x), size=(11, 4))
            return x.amax((2, 3)) + x.amin(1, keepdim=True)[:, :, 0, 0]

    plain = _export(tmp_path / "n.pt2", Network(), 1, 3, 5, 7)
    run = Compiled(_LOWER(load(tmp_path / "n.pt2")))
    x = np.random.default_rng(0).standard_normal((1, 3, 5, 7)).astype("float32")
    np.testing.assert_allclose(run(x)[0], plain(torch.tensor(x)).numpy(), rtol=1e-5, atol=1e-6)


def test_layers_of_rank_three_become_integers(tmp_path: Path) -> None:
    """A convolution, and a product that torch takes in rank 2, its relu behind the view."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("torch.ao.quantization.fx._decomposed")
    ops, nn = torch.ops.quantized_decomposed, torch.nn.functional

    class Network(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            made = torch.Generator().manual_seed(0)
            for name, shape in {"c": (6, 4, 3), "f": (5, 8)}.items():
                self.register_buffer(f"w{name}", torch.randint(-127, 128, shape, generator=made).to(torch.int8))
                setattr(self, f"b{name}", torch.nn.Parameter(torch.randn(shape[0], generator=made)))

        def stored(self, x: Any) -> Any:
            x = ops.quantize_per_tensor(x, 0.05, 3, -128, 127, torch.int8)
            return ops.dequantize_per_tensor(x, 0.05, 3, -128, 127, torch.int8)

        def forward(self, x: Any) -> Any:
            wc, wf = (ops.dequantize_per_tensor(w, 0.005, 0, -127, 127, torch.int8) for w in (self.wc, self.wf))
            a = self.stored(nn.relu(nn.conv1d(self.stored(x), wc, self.bc, padding=1)))
            return self.stored(nn.relu(nn.linear(a, wf, self.bf)))

    plain = _export(tmp_path / "q.pt2", Network(), 1, 4, 8)
    lowered = _LOWER(load(tmp_path / "q.pt2"))
    assert [r.operator for r in float_remains(lowered)] == ["dequantize"]
    run = Compiled(lowered)
    x = np.random.default_rng(0).standard_normal((1, 4, 8)).astype("float32")
    assert np.abs(run(x)[0] - plain(torch.tensor(x)).detach().numpy()).max() <= 0.05 * 1.01


def _check_turned_once(path: Path, network: Any, channels: int, step: float) -> None:
    """Test that the signal of [1, 4, 16] and the result alone are turned, and results are torch's within a step."""
    torch = pytest.importorskip("torch")
    plain = _export(path, network, 1, 4, 16)
    read = load(path)
    moves = [b.value for b in bindings_of(read["main"]) if name_of(b.value) == "permute_dims"]
    assert [shape_of(m) for m in moves] == [(1, 1, 16, 4), (1, channels, 1, 16)]
    lowered = _LOWER(read)
    assert [r.operator for r in float_remains(lowered)] == ["dequantize"]
    run = Compiled(lowered)
    for seed in range(5):
        x = np.random.default_rng(seed).standard_normal((1, 4, 16)).astype("float32")
        assert np.abs(run(x)[0] - plain(torch.tensor(x)).detach().numpy()).max() <= step * 1.01


def test_a_pool_beside_a_convolution_shares_its_integers(tmp_path: Path) -> None:
    """A signal that PT2E quantizes by two scales, for a pool and for convolutions: it is turned channels last once."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("torch.ao.quantization.fx._decomposed")
    ops, nn = torch.ops.quantized_decomposed, torch.nn.functional

    class Network(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            made = torch.Generator().manual_seed(0)
            self.register_buffer("w", torch.randint(-127, 128, (3, 4, 4, 3), generator=made).to(torch.int8))

        def stored(self, x: Any, scale: float, zero: int, times: int = 1) -> Any:
            how = scale, zero, -128, 127, torch.int8
            x = ops.quantize_per_tensor(x, *how)
            reals = [ops.dequantize_per_tensor(x, *how) for _ in range(times)]
            return reals if times > 1 else reals[0]

        def convolved(self, x: Any, k: int) -> Any:
            w = ops.dequantize_per_tensor(self.w[k], 0.005, 0, -127, 127, torch.int8)
            return self.stored(nn.relu(nn.conv1d(x, w, padding=1)), 0.03, -128)

        def forward(self, x: Any) -> Any:
            x = self.stored(nn.hardtanh(self.stored(x, 0.021, 5)), 0.008, 1, 3)
            pooled = self.stored(nn.max_pool1d(self.stored(x[2], 0.0085, -3), 3, 1, 1), 0.0085, -3)
            made = (self.convolved(x[0], 0), self.convolved(x[1], 1), self.convolved(pooled, 2))
            return self.stored(torch.cat(made, 1), 0.03, -128)

    _check_turned_once(tmp_path / "q.pt2", Network(), 12, 0.03)


def test_halves_of_a_signal_stay_channels_last(tmp_path: Path) -> None:
    """Gated linear units between two convolutions: only the signal and the result are turned."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("torch.ao.quantization.fx._decomposed")
    ops, nn = torch.ops.quantized_decomposed, torch.nn.functional

    class Network(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            made = torch.Generator().manual_seed(0)
            for name, shape in {"a": (12, 4, 3), "b": (5, 6, 3)}.items():
                self.register_buffer(name, torch.randint(-127, 128, shape, generator=made).to(torch.int8))

        def stored(self, x: Any, scale: float, zero: int) -> Any:
            how = scale, zero, -128, 127, torch.int8
            return ops.dequantize_per_tensor(ops.quantize_per_tensor(x, *how), *how)

        def convolved(self, x: Any, w: Any) -> Any:
            w = ops.dequantize_per_tensor(w, 0.005, 0, -127, 127, torch.int8)
            return self.stored(nn.conv1d(x, w, padding=1), 0.04, 3)

        def forward(self, x: Any) -> Any:
            a, b = self.convolved(self.stored(x, 0.021, 5), self.a).chunk(2, 1)
            gated = a * self.stored(torch.sigmoid(b), 1 / 256, -128)
            return self.convolved(self.stored(gated, 0.02, -4), self.b)

    _check_turned_once(tmp_path / "q.pt2", Network(), 5, 0.04)


def test_nearest_pixels_of_symbolic_sizes(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    free = ({2: torch.export.Dim("h", min=4, max=64)},)
    plain = _export(tmp_path / "n.pt2", torch.nn.Upsample(scale_factor=2), 1, 2, 8, 3, dynamic_shapes=free)
    run = Compiled(_LOWER(load(tmp_path / "n.pt2", {"input": (1, 2, 5, 3)})))
    x = np.random.default_rng(0).standard_normal((1, 2, 5, 3)).astype("float32")
    np.testing.assert_array_equal(run(x)[0], plain(torch.tensor(x)).numpy())


def ring(torch: Any) -> Any:
    """A module that keeps the last three rows in a buffer, which it writes, and counts its calls in another."""

    class Ring(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("ring", torch.full((1, 3, 4), 0.5))
            self.register_buffer("count", torch.zeros(1))
            self.register_buffer("fixed", torch.ones(4))
            self.last = torch.nn.Linear(4, 2)

        def forward(self, x: Any) -> Any:
            rows = torch.cat([self.ring, x * self.fixed], 1)
            self.ring.copy_(rows[:, 1:])
            self.count.add_(1)
            return self.last(rows.mean(1)) * self.count

    torch.manual_seed(0)
    return torch.export.export(Ring().eval(), (torch.zeros(1, 1, 4),))


def test_buffers_that_are_written_are_states(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    torch.export.save(ring(torch), tmp_path / "ring.pt2")
    states = io_spec(load(tmp_path / "ring.pt2")).states
    assert {s.name: len(s.initial) for s in states} == {"ring": 48, "count": 0}
    rows = np.random.default_rng(0).standard_normal((100, 1, 4)).astype("float32")
    np.savez(tmp_path / "f.npz", x=rows)
    made = []
    for target in ("host", "cortex-m4") if shutil.which("qemu-system-arm") else ("host",):
        tvm_cascade.compile(tmp_path / "ring.pt2", target=target, output=tmp_path / target)
        done = tvm_cascade.run(tmp_path / target, frames=tmp_path / "f.npz", check=tmp_path / "ring.pt2")
        assert done.ok and done.match and done.frames == 100
        made.append(next(iter(done.outputs.values())))
    assert np.abs(made[0][-1]).max() > 5  # the calls are counted
    module = ring(torch).module()
    wanted = np.stack([module(torch.from_numpy(row[None])).detach().numpy() for row in rows])
    for outputs in made:
        np.testing.assert_allclose(outputs, wanted, atol=1e-5 * np.abs(wanted).max())
    with pytest.raises(UsageError, match="writes its buffers is read whole"):
        load(tmp_path / "ring.pt2", until="mean")


def test_the_reference_reads_a_file_once_unless_it_changes(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    path = tmp_path / "net.pt2"
    _export(path, torch.nn.Linear(4, 3), 1, 4)
    first = read_program(path)
    assert read_program(path) is first
    _export(path, torch.nn.Linear(4, 2), 1, 4)
    assert read_program(path).state_dict["weight"].shape == (2, 4)
    torch.export.save(ring(torch), path)
    x = {"x": np.ones((1, 1, 4), "float32")}
    one, other = (run_exported(read_program(path), x) for _ in range(2))
    for name, value in one.items():  # what a run writes to its buffers, the next one does not find
        np.testing.assert_array_equal(value, other[name])
