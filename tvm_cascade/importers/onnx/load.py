"""Import of `.onnx` files into Relax: float, QDQ (QuantizeLinear and DequantizeLinear) and QLinear networks.

QLinear operators are rewritten as QDQ first (`onnx_qoperators`), of which Relax's importer makes islands (`passes.islands`);
`channels_last` and `biases` then bring quantized networks into the form that `passes.LowerQuantized` takes. The `onnx`
package is an optional dependency.
"""

from __future__ import annotations

import contextlib
import io
import logging
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import tvm

from tvm_cascade import extras
from tvm_cascade.errors import CascadeError, LoadError, MissingToolError, UnsupportedOperatorError, UsageError
from tvm_cascade.importers.biases import store_biases
from tvm_cascade.importers.file_names import with_file_names
from tvm_cascade.importers.interface import (
    MAX_ELEMENTS,
    check_input,
    check_inputs,
    check_open_sizes,
    check_sizes,
    fits,
    io_spec,
    tensor_spec,
    with_interface,
)
from tvm_cascade.importers.limits import check_scales
from tvm_cascade.importers.onnx.file import read_model
from tvm_cascade.messages import last_line, printable
from tvm_cascade.passes.earlier_quantize import with_earlier_quantize
from tvm_cascade.passes.folded_pads import with_folded_pads
from tvm_cascade.passes.integer.expressions import dtype_of, shape_of
from tvm_cascade.passes.last_steps import with_last_steps
from tvm_cascade.passes.later_requantize import with_later_requantize
from tvm_cascade.passes.layout.channels_last import to_channels_last
from tvm_cascade.passes.lower_quantized import with_real_operators
from tvm_cascade.passes.main_rewriting import bindings_of, is_quantized
from tvm_cascade.passes.small_weights import with_small_floats, with_small_weights
from tvm_cascade.program.quant import NotLowered
from tvm_cascade.tensor_spec import TensorSpec

if TYPE_CHECKING:
    from tvm_cascade.importers.onnx.origin import Origin

LOG = logging.getLogger("tvm_cascade")
_MOST_AXES = 1 << 10  # far above the rank of any tensor


def load_onnx(
    path: Path, data: bytes, input_shapes: Mapping[str, tuple[int, ...]], unrolled: bool = False
) -> tvm.IRModule:
    """Load an `.onnx` file, see `tvm_cascade.frontend.load`. `input_shapes` must give symbolic sizes, except a leading
    batch, which is 1.

    Raises
    ------
    MissingToolError
        Without the `onnx` package.
    """
    return load_model(path, read_model(path, data), input_shapes, unrolled=unrolled)


def load_model(
    path: Path,
    model: Any,
    input_shapes: Mapping[str, tuple[int, ...]],
    origin: Origin | None = None,
    unrolled: bool = False,
) -> tvm.IRModule:
    """Import a model in memory, made from `origin`; None if the file holds the model itself.

    Raises
    ------
    MissingToolError
        Without the `onnx` package.
    """
    try:
        from tvm.relax.frontend.onnx.onnx_frontend import _get_convert_map

        from tvm_cascade.importers.onnx.block_gathers import with_gathers
        from tvm_cascade.importers.onnx.control import without_control
        from tvm_cascade.importers.onnx.converters import CONVERTERS
        from tvm_cascade.importers.onnx.functions import expand_functions
        from tvm_cascade.importers.onnx.graph import in_order, narrow_indices
        from tvm_cascade.importers.onnx.halves import as_floats, small_kinds
        from tvm_cascade.importers.onnx.origin import OnnxFile
        from tvm_cascade.importers.onnx.qoperators import spell_out
        from tvm_cascade.importers.onnx.scans import BODIES
        from tvm_cascade.importers.onnx.small_integers import widened
        from tvm_cascade.importers.onnx.tables import with_tables
    except ImportError as error:
        raise MissingToolError("onnx", extras.remedy("onnx")) from error
    BODIES.load = load_model
    try:
        if not model.graph.node:
            empty = "its graph has no operator: there is nothing to compute"
            raise LoadError(path, empty if model.graph.output else "not an ONNX model: it has no graph")
        _check_axes(path, model)
        given = in_order(path, model)
        file = OnnxFile(given) if origin is None else origin
        wide = widened(path, with_gathers(path, given))
        model = spell_out(with_tables(as_floats(narrow_indices(wide), eights=True)))
        shapes, known = _static_shapes(path, model, input_shapes), {**_get_convert_map(), **CONVERTERS}
        spelled = without_control(expand_functions(path, model, shapes, known), shapes, unrolled)
        model = spell_out(in_order(path, expand_functions(path, spelled, shapes, known)))
        _check_filled(path, model)
        _check_loops(path, file, model, shapes)
        _check_operators(path, file, model, known)
        ready, imported, values = _imported_by_shapes(path, file, given, model, shapes)
        imported = with_last_steps(imported)
        check_sizes(path, imported)
        _check_static(path, imported, file, lambda: _computed(path, file, given, ready, shapes))
        if is_quantized(imported):
            check_scales(path, imported)
        imported = with_folded_pads(imported)
        if is_quantized(imported):
            imported = with_later_requantize(with_earlier_quantize(to_channels_last(store_biases(imported))))
        finished = _finished(path, file, imported, _Outputs(path, model, shapes, values))
        read = with_small_floats(finished, small_kinds(given))
        return read if wide is given else with_small_weights(read)
    except CascadeError:
        raise
    except Exception as error:  # the importer signals malformed operators by whatever breaks first
        raise LoadError(path, f"the importer cannot read it: {last_line(error)}") from error


def _imported_by_shapes(
    path: Path,
    file: Origin,
    given: Any,
    model: Any,
    shapes: Mapping[str, Sequence[int]],
    computed: Mapping[str, tuple[int, ...]] | None = None,
    more: int = 3,
) -> tuple[Any, tvm.IRModule, Mapping[str, Any]]:
    """Return `model` with folded sizes, its import, and the expressions of its tensors.

    Sizes fold by inferred shapes. Where ONNX's inference counts otherwise (rounded scales, SAME padding), import again, up to
    `more` times, by the shapes that the importer computes (`computed`).
    """
    from tvm_cascade.importers.onnx.converters import Importer
    from tvm_cascade.importers.onnx.empty import without_empty
    from tvm_cascade.importers.onnx.folding import constant_operands, fold_shapes
    from tvm_cascade.importers.onnx.origin import OnnxFile

    computed = computed or {}
    ready = constant_operands(without_empty(fold_shapes(model, shapes, computed), shapes))
    importer = Importer({name: list(shape) for name, shape in shapes.items()}, "float32")
    importer.of_torch = not isinstance(file, OnnxFile)
    try:
        imported = _imported(path, importer, file, given, ready)
    except LoadError:
        differing = _differing_shapes(model, ready, computed, importer.values) if more else {}
        if not differing:
            raise
    else:
        differing = _differing_shapes(model, ready, computed, importer.values) if more else {}
        if not differing:
            return ready, imported, importer.values
    return _imported_by_shapes(path, file, given, model, shapes, {**computed, **differing}, more - 1)


def _differing_shapes(
    model: Any, folded: Any, assumed: Mapping[str, tuple[int, ...]], computed: Mapping[str, Any]
) -> dict[str, tuple[int, ...]]:
    """Return the shapes of `computed` expressions, by name, whose sizes were folded by other shapes in `folded`: `assumed`,
    or inferred.
    """
    from tvm_cascade.importers.onnx.folding import sized_tensors, static_shapes

    names = [name for name in sized_tensors(model, folded) if name in computed]
    known = {**static_shapes(folded), **assumed} if names else {}
    made = {}
    for name in names:
        with contextlib.suppress(NotLowered):
            made[name] = shape_of(computed[name])
    return {name: shape for name, shape in made.items() if shape != known.get(name)}


def _imported(path: Path, importer: Any, file: Origin, given: Any, model: Any) -> tvm.IRModule:
    """Run the importer without its output and warnings. An error names the operator, only printed by the importer, and
    the cut in front. `given` is the model before all passes, `model` the rest to import.
    """
    if model.ir_version < 3:
        raise LoadError(path, f"ONNX of version {model.ir_version} of its format: convert it to version 3 or later")
    opset = next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), 1)
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            mod = importer.from_onnx(model.graph, opset)
        return with_file_names(mod, importer.values, file.graph)
    except Exception as error:  # the importer signals malformed operators by whatever breaks first
        if computed := _computed(path, file, given, model):
            raise computed from error
        undone = [k for k, n in enumerate(model.graph.node) if not importer.values.keys() >= {*n.output[:1]}][:1]
        if lost := re.search(r"Missing outputs during conversion.* in (\w+)", str(error)):
            names = file.kinds(model, undone) or [lost[1]]
            raise LoadError(path, f"operator {lost[1]} with its later outputs is not supported", "", names) from error
        at = re.search(r"Error converting operator (\w+)", said.getvalue())
        known = isinstance(error, (NotImplementedError, tvm.error.OpNotImplemented)) or _is_valid(model)
        what = "has a form that is not supported" if known else "is malformed"
        where = f"operator {at[1]} {what}" if at else "the importer cannot read it"
        why = _missing(error.args[0]) if isinstance(error, KeyError) else last_line(error)
        remedy = file.remedy(model, undone)
        remedy = remedy if known else ("", remedy.operators)
        raise LoadError(path, f"{where}: {why}", *remedy) from error


def _missing(key: object) -> str:
    """Say what a converter looked for in vain: an attribute by its name, or an element type by its number."""
    return f"there is no element type {key}" if isinstance(key, int) else f"without the attribute {key}"


def _computed(
    path: Path, file: Origin, given: Any, model: Any, shapes: Mapping[str, Sequence[int]] | None = None
) -> LoadError | None:
    """Return the error for the first operator with a computed operand that has to be constant; with input `shapes` also
    for the first value-dependent output shape. None without either.
    """
    from tvm_cascade.importers.onnx.folding import computed_shape
    from tvm_cascade.importers.onnx.graph import computed_operand, computed_window

    found = computed_operand(model) or (None if shapes is None else computed_shape(model, shapes))
    if found is None:
        return None
    if window := computed_window(given, model):
        model, found = given, window
    until, operators = file.remedy(model, [found[0]])
    return LoadError(path, f"{found[1]}{file.sizes_remedy}", until and f"or {until}", operators)


def _is_valid(model: Any) -> bool:
    """Return True if a model agrees with its operators' definitions; operators in other domains may have any form."""
    from onnx import checker, shape_inference

    try:
        checker.check_model(model)
        shape_inference.infer_shapes(model, strict_mode=True)
    except (checker.ValidationError, shape_inference.InferenceError):
        return False
    return True


def _check_loops(path: Path, file: Origin, model: Any, shapes: Mapping[str, Sequence[int]]) -> None:
    from tvm_cascade.importers.onnx.control import remaining_loop

    if found := remaining_loop(model, shapes):
        raise LoadError(path, found[1], *file.remedy(model, [found[0]]))


def _check_operators(path: Path, file: Origin, model: Any, known: Mapping[str, object]) -> None:
    missing = [k for k, n in enumerate(model.graph.node) if n.op_type not in (*known, "Constant")]
    if missing:
        names = [printable(name) for name in file.kinds(model, missing)]
        raise UnsupportedOperatorError(path, names, sorted(known), remedy=file.remedy(model, missing).text)


def _check_static(path: Path, mod: Any, file: Origin, computed: Callable[[], LoadError | None]) -> None:
    """Raise `LoadError` for a tensor without a static shape: the inputs' shapes are known here. `computed` may say why."""
    for binding in bindings_of(mod["main"]):
        if hasattr(binding.var.ty, "dtype") and hasattr(binding.var.ty, "shape"):
            try:
                tensor_spec(path, str(binding.var.name), binding.var.ty, file.sizes_remedy)
            except LoadError as error:
                why = computed()
                if why is None:
                    raise
                raise why from error


def _check_filled(path: Path, model: Any) -> None:
    """Raise `LoadError` for a ConstantOfShape beyond `MAX_ELEMENTS`: the importer would allocate it."""
    from onnx import numpy_helper

    given = {w.name: w for w in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "ConstantOfShape" and node.input and node.input[0] in given:
            shape = [int(d) for d in numpy_helper.to_array(given[node.input[0]]).reshape(-1)]
            if any(d < 0 for d in shape) or prod(shape) > MAX_ELEMENTS:
                raise LoadError(
                    path, f"a constant of shape {shape} exceeds {MAX_ELEMENTS} elements", "", [node.op_type]
                )


def _check_axes(path: Path, model: Any) -> None:
    """Raise `LoadError` for an axis that no tensor has: ONNX's shape inference narrows it to 32 bits, and may crash."""
    for node in model.graph.node:
        for attribute in node.attribute:
            axes = {"axis": [attribute.i], "axes": list(attribute.ints)}.get(attribute.name, [])
            if far := [a for a in axes if abs(a) > _MOST_AXES]:
                what = f"operator {printable(node.op_type)} has the {attribute.name} {far[0]}"
                raise LoadError(path, what, "", [node.op_type])


def _static_shapes(path: Path, model: Any, wanted: Mapping[str, tuple[int, ...]]) -> dict[str, list[int]]:
    """Return every input's shape, with symbolic sizes replaced by `wanted`, and a leading batch by 1."""
    inputs = _inputs(model)
    check_inputs(wanted, [i.name for i in inputs])
    sizes = {i.name: _sizes(path, i, wanted.get(i.name)) for i in inputs}
    check_open_sizes(path, sizes)
    shapes = {name: [1 if isinstance(d, str) else d for d in shape] for name, shape in sizes.items()}
    for name, shape in shapes.items():
        if prod(shape) > MAX_ELEMENTS:
            raise LoadError(path, f"input {printable(name)} of shape {shape} exceeds {MAX_ELEMENTS} elements")
    return shapes


def _sizes(path: Path, value: Any, wanted: tuple[int, ...] | None) -> Sequence[int | str]:
    """Return an input's sizes: from `wanted`, or from the file, where a text names an unknown size."""
    if not value.type.tensor_type.elem_type:
        raise LoadError(path, f"input {value.name} has no element type: name one in the model's graph input")
    dims = value.type.tensor_type.shape.dim
    stored = [d.dim_value if d.HasField("dim_value") and d.dim_value > 0 else None for d in dims]
    if wanted is None:
        if None in stored[1:] and all(d.HasField("dim_value") for d in dims):
            sizes = [int(d.dim_value) for d in dims]
            check_input(path, value.name, sizes, f"give larger ones with --input-shape {value.name}=...")
        names = [d.dim_param or str(d.dim_value or "?") for d in dims]
        return [name if size is None else int(size) for size, name in zip(stored, names, strict=True)]
    if any(d < 1 for d in wanted):
        raise UsageError(f"input {value.name} has the shape {list(wanted)}: give positive sizes")
    if not fits(wanted, stored):
        raise UsageError(f"input {value.name} has the shape {stored} in the file, not {list(wanted)}")
    return list(wanted)


def _finished(path: Path, file: Origin, mod: tvm.IRModule, outputs: _Outputs) -> tvm.IRModule:
    names = [i.name for i in _inputs(outputs.model)]
    if len(names) != len(mod["main"].params):
        raise LoadError(path, "the importer lost an input")
    made = with_interface(path, mod, names, file.returned, file.sizes_remedy)
    for declared, computed in zip(outputs.model.graph.output, io_spec(made).outputs, strict=True):
        outputs.check(declared, computed)
    return with_real_operators(made)


@dataclass(frozen=True, slots=True)
class _Outputs:
    """Compares the outputs that a file declares with those computed. `values` has the expressions of its tensors by name."""

    path: Path
    model: Any
    shapes: Mapping[str, Sequence[int]]
    values: Mapping[str, Any]

    def check(self, declared: Any, computed: TensorSpec) -> None:
        """Raise `LoadError` if a file declares another output type than its operators compute, or another shape not settled
        by ONNX's rules. Files with stale shapes are common, and run elsewhere: a warning names the shape.
        """
        from onnx.helper import tensor_dtype_to_np_dtype

        kind, name = declared.type.tensor_type, printable(declared.name)
        known = [d.dim_value if d.dim_value > 0 else None for d in kind.shape.dim]
        if kind.HasField("shape") and not fits(computed.shape, known):
            text = ", ".join("?" if d is None else str(d) for d in known)
            what = f"output {name} has the shape [{text}] in the file, {list(computed.shape)} computed"
            if self._inferred(declared.name) not in (None, computed.shape):
                raise LoadError(self.path, what)
            LOG.warning("%s: %s, which is taken", self.path, what)
        dtype = tensor_dtype_to_np_dtype(kind.elem_type).name if kind.elem_type else computed.dtype
        if dtype != computed.dtype:
            raise LoadError(self.path, f"output {name} is {dtype} in the file, {computed.dtype} computed")

    def _inferred(self, name: str) -> tuple[int, ...] | None:
        from onnx.helper import make_tensor_value_info, np_dtype_to_tensor_dtype

        from tvm_cascade.importers.onnx.folding import counted_otherwise, inferred_output

        computed = {}
        for tensor in counted_otherwise(self.model):
            with contextlib.suppress(
                NotLowered, KeyError, TypeError
            ):  # not converted, open, or of a type unknown to numpy
                shape = shape_of(self.values[tensor])
                dtype = np_dtype_to_tensor_dtype(np.dtype(dtype_of(self.values[tensor])))
                computed[tensor] = make_tensor_value_info(tensor, dtype, shape)
        return inferred_output(self.model, self.shapes, name, computed)


def _inputs(model: Any) -> list[Any]:
    """Return the true inputs: initializers may be listed as inputs too."""
    weights = {w.name for w in model.graph.initializer}
    return [i for i in model.graph.input if i.name not in weights]
