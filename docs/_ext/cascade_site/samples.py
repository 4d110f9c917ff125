"""The files that the commands of a page find in their folder."""

from __future__ import annotations

import shutil
from functools import cache
from pathlib import Path

import numpy as np

from cascade_site.repository import ROOT

NETWORK = ROOT / "tvm_cascade" / "testing" / "data" / "shapes.tflite"


def write_samples(folder: Path) -> None:
    """Write all samples: a trained int8 network with pictures to test it, a float one with branches, a graph and buffers.

    `branches.onnx` has random weights.
    """
    shutil.copyfile(NETWORK, folder / NETWORK.name)
    for source in sorted((ROOT / "docs" / "_samples").iterdir()):
        shutil.copyfile(source, folder / source.name)
    images, labels = _pictures()
    np.savez(folder / "test.npz", image=images, labels=labels)
    np.savez(folder / "calibration.npz", image=images.transpose(0, 3, 1, 2))
    (folder / "branches.onnx").write_bytes(_branches())


@cache
def _pictures() -> tuple[np.ndarray, np.ndarray]:
    """Pictures in the real values that the shapes network takes, from -0.5 to 0.5, and the numbers of their classes."""
    from tvm_cascade.testing import shapes

    images, labels = shapes.dataset(60, seed=99)
    return images - np.float32(128 / 255), labels


@cache
def _branches() -> bytes:
    """A float network whose middle has three branches."""
    from onnx import TensorProto, helper, numpy_helper

    rng, nodes, weights = np.random.default_rng(0), [], []

    def conv(x: str, name: str, depth: int, channels: int, side: int, stride: int = 1) -> str:
        shape = (channels, depth, side, side)
        values = (rng.standard_normal(shape) * (2 / (depth * side * side)) ** 0.5).astype(np.float32)
        weights.append(numpy_helper.from_array(values, f"{name}_weights"))
        window = {"kernel_shape": [side, side], "strides": [stride, stride], "pads": [side // 2] * 4}
        nodes.append(helper.make_node("Conv", [x, f"{name}_weights"], [f"{name}_sums"], name=name, **window))
        nodes.append(helper.make_node("Relu", [f"{name}_sums"], [name], name=f"{name}_relu"))
        return name

    stem = conv("image", "stem", 1, 16, 3, stride=2)
    ends = [conv(stem, "one", 16, 16, 1)]
    ends.append(conv(conv(stem, "reduced", 16, 8, 1), "three", 8, 16, 3))
    ends.append(conv(conv(conv(stem, "reduced_again", 16, 8, 1), "first", 8, 16, 3), "second", 16, 16, 3))
    nodes.append(helper.make_node("Concat", ends, ["joined"], name="joined", axis=1))
    nodes.append(
        helper.make_node("GlobalAveragePool", [conv("joined", "last", 48, 32, 1, stride=2)], ["mean"], name="mean")
    )
    nodes.append(helper.make_node("Flatten", ["mean"], ["scores"], name="scores"))
    image = helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 1, 64, 64])
    scores = helper.make_tensor_value_info("scores", TensorProto.FLOAT, [1, 32])
    graph = helper.make_graph(nodes, "branches", [image], [scores], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return model.SerializeToString()
