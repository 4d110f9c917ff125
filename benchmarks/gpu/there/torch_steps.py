"""Steps that run PyTorch, in processes of their own, without TVM. A rehearsal runs the small network on the CPU."""

# torch is an extra.
# pyright: reportMissingImports=false, reportOptionalMemberAccess=false
from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch_graph
from packed import NETWORKS, SMALL, TOLERANCES, Packed, relative_error, summary, unpack
from torch_graph import torch
from tvm_steps import Call, Row

LAYOUTS = ("contiguous", "channels_last")
LIBRARY = ("conv2d", "matmul")  # kinds that cuDNN and cuBLAS have kernels of
PRECISIONS = ("float32", "float16")  # of `operators` and of batches; bfloat16 has the same kernels as float16
COPIES = 16  # of an operator in one CUDA graph
Run = Callable[[], Any]
TOLERANCE = TOLERANCES["fp32"]


def _models(call: Call, names: list[str]) -> list[tuple[Packed, Any, list[Any]]]:
    """Networks with their modules and inputs, on the GPU; the small one on the CPU in a rehearsal."""
    place = "cpu" if call.rehearsal else "cuda"
    models = []
    for name in [SMALL] if call.rehearsal else names:
        packed = unpack(name, call.work)
        model = torch_graph.module(packed.record, packed.arrays("constants")).to(place).eval()
        models.append((packed, model, [torch.from_numpy(x).to(place) for x in packed.arrays("inputs")]))
    torch.backends.cudnn.benchmark = True  # the fastest of cuDNN's algorithms, as its users ask for
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False  # float32, as the others
    return models


def _without_torch(call: Call, names: list[str]) -> list[Row] | None:
    """What a rehearsal can check of records where PyTorch is missing; None where it is installed."""
    if torch is not None:
        return None
    if not call.rehearsal:
        return [{"wrong": "PyTorch is not installed"}]
    rows = []
    for name in names:
        record = unpack(name, call.work).record
        missing = sorted(torch_graph.unknown(record))
        row: Row = {"network": name, "operators": len(record["nodes"]), "note": "PyTorch is not installed: read only"}
        rows.append(row | ({"wrong": f"operators without a counterpart: {', '.join(missing)}"} if missing else {}))
    return rows


def _outputs(result: Any) -> list[np.ndarray]:
    return [x.float().cpu().numpy() for x in (result if isinstance(result, tuple) else (result,))]


def _times(call: Call, run: Run, runs: int) -> dict[str, Any]:
    """Times of a call, each waited for."""
    wait = (lambda: None) if call.rehearsal else torch.cuda.synchronize
    for _ in range(20):
        run()
    times: list[float] = []
    while len(times) < call.runs(runs) and (len(times) < 25 or sum(times) < 3e3):
        wait()
        start = time.perf_counter()
        run()
        wait()
        times.append((time.perf_counter() - start) * 1e3)
    return summary(times)


def reference(call: Call) -> list[Row]:
    """PyTorch's outputs against the expected ones; kept for the step `correctness`."""
    without = _without_torch(call, [SMALL, *NETWORKS])
    if without is not None:
        return without
    rows, held = [], {}
    with torch.inference_mode():
        for packed, model, inputs in _models(call, [SMALL, *NETWORKS]):
            outputs = _outputs(model(*inputs))
            held |= {f"{packed.name}/{k}": x for k, x in enumerate(outputs)}
            error = relative_error(outputs, packed.arrays("expected"))
            wrong = {"wrong": f"differs by more than {TOLERANCE}"} if error > TOLERANCE else {}
            rows.append({"network": packed.name, "relative_error": error, **wrong})
    np.savez(call.reference, **held)
    return rows


def eager(precision: str) -> Callable[[Call], list[Row]]:
    """The step that times PyTorch operator by operator, and captured into one CUDA graph by layout."""

    def step(call: Call) -> list[Row]:
        without = _without_torch(call, NETWORKS)
        if without is not None:
            return without
        with torch.inference_mode():
            return [row for made in _models(call, NETWORKS) for row in _eager(call, precision, *made)]

    return step


def _eager(call: Call, precision: str, packed: Packed, model: Any, inputs: list[Any]) -> Iterator[Row]:
    """Times of one network in one precision."""
    model, inputs = _cast("float32" if call.rehearsal else precision, model, inputs)
    row = {"network": packed.name, "precision": precision}
    yield {**row, "torch": "eager", **_times(call, lambda: model(*inputs), 200)}
    for layout in () if call.rehearsal else LAYOUTS:
        held = _laid_out(model, inputs, layout)
        yield {**row, "torch": f"graph, {layout}", **_times(call, _graph(model, held).replay, 500)}


def batched(name: str) -> Callable[[Call], list[Row]]:
    """The step that times a network for several images, in both precisions."""

    def step(call: Call) -> list[Row]:
        without = _without_torch(call, [name])
        if without is not None:
            return without
        with torch.inference_mode():
            return [
                {"batch": packed.about["batch"]} | row
                for packed, model, inputs in _models(call, [name])
                for precision in PRECISIONS
                for row in _eager(call, precision, packed, model, inputs)
            ]

    return step


def _laid_out(model: Any, inputs: list[Any], layout: str) -> list[Any]:
    """Inputs in a layout, and the module's weights after the call."""
    for name, buffer in list(model.named_buffers()):
        setattr(model, name, _in_order(buffer, layout))
    return [_in_order(x, layout) for x in inputs]


def _in_order(x: Any, layout: str) -> Any:
    """The tensor with its bytes in a layout of `LAYOUTS`; only images have channels."""
    order = torch.channels_last if layout == "channels_last" else torch.contiguous_format
    return x.contiguous(memory_format=order) if x.dim() == 4 else x


def _cast(precision: str, model: Any, inputs: list[Any]) -> tuple[Any, list[Any]]:
    tf32 = precision == "tf32"
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
    dtype = torch.float32 if tf32 else getattr(torch, precision)
    return model.to(dtype), [x.to(dtype) for x in inputs]


def _graph(model: Any, inputs: list[Any]) -> Any:
    """The module captured into a CUDA graph, after runs on another stream."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            model(*inputs)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        model(*inputs)
    return graph


def operators(call: Call) -> list[Row]:
    """Every distinct convolution and product alone, in copies in one CUDA graph: cuDNN and cuBLAS by layout and precision."""
    without = _without_torch(call, NETWORKS)
    if without is not None:
        return without
    rows = []
    with torch.inference_mode():
        for precision in ("float32",) if call.rehearsal else PRECISIONS:
            seen: set[str] = set()
            for packed, model, inputs in _models(call, NETWORKS):
                model, inputs = _cast(precision, model, inputs)
                for node, operands in torch_graph.operands(packed.record, model, inputs):
                    row: Row = {
                        "kind": node["kind"],
                        "attrs": node["attrs"],
                        "shapes": [list(x.shape) for x in operands],
                    }
                    key = json.dumps(row)
                    if key in seen or node["kind"] not in LIBRARY:
                        continue
                    seen.add(key)
                    row |= {"network": packed.name, "precision": precision}
                    rows.append(row | _operator_times(call, node, operands))
    return rows


def _operator_times(call: Call, node: Any, operands: list[Any]) -> Row:
    """Milliseconds of one operator, its operands in the order of their axes, and with channels last."""
    found: Row = {}
    for layout in LAYOUTS:
        held = [_in_order(x, layout) for x in operands]
        if layout == "channels_last" and all(x.dim() != 4 for x in operands):
            continue

        def copies(*xs: Any) -> None:
            for _ in range(COPIES):
                torch_graph.OPERATORS[node["kind"]](node["attrs"], *xs)

        run = (lambda h=held: copies(*h)) if call.rehearsal else _graph(copies, held).replay
        found[layout] = _times(call, run, 20)["median_ms"] / COPIES
    return found


def compiled(name: str, precision: str, mode: str) -> Callable[[Call], list[Row]]:
    """The step that times `torch.compile(mode=mode)` of one network; outputs are compared in float32."""

    def step(call: Call) -> list[Row]:
        without = _without_torch(call, [name])
        if without is not None:
            return without
        rows = []
        with torch.inference_mode():
            for packed, model, inputs in _models(call, [name]):
                model, inputs = _cast("float32" if call.rehearsal else precision, model, inputs)
                inputs = _laid_out(model, inputs, "contiguous" if call.rehearsal else "channels_last")
                made = torch.compile(model, **({"backend": "eager"} if call.rehearsal else {"mode": mode}))
                start = time.perf_counter()
                for _ in range(3):
                    outputs = _outputs(made(*inputs))
                row: Row = {"network": packed.name, "precision": precision, "torch": f"compile, {mode}"}
                row |= {"compile_s": round(time.perf_counter() - start, 1)}
                row["relative_error"] = relative_error(outputs, packed.arrays("expected"))
                if precision == "float32" and row["relative_error"] > TOLERANCE:
                    row["wrong"] = f"differs by more than {TOLERANCE}"
                rows.append(row | _times(call, lambda m=made, x=inputs: m(*x), 500))
        return rows

    return step
