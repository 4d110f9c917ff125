"""Networks along time as files: `python benchmarks/time_files.py FOLDER torch|keras [NAME ...]`.

With `torch`, writes each network of `time_networks.py` in float and int8 as `.onnx` (ONNX Runtime's quantizer) and `.pt2`
(torchao's PT2E); with `keras`, as `.tflite` (TFLite's converter). The frameworks are imported where they are used. Weights
and data are random, from a fixed seed. `time_doors.py` counts their plans.
"""

# pyright: reportMissingImports=false, reportMissingModuleSource=false
from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from time_networks import NETWORKS, Layer, Net

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"


def _torch_module(net: Net) -> Any:
    """Return a module over signals `[1, channels, steps]`."""
    import torch
    from torch import nn

    def made(layer: Layer) -> Any:
        """Return the module of a layer that has weights or a window; None of others."""
        width, numbers = net.widths[layer.reads[0]], layer.numbers
        if layer.kind == "conv":
            channels, window, stride, dilation = numbers
            padding = 0 if window == stride else window // 2 * dilation
            return nn.Conv1d(width, channels, window, stride, padding, dilation)
        if layer.kind == "depthwise":
            return nn.Conv1d(width, width, numbers[0], numbers[1], numbers[0] // 2, groups=width)
        if layer.kind == "causal":
            channels, window, dilation = numbers
            past = nn.ConstantPad1d(((window - 1) * dilation, 0), 0.0)
            return nn.Sequential(past, nn.Conv1d(width, channels, window, dilation=dilation))
        if layer.kind == "norm":
            norm: Any = nn.BatchNorm1d(width)
            with torch.no_grad():
                norm.running_mean.uniform_(-0.2, 0.2)
                norm.running_var.uniform_(0.05, 0.2)
            return norm
        modules: dict[str, Callable[[], Any]] = {
            "pool": lambda: nn.MaxPool1d(numbers[0]),
            "pool_same": lambda: nn.MaxPool1d(numbers[0], 1, numbers[0] // 2),
            "up": lambda: nn.ConvTranspose1d(width, numbers[0], 4, 2, 1),
            "dense": lambda: nn.Linear(width, numbers[0]),
            "lstm": lambda: nn.LSTM(width, numbers[0], batch_first=True),
            "layer_norm": lambda: nn.LayerNorm(width),
        }
        return modules[layer.kind]() if layer.kind in modules else None

    def computed(layer: Layer, module: Any, values: list[Any]) -> Any:
        x, *rest = (values[v] for v in layer.reads)
        if layer.kind == "lstm":
            return module(x.transpose(1, 2))[0][:, -1]
        if layer.kind == "layer_norm":
            return module(x.transpose(1, 2)).transpose(1, 2)
        if module is not None:
            return module(x)
        if layer.kind == "half":
            return x.chunk(2, 1)[layer.numbers[0]]
        if layer.kind == "attend":
            scores = torch.matmul(x.transpose(1, 2), rest[0]) * (x.shape[1] ** -0.5)
            return torch.matmul(torch.softmax(scores, -1), rest[1].transpose(1, 2)).transpose(1, 2)
        plain: dict[str, Callable[..., Any]] = {
            "relu": torch.relu,
            "sigmoid": torch.sigmoid,
            "tanh": torch.tanh,
            "softmax": lambda v: torch.softmax(v, 2),
            "mean": lambda v: v.mean(2),
            "max": lambda v: v.amax(2),
            "flatten": lambda v: v.flatten(1),
            "add": lambda v, w: v + w,
            "mul": lambda v, w: v * w,
            "concat": lambda *v: torch.cat(v, 1),
            "scale": lambda v, w: v * w[:, :, None],
            "weigh": lambda v, w: (v * w).sum(2),
        }
        return plain[layer.kind](x, *rest)

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.made = nn.ModuleList([made(layer) or nn.Identity() for layer in net.layers])

        def forward(self, *inputs: Any) -> Any:
            values = list(inputs)
            for layer, module in zip(net.layers, self.made, strict=True):
                values.append(computed(layer, None if isinstance(module, nn.Identity) else module, values))
            return values[-1]

    torch.manual_seed(7)
    return Network().eval()


def write_torch(folder: Path, name: str) -> None:
    """Write `.onnx` and `.pt2`."""
    import onnx
    import torch
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
    from torchao.testing.pt2e._xnnpack_quantizer import XNNPACKQuantizer, get_symmetric_quantization_config

    net = NETWORKS[name]()
    module, rng = _torch_module(net), np.random.default_rng(7)
    data = [[rng.uniform(-1, 1, (1, c, t)).astype("float32") for t, c in net.inputs] for _ in range(8)]
    example = tuple(torch.from_numpy(x) for x in data[0])
    names = [f"x{k}" if k else "x" for k in range(len(example))]
    path = {kind: str(folder / f"{name}.{kind}") for kind in ("float.onnx", "int8.onnx", "float.pt2", "int8.pt2")}
    torch.onnx.export(module, example, path["float.onnx"], input_names=names, output_names=["y"], opset_version=17,
                      dynamo=False)  # fmt: skip
    torch.export.save(torch.export.export(module, example), path["float.pt2"])

    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            self.left = iter([dict(zip(names, d, strict=True)) for d in data])

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
        prepared(*(torch.from_numpy(x) for x in d))
    torch.export.save(torch.export.export(convert_pt2e(prepared), example), path["int8.pt2"])


def _keras_layer(net: Net, layer: Layer, values: list[Any]) -> Any:
    import tensorflow as tf

    keras: Any = tf.keras.layers
    x, *rest = (values[v] for v in layer.reads)
    numbers, width = layer.numbers, net.widths[layer.reads[0]]
    if layer.kind == "conv":
        channels, window, stride, dilation = numbers
        return keras.Conv1D(channels, window, stride, "same", dilation_rate=dilation)(x)
    if layer.kind == "causal":
        return keras.Conv1D(numbers[0], numbers[1], padding="causal", dilation_rate=numbers[2])(x)
    if layer.kind == "norm":
        norm, rng = keras.BatchNormalization(epsilon=1e-5), np.random.default_rng(width)
        made = norm(x)
        mean, variance = rng.uniform(-0.2, 0.2, width), rng.uniform(0.05, 0.2, width)
        norm.set_weights([np.ones(width), np.zeros(width), mean, variance])
        return made
    if layer.kind == "attend":
        return keras.Attention(score_mode="dot")([x * width**-0.5, rest[1], rest[0]])
    plain: dict[str, Callable[[], Any]] = {
        "depthwise": lambda: keras.DepthwiseConv1D(numbers[0], numbers[1], "same")(x),
        "pool": lambda: keras.MaxPooling1D(numbers[0])(x),
        "pool_same": lambda: keras.MaxPooling1D(numbers[0], 1, "same")(x),
        "up": lambda: keras.Conv1DTranspose(numbers[0], 4, 2, "same")(x),
        "dense": lambda: keras.Dense(numbers[0])(x),
        "lstm": lambda: keras.LSTM(numbers[0], unroll=True)(x),
        "layer_norm": lambda: keras.LayerNormalization(epsilon=1e-5)(x),
        "half": lambda: x[..., numbers[0] * (width // 2) : (numbers[0] + 1) * (width // 2)],
        "softmax": lambda: keras.Softmax(axis=1)(x),
        "mean": lambda: keras.GlobalAveragePooling1D()(x),
        "max": lambda: keras.GlobalMaxPooling1D()(x),
        "flatten": lambda: keras.Flatten()(x),
        "add": lambda: keras.Add()([x, *rest]),
        "mul": lambda: keras.Multiply()([x, *rest]),
        "concat": lambda: keras.Concatenate()([x, *rest]),
        "scale": lambda: keras.Multiply()([x, keras.Reshape((1, width))(rest[0])]),
        "weigh": lambda: tf.keras.ops.sum(keras.Multiply()([x, rest[0]]), 1),
    }
    return plain[layer.kind]() if layer.kind in plain else keras.Activation(layer.kind)(x)


def write_keras(folder: Path, name: str) -> None:
    """Write `.tflite`."""
    import tensorflow as tf

    net = NETWORKS[name]()
    tf.keras.backend.clear_session()
    tf.keras.utils.set_random_seed(7)
    inputs = [tf.keras.Input(batch_shape=(1, *shape), name=f"x{k}") for k, shape in enumerate(net.inputs)]
    values: list[Any] = list(inputs)
    for layer in net.layers:
        values.append(_keras_layer(net, layer, values))
    rng = np.random.default_rng(7)
    for kind in ("float", "int8"):
        converter = tf.lite.TFLiteConverter.from_keras_model(tf.keras.Model(inputs, values[-1]))
        if kind == "int8":
            converter.optimizations = [tf.lite.Optimize.DEFAULT]
            converter.representative_dataset = lambda: (
                {f"x{k}": rng.uniform(-1, 1, (1, *shape)).astype("float32") for k, shape in enumerate(net.inputs)}
                for _ in range(8)
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
