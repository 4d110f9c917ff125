"""Networks along time as files: `python benchmarks/time_files.py FOLDER torch|keras [NAME ...]`.

With `torch`, writes each network in float and int8 as `.onnx` (ONNX Runtime's quantizer) and `.pt2` (torchao's PT2E); with
`keras`, as `.tflite` (TFLite's converter). The frameworks are imported where they are used. Weights and data are random,
from a fixed seed. `time_doors.py` counts their plans.
"""

# pyright: reportMissingImports=false, reportMissingModuleSource=false
from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

Layer = tuple[Any, ...]
_KEYWORD = [("conv", 64, 3), *[("separable", 64, 9)] * 3]
_GATED = [("linear", 16, 1), ("gate", 1), ("gate", 2), ("gate", 4), ("conv", 8, 1)]
_CAUSAL = [("causal", 32, 3, d) for d in (1, 2, 4)]
_MOTION = [("conv", 16, 5), ("conv", 16, 3), ("pool", 2), ("conv", 32, 5), ("conv", 32, 3), ("pool", 2)]
_SEPARABLE = [("separable", c, 5, s) for c, s in ((24, 1), (48, 2), (48, 1), (64, 2))]
# steps and channels of the input, then layers: kind, channels, window, and stride or dilation
NETWORKS: dict[str, tuple[int, int, list[Layer]]] = {
    "activity": (128, 9, [*_MOTION, ("flatten",), ("dense", 6)]),
    "heartbeat": (512, 1, [*[("conv", c, 7, 2) for c in (16, 32, 32)], ("mean",), ("dense", 5)]),
    "dilated": (200, 8, [*[("dilated", 24, 3, d) for d in (1, 2, 4, 8)], ("mean",), ("dense", 4)]),
    "keyword": (98, 40, [*_KEYWORD, ("mean",), ("dense", 12)]),
    "gesture": (150, 3, [*[s for c in (8, 16, 16) for s in (("conv", c, 3), ("pool", 2))], ("flatten",), ("dense", 4)]),
    "gated": (96, 4, _GATED),
    "causal": (160, 16, [*_CAUSAL, ("mean",), ("dense", 3)]),
    "separable": (128, 6, [*_SEPARABLE, ("mean",), ("dense", 8)]),
}


def _torch_module(steps: int, channels: int, layers: list[Layer]) -> Any:
    """Return a module over `[1, channels, steps]`."""
    import torch
    from torch import nn

    class Gate(nn.Module):
        def __init__(self, width: int, dilation: int) -> None:
            super().__init__()
            self.filter, self.gate = (nn.Conv1d(width, width, 3, padding=dilation, dilation=dilation) for _ in range(2))
            self.last = nn.Conv1d(width, width, 1)

        def forward(self, x: Any) -> Any:
            return x + self.last(torch.tanh(self.filter(x)) * torch.sigmoid(self.gate(x)))

    class Mean(nn.Module):
        def forward(self, x: Any) -> Any:
            return x.mean(2)

    def built(width: int, length: int) -> Iterator[Any]:
        for kind, *numbers in layers:
            made, window, step = (*numbers, 1, 1, 1)[:3]
            if kind in ("conv", "linear"):
                yield nn.Conv1d(width, made, window, step, window // 2)
            elif kind == "dilated":
                yield nn.Conv1d(width, made, window, padding=step, dilation=step)
            elif kind == "causal":
                yield nn.ConstantPad1d((2 * step, 0), 0.0)
                yield nn.Conv1d(width, made, window, dilation=step)
            elif kind == "separable":
                yield nn.Conv1d(width, width, window, step, window // 2, groups=width)
                yield nn.Conv1d(width, made, 1)
            elif kind == "gate":
                yield Gate(width, made)
            elif kind == "pool":
                yield nn.MaxPool1d(made)
            elif kind == "dense":
                yield nn.Linear(width, made)
            else:
                yield Mean() if kind == "mean" else nn.Flatten()
            if kind in ("conv", "dilated", "causal", "separable"):
                yield nn.ReLU()
            length = (
                length // made if kind == "pool" else -(-length // step) if kind in ("conv", "separable") else length
            )
            width = width * length if kind == "flatten" else width if kind in ("pool", "mean", "gate") else made

    torch.manual_seed(7)
    return nn.Sequential(*built(channels, steps)).eval()


def write_torch(folder: Path, name: str) -> None:
    """Write `.onnx` and `.pt2`."""
    import onnx
    import torch
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
    from torchao.testing.pt2e._xnnpack_quantizer import XNNPACKQuantizer, get_symmetric_quantization_config

    steps, channels, layers = NETWORKS[name]
    module, rng = _torch_module(steps, channels, layers), np.random.default_rng(7)
    data = [rng.uniform(-1, 1, (1, channels, steps)).astype("float32") for _ in range(8)]
    example = (torch.from_numpy(data[0]),)
    path = {kind: str(folder / f"{name}.{kind}") for kind in ("float.onnx", "int8.onnx", "float.pt2", "int8.pt2")}
    torch.onnx.export(module, example, path["float.onnx"], input_names=["x"], output_names=["y"], opset_version=17,
                      dynamo=False)  # fmt: skip
    torch.export.save(torch.export.export(module, example), path["float.pt2"])

    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            self.left = iter([{"x": d} for d in data])

        def get_next(self) -> Any:
            return next(self.left, None)

    ready = str(folder / f"{name}.ready.onnx")
    quant_pre_process(path["float.onnx"], ready)
    quantize_static(ready, path["int8.onnx"], Reader(), quant_format=QuantFormat.QDQ, per_channel=True,
                    activation_type=QuantType.QInt8, weight_type=QuantType.QInt8)  # fmt: skip
    Path(ready).unlink()
    onnx.checker.check_model(path["int8.onnx"])
    quantizer = XNNPACKQuantizer().set_global(get_symmetric_quantization_config(is_per_channel=True))
    prepared = prepare_pt2e(torch.export.export(module, example).module(), quantizer)
    for d in data:
        prepared(torch.from_numpy(d))
    torch.export.save(torch.export.export(convert_pt2e(prepared), example), path["int8.pt2"])


def write_keras(folder: Path, name: str) -> None:
    """Write `.tflite`."""
    import tensorflow as tf

    layer: Any = tf.keras.layers
    steps, channels, layers = NETWORKS[name]
    tf.keras.backend.clear_session()
    tf.keras.utils.set_random_seed(7)
    given = x = tf.keras.Input(batch_shape=(1, steps, channels))
    for kind, *numbers in layers:
        made, window, step = (*numbers, 1, 1, 1)[:3]
        if kind in ("conv", "linear"):
            x = layer.Conv1D(made, window, step, "same", activation="relu" if kind == "conv" else None)(x)
        elif kind in ("dilated", "causal"):
            padding = "same" if kind == "dilated" else "causal"
            x = layer.Conv1D(made, window, padding=padding, dilation_rate=step, activation="relu")(x)
        elif kind == "separable":
            x = layer.Conv1D(made, 1, activation="relu")(layer.DepthwiseConv1D(window, step, "same")(x))
        elif kind == "gate":
            a, b = (layer.Conv1D(x.shape[-1], 3, padding="same", dilation_rate=made)(x) for _ in range(2))
            gated = layer.Activation("tanh")(a) * layer.Activation("sigmoid")(b)
            x = x + layer.Conv1D(x.shape[-1], 1)(gated)
        elif kind == "dense":
            x = layer.Dense(made)(x)
        else:
            plain = {"pool": layer.MaxPooling1D, "mean": layer.GlobalAveragePooling1D, "flatten": layer.Flatten}
            x = plain[kind](*numbers)(x)
    rng = np.random.default_rng(7)
    for kind in ("float", "int8"):
        converter = tf.lite.TFLiteConverter.from_keras_model(tf.keras.Model(given, x))
        if kind == "int8":
            converter.optimizations = [tf.lite.Optimize.DEFAULT]
            converter.representative_dataset = lambda: (
                [rng.uniform(-1, 1, (1, steps, channels)).astype("float32")] for _ in range(8)
            )
            converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
            converter.inference_input_type = converter.inference_output_type = tf.int8
        (folder / f"{name}.{kind}.tflite").write_bytes(converter.convert())


WRITERS: dict[str, Callable[[Path, str], None]] = {"torch": write_torch, "keras": write_keras}


def main() -> None:
    folder, framework, names = Path(sys.argv[1]), sys.argv[2], sys.argv[3:] or list(NETWORKS)
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        WRITERS[framework](folder, name)


if __name__ == "__main__":
    main()
