"""Random single-operator cases of operators that move or compare stored values; see `operator_cases`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np

from tvm_cascade.testing.operator_cases import Generator, dims, either_sign, quantized, stored
from tvm_cascade.testing.tflite import ModelWriter

Shape = tuple[int, ...]


def _shape(rng: np.random.Generator, least: int = 1) -> Shape:
    return dims(rng, 3, 5, 5, 6)[4 - int(rng.integers(least, 5)) :]


def _moved(
    rng: np.random.Generator, dtype: str, w: ModelWriter, shape: Sequence[int], result: Sequence[int]
) -> tuple[int, int]:
    """Input and output of one quantization."""
    s, z = quantized(rng, dtype)
    return w.activation(shape, dtype, s, z), w.tensor(result, dtype, s, z)


def gather(rng: np.random.Generator, dtype: str, w: ModelWriter) -> None:
    shape = _shape(rng)
    axis = int(rng.integers(0, len(shape)))
    indices = rng.integers(0, shape[axis], size=dims(rng, 4, 3)[: int(rng.integers(0, 3))]).astype("int32")
    x, out = _moved(rng, dtype, w, shape, [*shape[:axis], *indices.shape, *shape[axis + 1 :]])
    given = int(either_sign(rng, [axis], len(shape))[0])
    w.operator("GATHER", [x, w.constant(indices)], [out], "GatherOptions", axis=given)


def tile(rng: np.random.Generator, dtype: str, w: ModelWriter) -> None:
    shape = _shape(rng)
    times = rng.integers(1, 4, size=len(shape)).astype("int32")
    x, out = _moved(rng, dtype, w, shape, [d * int(t) for d, t in zip(shape, times, strict=True)])
    w.operator("TILE", [x, w.constant(times)], [out], "TileOptions")


def pack(rng: np.random.Generator, dtype: str, w: ModelWriter) -> None:
    shape, count = _shape(rng)[:3], int(rng.integers(1, 4))
    axis = int(rng.integers(-len(shape) - 1, len(shape) + 1))
    position = axis % (len(shape) + 1)
    s, z = quantized(rng, dtype)
    parts = [w.activation(shape, dtype, s, z) for _ in range(count)]
    out = w.tensor([*shape[:position], count, *shape[position:]], dtype, s, z)
    w.operator("PACK", parts, [out], "PackOptions", axis=axis, valuesCount=count)


def unpack(rng: np.random.Generator, dtype: str, w: ModelWriter) -> None:
    shape = _shape(rng, 2)
    axis = int(rng.integers(0, len(shape)))
    s, z = quantized(rng, dtype)
    x = w.activation(shape, dtype, s, z)
    outs = [w.tensor([*shape[:axis], *shape[axis + 1 :]], dtype, s, z) for _ in range(shape[axis])]
    given = int(either_sign(rng, [axis], len(shape))[0])
    w.operator("UNPACK", [x], outs, "UnpackOptions", axis=given, num=shape[axis])


def mirror_pad(rng: np.random.Generator, dtype: str, w: ModelWriter) -> None:
    shape, symmetric = _shape(rng), int(rng.integers(0, 2))
    widths = np.array([[int(rng.integers(0, min(d + symmetric, 4))) for _ in range(2)] for d in shape], "int32")
    x, out = _moved(rng, dtype, w, shape, [d + int(p.sum()) for d, p in zip(shape, widths, strict=True)])
    w.operator("MIRROR_PAD", [x, w.constant(widths)], [out], "MirrorPadOptions", mode=symmetric)


def depth_to_space(rng: np.random.Generator, dtype: str, w: ModelWriter) -> None:
    n, h, wd, c = dims(rng, 2, 5, 5, 4)
    b = int(rng.integers(1, 4))
    x, out = _moved(rng, dtype, w, (n, h, wd, c * b * b), (n, h * b, wd * b, c))
    w.operator("DEPTH_TO_SPACE", [x], [out], "DepthToSpaceOptions", blockSize=b)


def space_to_depth(rng: np.random.Generator, dtype: str, w: ModelWriter) -> None:
    n, h, wd, c = dims(rng, 2, 5, 5, 4)
    b = int(rng.integers(1, 4))
    x, out = _moved(rng, dtype, w, (n, h * b, wd * b, c), (n, h, wd, c * b * b))
    w.operator("SPACE_TO_DEPTH", [x], [out], "SpaceToDepthOptions", blockSize=b)


def space_to_batch(rng: np.random.Generator, dtype: str, w: ModelWriter) -> None:
    n, c = dims(rng, 2, 4)
    blocks = [int(b) for b in rng.integers(1, 4, size=2)]
    inner = [b * int(rng.integers(1, 4)) for b in blocks]
    before = [int(rng.integers(0, d)) for d in inner]
    after = [int(rng.integers(0, d - p)) for d, p in zip(inner, before, strict=True)]
    shape = [n, *(d - p - q for d, p, q in zip(inner, before, after, strict=True)), c]
    result = [n * blocks[0] * blocks[1], *(d // b for d, b in zip(inner, blocks, strict=True)), c]
    x, out = _moved(rng, dtype, w, shape, result)
    pads = np.array(list(zip(before, after, strict=True)), "int32")
    operands = [w.constant(np.array(blocks, "int32")), w.constant(pads)]
    w.operator("SPACE_TO_BATCH_ND", [x, *operands], [out], "SpaceToBatchNDOptions")


def batch_to_space(rng: np.random.Generator, dtype: str, w: ModelWriter) -> None:
    n, h, wd, c = dims(rng, 2, 4, 4, 4)
    blocks = [int(b) for b in rng.integers(1, 4, size=2)]
    full = [h * blocks[0], wd * blocks[1]]
    before = [int(rng.integers(0, d)) for d in full]
    after = [int(rng.integers(0, d - p)) for d, p in zip(full, before, strict=True)]
    result = [n, *(d - p - q for d, p, q in zip(full, before, after, strict=True)), c]
    x, out = _moved(rng, dtype, w, (n * blocks[0] * blocks[1], h, wd, c), result)
    crops = np.array(list(zip(before, after, strict=True)), "int32")
    operands = [w.constant(np.array(blocks, "int32")), w.constant(crops)]
    w.operator("BATCH_TO_SPACE_ND", [x, *operands], [out], "BatchToSpaceNDOptions")


def split_v(rng: np.random.Generator, dtype: str, w: ModelWriter) -> None:
    shape = list(_shape(rng))
    axis = int(rng.integers(0, len(shape)))
    sizes = [int(v) for v in rng.integers(1, 5, size=int(rng.integers(1, 5)))]
    shape[axis] = sum(sizes)
    s, z = quantized(rng, dtype)
    x = w.activation(shape, dtype, s, z)
    outs = [w.tensor([v if d == axis else e for d, e in enumerate(shape)], dtype, s, z) for v in sizes]
    given = list(sizes)
    if rng.random() < 0.3:
        given[int(rng.integers(0, len(sizes)))] = -1  # what is left
    at = either_sign(rng, [axis], len(shape)).reshape(())
    operands = [w.constant(np.array(given, "int32")), w.constant(at)]
    w.operator("SPLIT_V", [x, *operands], outs, "SplitVOptions", numSplits=len(sizes))


def squeeze(rng: np.random.Generator, dtype: str, w: ModelWriter) -> None:
    shape = (1, *dims(rng, 4, 4), 1)
    axes = [[0], [3], [0, 3], []][int(rng.integers(0, 4))]
    gone = axes or [d for d, e in enumerate(shape) if e == 1]
    x, out = _moved(rng, dtype, w, shape, [e for d, e in enumerate(shape) if d not in gone] or [])
    w.operator("SQUEEZE", [x], [out], "SqueezeOptions", squeezeDims=np.array(axes, "int32"))


def expand_dims(rng: np.random.Generator, dtype: str, w: ModelWriter) -> None:
    shape = _shape(rng)[:3]
    axis = int(rng.integers(0, len(shape) + 1))
    x, out = _moved(rng, dtype, w, shape, [*shape[:axis], 1, *shape[axis:]])
    given = either_sign(rng, [axis], len(shape) + 1).reshape(())
    w.operator("EXPAND_DIMS", [x, w.constant(given)], [out], "ExpandDimsOptions")


def _resize(name: str) -> Generator:
    def generate(rng: np.random.Generator, dtype: str, w: ModelWriter) -> None:
        n, h, wd, c = dims(rng, 2, 7, 7, 4)
        target = dims(rng, 15, 15) if rng.random() < 0.6 else (h * 2, wd * 2)
        align, half = [(False, False), (True, False), (False, True)][int(rng.integers(0, 3))]
        x, out = _moved(rng, dtype, w, (n, h, wd, c), (n, *target, c))
        size = w.constant(np.array(target, "int32"))
        options = "ResizeBilinearOptions" if name == "RESIZE_BILINEAR" else "ResizeNearestNeighborOptions"
        w.operator(name, [x, size], [out], options, alignCorners=align, halfPixelCenters=half, version=3)

    return generate


def _reduce(name: str) -> Generator:
    def generate(rng: np.random.Generator, dtype: str, w: ModelWriter) -> None:
        shape, keep_dims = _shape(rng), bool(rng.random() < 0.5)
        axes = sorted(rng.choice(len(shape), size=int(rng.integers(1, len(shape) + 1)), replace=False).tolist())
        result = [1 if d in axes else e for d, e in enumerate(shape) if keep_dims or d not in axes]
        x, out = _moved(rng, dtype, w, shape, result)
        given = w.constant(either_sign(rng, axes, len(shape)))
        w.operator(name, [x, given], [out], "ReducerOptions", keepDims=keep_dims)

    return generate


def _compare(name: str) -> Generator:
    def generate(rng: np.random.Generator, dtype: str, w: ModelWriter) -> None:
        shape = _shape(rng)
        small = tuple(1 if rng.random() < 0.3 else d for d in shape)
        s, z = quantized(rng, dtype)
        x = w.activation(shape, dtype, s, z)
        other, result = [(s, z) if rng.random() < 0.5 else quantized(rng, dtype) for _ in range(2)]
        y = w.constant(stored(rng, small, dtype), *other) if rng.random() < 0.3 else w.activation(small, dtype, *other)
        w.operator(name, [x, y], [w.tensor(shape, dtype, *result)], "MaximumMinimumOptions")

    return generate


def _arg(name: str, options: str) -> Generator:
    def generate(rng: np.random.Generator, dtype: str, w: ModelWriter) -> None:
        shape = _shape(rng, 2)
        axis = int(rng.integers(0, len(shape)))
        x = w.activation(shape, dtype, *quantized(rng, dtype))
        wide = bool(rng.random() < 0.3)
        out = w.tensor([e for d, e in enumerate(shape) if d != axis], "int64" if wide else "int32")
        given = w.constant(np.array(axis if rng.random() < 0.5 else axis - len(shape), "int32"))
        w.operator(name, [x, given], [out], options, outputType=4 if wide else 2)

    return generate


OPERATORS: Mapping[str, Generator] = MappingProxyType(
    {
        "gather": gather,
        "tile": tile,
        "pack": pack,
        "unpack": unpack,
        "mirror_pad": mirror_pad,
        "depth_to_space": depth_to_space,
        "space_to_depth": space_to_depth,
        "space_to_batch": space_to_batch,
        "batch_to_space": batch_to_space,
        "split_v": split_v,
        "squeeze": squeeze,
        "expand_dims": expand_dims,
        "resize_nearest": _resize("RESIZE_NEAREST_NEIGHBOR"),
        "resize_bilinear": _resize("RESIZE_BILINEAR"),
        "reduce_max": _reduce("REDUCE_MAX"),
        "reduce_min": _reduce("REDUCE_MIN"),
        "maximum": _compare("MAXIMUM"),
        "minimum": _compare("MINIMUM"),
        "arg_max": _arg("ARG_MAX", "ArgMaxOptions"),
        "arg_min": _arg("ARG_MIN", "ArgMinOptions"),
    }
)

_BYTES_ONLY = frozenset({"depth_to_space", "space_to_depth", "arg_max", "arg_min"})  # the reference has no int16 form
INT16 = tuple(name for name in OPERATORS if name not in _BYTES_ONLY)
