"""torchvision's networks through ONNX Runtime's quantizer: arena beside layer by layer, and what stays float.

`python benchmarks/torch_zoo.py FOLDER [NAMES]` exports each network with random weights to `.onnx` at 96x96, quantizes it
in both forms of ONNX Runtime (QDQ with int8, operator format with uint8 activations; per channel), compiles both for the
host with `--stored-io`, runs them against ONNX's own evaluator, and writes `benchmarks/results/torch_zoo.md`. torch,
torchvision, onnx and onnxruntime are tools of this benchmark. Files that lie in FOLDER already are not made again.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results" / "torch_zoo.md"
SIZE = 96
NAMES = (
    "efficientnet_b0", "mnasnet0_5", "mobilenet_v2", "mobilenet_v3_small", "regnet_x_400mf", "resnet18", "shufflenet_v2_x0_5",
    "squeezenet1_1",
)  # fmt: skip
HEAD = f"""# torchvision networks, int8 by ONNX Runtime's quantizer, {SIZE}x{SIZE}, batch 1

Random weights, random data for calibration. RAM in bytes, everything in the arena; inputs and outputs as stored integers
(`--stored-io`). "Floats" are operators that stay float. "Touched" and "executed" are measured in a run on the host; "steps"
is how far its largest difference from ONNX's evaluator, which computes in floats, lies in steps of the output's scale, and
"allowed" what turned roundings make of that evaluator's own results.

| network | form | layerwise | arena | factor | bound | MACs | touched | executed | floats | steps | allowed |
| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |
"""


def write_models(name: str, folder: Path) -> dict[str, Path]:
    """The network's files by form; made where they do not lie in `folder`."""
    paths = {"QDQ": folder / f"{name}.qdq_s8.onnx", "QLinear": folder / f"{name}.qop_u8s8.onnx"}
    if all(p.is_file() for p in paths.values()):
        return paths
    import numpy as np
    import onnx
    import torch
    import torchvision
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    torch.manual_seed(0)
    net = getattr(torchvision.models, name)(weights=None).eval()
    for layer in net.modules():
        if isinstance(layer, torch.nn.BatchNorm2d):
            layer.running_mean.normal_(0, 0.1)
            layer.running_var.uniform_(0.5, 1.5)
    shape = (1, 3, SIZE, SIZE)
    plain, ready = folder / f"{name}.onnx", folder / f"{name}.pre.onnx"
    torch.onnx.export(net, (torch.randn(shape),), plain, dynamo=True, external_data=False, verbose=False)
    quant_pre_process(plain, ready, skip_symbolic_shape=True)
    entry = onnx.load(ready).graph.input[0].name

    class Random(CalibrationDataReader):
        def __init__(self) -> None:
            draws = [np.random.default_rng(seed).uniform(-2, 2, shape).astype("float32") for seed in range(4)]
            self.left = iter([{entry: draw} for draw in draws])

        def get_next(self) -> Any:
            return next(self.left, None)

    forms: dict[str, tuple[Any, Any]] = {
        "QDQ": (QuantFormat.QDQ, QuantType.QInt8),
        "QLinear": (QuantFormat.QOperator, QuantType.QUInt8),
    }
    for form, path in paths.items():
        written, activations = forms[form]
        quantize_static(
            ready, path, Random(), quant_format=written, activation_type=activations,
            weight_type=QuantType.QInt8, per_channel=True,
        )  # fmt: skip
    return paths


def row(name: str, form: str, path: Path) -> str:
    """A line of the table."""
    import tvm_cascade
    from tvm_cascade.frontend import load
    from tvm_cascade.passes import LowerQuantized
    from tvm_cascade.passes.float_remains import float_remains

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    lower: Any = LowerQuantized()
    floats = len(float_remains(lower(load(path, stored_io=True))))
    with tempfile.TemporaryDirectory() as folder:
        compiled = tvm_cascade.compile(path, target="host", output=Path(folder) / "p", stored_io=True, progress=say)
        ran = tvm_cascade.run(Path(folder) / "p", check=path, progress=say)
    report = compiled.to_dict()
    layerwise, peak = report["baseline_peak_bytes"], report["peak_bytes"]
    step = ran.output_step
    steps, allowed = (
        "-" if value is None or not step else f"{value / step:.1f}" for value in (ran.max_abs_diff, ran.tolerance)
    )
    return (
        f"| {name} | {form} | {layerwise} | {peak} | {layerwise / peak:.2f}x | {report['search_bound_bytes']} | {report['macs']} "
        f"| {ran.arena_high_water_bytes} | {ran.executed_macs} | {floats} | {steps}{'' if ran.match else ' NO'} | {allowed} |"
    )


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", default=NAMES)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    rows: list[str] = []
    for name in args.names:
        for form, path in write_models(name, args.folder).items():
            rows.append(row(name, form, path))
            print(rows[-1], flush=True)
            RESULTS.write_text(HEAD + "\n".join(rows) + "\n")


if __name__ == "__main__":
    main()
