"""How far single roundings move the outputs of a float network, and the evaluators of files.

With reassociated sums, a float network may differ from its reference by a multiple of what happens where its inputs
move by one unit in the last place. Quantized networks are held to `checking.doubles`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from tvm_cascade.importers.onnx.file import read_model
from tvm_cascade.importers.torch.archive import open_program
from tvm_cascade.importers.torch.package import torch_package
from tvm_cascade.tensor_spec import unique_names

Arrays = Mapping[str, np.ndarray]
_INT64 = 7  # onnx.TensorProto.INT64
_STANDARD = ("QLinearConv", "QLinearMatMul")  # operators of ONNX itself, which the evaluator implements


def quantizes(path: Path) -> bool:
    """Return True if an ONNX or torch network stores integers that it computes."""
    if path.suffix == ".pt2":
        return any(_is_quantize(node.target) for node in read_program(path).graph.nodes)
    from tvm_cascade.importers.onnx.qoperators import RULES

    model = read_model(path)
    nodes = [node for graph in (model.graph, *model.functions) for node in graph.node]
    for node in nodes:  # the list grows by the nodes of bodies
        nodes += [inner for a in node.attribute for graph in (a.g, *a.graphs) for inner in graph.node]
    return any(node.op_type == "QuantizeLinear" or node.op_type in RULES for node in nodes)


def moved_inputs(inputs: Arrays, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Return inputs with every float moved by one unit in the last place, up or down, within the array's range."""
    return {name: _moved(a, rng) if a.dtype.kind == "f" and a.size else a for name, a in inputs.items()}


def _moved(array: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    low, high = (bound.reduce(array, axis=None) for bound in (np.fmin, np.fmax))  # NaN stays alone
    toward = np.where(rng.random(array.shape) < 0.5, low, high).astype(array.dtype)
    return np.where(array == 0, array, np.nextafter(array, toward))


def onnx_evaluator(path: Path) -> Any:
    """Make ONNX's evaluator for a file; expand QLinear operators missing there to QDQ."""
    from onnx.reference import ReferenceEvaluator

    from tvm_cascade.importers.onnx.halves import as_floats
    from tvm_cascade.importers.onnx.qoperators import spell_out

    model = spell_out(as_floats(read_model(path)), keep=_STANDARD)
    old = any(o.domain in ("", "ai.onnx") and o.version < 19 for o in model.opset_import)
    return ReferenceEvaluator(model, new_ops=[max_pool(), *([_dequantize_linear()] if old else [])])


def in_own_types(model: Any, inputs: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
    """Convert indices to 64 bits if the ONNX model has int64 there: the compiled network takes 32 bits."""
    wide = {i.name for i in model.graph.input if i.type.tensor_type.elem_type == _INT64}
    return {name: a.astype("int64") if name in wide and a.dtype == np.int32 else a for name, a in inputs.items()}


def max_pool() -> Any:
    """Define MaxPool with pads that differ by side, of which the evaluator gets even the shape wrong: of a padded input."""
    from onnx.reference.ops.op_max_pool import MaxPool as Evaluated

    class MaxPool(Evaluated):
        op_domain = ""

        def _run(self, x: Any, pads: Any = None, ceil_mode: Any = None, **rest: Any) -> Any:
            sides = list(pads or ())
            rank = len(sides) // 2
            if (
                sides[:rank] != sides[rank:]
                and not ceil_mode
                and x.dtype.kind == "f"
                and len(self.onnx_node.output) == 1
            ):
                widths = [(0, 0), (0, 0), *zip(sides[:rank], sides[rank:], strict=True)]
                x, pads = np.pad(x, widths, constant_values=-np.inf), [0] * len(sides)
            return super()._run(x, pads=pads, ceil_mode=ceil_mode, **rest)

    return MaxPool


def _dequantize_linear() -> Any:
    """Define DequantizeLinear for opsets before 19, missing in the evaluator: opset 19's operator without the new
    attributes.
    """
    from onnx.reference.ops.op_dequantize_linear import DequantizeLinear_19

    class DequantizeLinear(DequantizeLinear_19):
        op_domain = ""

        def _run(self, *args: Any, axis: int = 1, **_later: object) -> Any:
            return super()._run(*args, axis=axis)

    return DequantizeLinear


def read_program(path: Path) -> Any:
    """Read the program in a `.pt2` file, to inspect or run it: once while the file stays the same.

    The buffers are reset to the file's, whatever a run has written there.
    """
    seen = path.stat()
    program, buffers = _read_program(str(path), seen.st_mtime_ns, seen.st_size)
    for name, value in program.named_buffers():
        value.copy_(buffers[name])
    return program


@lru_cache(maxsize=1)
def _read_program(path: str, _changed: int, _size: int) -> tuple[Any, dict[str, Any]]:
    program = open_program(Path(path).read_bytes())
    return program, {name: value.clone() for name, value in program.named_buffers()}


def _is_quantize(target: object) -> bool:
    return ".quantize_per_tensor" in str(target)


def run_exported(
    exported: Any,
    inputs: Mapping[str, np.ndarray],
    module: Any = None,
    flat: Callable[[Any, list[Any]], Any] | None = None,
) -> dict[str, np.ndarray]:
    """Run a torch.export program and return outputs by name, without None.

    `module` is the program's own, newly made if None. `flat` runs in place of the module, with the inputs taken out of
    all tuples, lists, dicts and keywords.
    """
    torch, signature = torch_package(), exported.graph_signature
    tree, made = torch.utils._pytree, torch.export.graph_signature
    module = exported.module() if module is None else module
    given = [spec.arg for spec in signature.input_specs if spec.kind is made.InputKind.USER_INPUT]
    values = [
        arg.value if isinstance(arg, made.ConstantArgument) else torch.from_numpy(np.array(inputs[str(arg.name)]))
        for arg in given
    ]
    with torch.no_grad():
        if flat is not None:
            outputs = flat(module, values)
        else:
            args, kwargs = tree.tree_unflatten(values, exported.call_spec.in_spec)
            outputs = module(*args, **kwargs)
    leaves = zip(signature.user_outputs, tree.tree_leaves(outputs), strict=True)
    kept = [(str(name), value) for name, value in leaves if value is not None]
    names = unique_names(name for name, _ in kept)
    return {n: value.detach().numpy() for n, (_, value) in zip(names, kept, strict=True)}
