"""Import of `.tflite` files into Relax modules."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import tvm
from tvm.relax.frontend.tflite import from_tflite as import_tflite
from tvm.relax.frontend.tflite.tflite_frontend import get_tensor_name

from tvm_cascade.errors import CascadeError, LoadError, UnsupportedOperatorError, UsageError
from tvm_cascade.fixed_inputs import FixedInput
from tvm_cascade.importers.cut import Remedy, behind, until_in_front
from tvm_cascade.importers.file_names import with_graph
from tvm_cascade.importers.interface import attach, check_input, check_inputs, check_open_sizes, check_sizes, fits
from tvm_cascade.importers.tflite.converter import Converter, Refused, Unsupported
from tvm_cascade.importers.tflite.coverage import NPU
from tvm_cascade.importers.tflite.cut import graph_of
from tvm_cascade.importers.tflite.kept import Variables
from tvm_cascade.importers.tflite.model import ELEMENT_TYPES, MalformedModel, Model, kind_of, open_model, original_name
from tvm_cascade.importers.tflite.states import file_states, with_state_ends
from tvm_cascade.messages import last_line, printable
from tvm_cascade.passes.casts import with_saturating_casts
from tvm_cascade.passes.folded_pads import with_folded_pads
from tvm_cascade.passes.last_steps import with_last_steps
from tvm_cascade.passes.lower_quantized import with_rounding_like
from tvm_cascade.passes.main_rewriting import blocks_closed
from tvm_cascade.passes.small_weights import with_small_floats, with_small_weights
from tvm_cascade.tensor_spec import IoSpec, TensorSpec, named_apart


def load_tflite(
    path: Path,
    data: bytes,
    input_shapes: Mapping[str, tuple[int, ...]],
    stateless: bool = False,
    fixed: Sequence[FixedInput] = (),
    unrolled: bool = False,
    like: str = "",
) -> tvm.IRModule:
    """Load a `.tflite` file, see `tvm_cascade.frontend.load`. Inputs in `fixed` stay module parameters, but read as
    constants.
    """
    try:
        model = open_model(data)
        states = file_states(model, recurrent=not stateless)
        model = with_state_ends(data, model, states) if states else model
    except MalformedModel as error:
        raise LoadError(path, printable(str(error))) from error
    try:
        spec = _with_input_shapes(path, model, _interface(path, model), input_shapes)
        missing: dict[int, str] = {}
        builders: list[Any] = []
        variables = Variables(states, stateless, unrolled, like)

        def made(*args: Any) -> Converter:
            one = Converter(*args, missing=missing, variables=variables)
            builders.append(one.bb)
            if len(builders) == 1:
                one.fix(fixed, spec.inputs)
            return one

        graph: Any = model.Subgraphs(0)
        shapes: Any = {get_tensor_name(graph, graph.Inputs(k)): s.shape for k, s in enumerate(spec.inputs)}
        converter: Any = made  # which the importer's own annotation wants to be a class
        with blocks_closed(builders):
            mod = import_tflite(model, shapes, op_converter=converter)
        if missing:
            raise _unsupported(path, model, missing, mod)
        check_sizes(path, mod)
        mod = with_graph(with_folded_pads(with_last_steps(mod)), graph_of(model))
        found = _with_computed_outputs(path, model, mod, spec)
        sizes = {s.name: i.bytes for s, i in zip(states, found.inputs[len(found.inputs) - len(states) :], strict=True)}
        read = attach(mod, replace(found, states=variables.declared(sizes), like=like))
        read = with_small_floats(with_rounding_like(with_saturating_casts(read), like), model.small_floats)
        return with_small_weights(read) if model.small_constants else read
    except CascadeError:
        raise
    except MalformedModel as error:
        raise LoadError(path, printable(str(error))) from error
    except Unsupported as error:
        raise _unsupported(path, model, error.operators) from error
    except Refused as error:
        text, operators = _until_in_front(model, error.at)
        remedy = text or ("convert the network again" if error.invalid else "")
        raise LoadError(path, printable(str(error)), remedy, operators) from error
    except Exception as error:  # the importer signals malformed operators by whatever breaks first
        raise LoadError(path, f"the importer cannot read it: {last_line(error)}") from error


def _unsupported(
    path: Path, model: Model, found: Mapping[int, str], partial: object = None
) -> UnsupportedOperatorError:
    described = dict.fromkeys(printable(text) for text in found.values())
    graph: Any = model.Subgraphs(0)
    kinds = dict.fromkeys(kind_of(model, graph.Operators(at)) for at in found)
    remedy = "give the .tflite file that Vela was given" if NPU in kinds else _until_in_front(model, found).text
    return UnsupportedOperatorError(path, [*kinds], supported_operators(), partial, remedy, [*described])


def _until_in_front(model: Model, refused: Collection[int]) -> Remedy:
    """Return the remedy for unconvertible operators at these positions: the `--until` in front."""
    graph = graph_of(model)
    return until_in_front(graph, behind(graph, refused), refused)


@cache
def supported_operators() -> tuple[str, ...]:
    """Return the names of importable TFLite operators, in alphabetic order."""
    return tuple(sorted(Converter(None, None, None, None).convert_map))


def _interface(path: Path, model: Model) -> IoSpec:
    graph = model.Subgraphs(0)
    inputs = [int(i) for i in graph.InputsAsNumpy()]
    outputs = [int(i) for i in graph.OutputsAsNumpy()]
    if not outputs:
        raise LoadError(path, "the model has no output")
    sides = [named_apart([_tensor_spec(path, model, i) for i in side]) for side in (inputs, outputs)]
    return IoSpec(sides[0], sides[1])


def _tensor_spec(path: Path, model: Model, index: int) -> TensorSpec:
    tensor = model.Subgraphs(0).Tensors(index)
    name = original_name(model, index)
    if tensor.Type() not in ELEMENT_TYPES:
        raise LoadError(path, f"tensor {name} has an element type that is not supported")
    shape = tuple(int(d) for d in tensor.ShapeAsNumpy())
    q = tensor.Quantization()
    scale = zero_point = None
    if q is not None and q.ScaleLength() == 1:
        scale = float(q.ScaleAsNumpy()[0])
        zero_point = int(q.ZeroPointAsNumpy()[0]) if q.ZeroPointLength() else 0
    return TensorSpec(name, shape, ELEMENT_TYPES[tensor.Type()], scale, zero_point)


def _with_computed_outputs(path: Path, model: Model, mod: tvm.IRModule, spec: IoSpec) -> IoSpec:
    """Return `spec` with output shapes computed by the imported operators. Raises `LoadError` against declared shapes;
    an open extent (-1 in the signature, 1 in the shape) or an empty shape may be anything.
    """
    graph = model.Subgraphs(0)
    result: Any = mod["main"].ret_ty
    types = list(result.fields) if hasattr(result, "fields") else [result]
    outputs = []
    for k, (declared, computed) in enumerate(zip(spec.outputs, types, strict=True)):
        shape = tuple(int(d) for d in computed.shape.values)
        tensor = graph.Tensors(graph.Outputs(k))
        if (tensor.ShapeLength() or tensor.ShapeSignatureLength()) and not fits(
            shape, _signature(tensor) or declared.shape
        ):
            at, kind = _producer(model, graph.Outputs(k))
            raise LoadError(
                path,
                f"output {printable(declared.name)} has the shape {list(declared.shape)} in the file, where operator {at}, "
                f"{kind}, computes {list(shape)}",
                "convert the network again",
                [kind],
            )
        outputs.append(replace(declared, shape=shape))
    return replace(spec, outputs=tuple(outputs))


def _producer(model: Model, tensor: int) -> tuple[int, str]:
    """Return the position and TFLite name of the operator that computes a tensor."""
    graph: Any = model.Subgraphs(0)
    for at in range(graph.OperatorsLength()):
        op = graph.Operators(at)
        if tensor in op.OutputsAsNumpy():
            return at, kind_of(model, op)
    raise AssertionError(f"tensor {tensor} is computed")


def _with_input_shapes(path: Path, model: Model, spec: IoSpec, wanted: Mapping[str, tuple[int, ...]]) -> IoSpec:
    """Return `spec` with the input shapes `wanted` for open extents; an open leading batch is 1."""
    check_inputs(wanted, [s.name for s in spec.inputs])
    graph = model.Subgraphs(0)
    known = [_known_shape(graph.Tensors(graph.Inputs(k)), declared) for k, declared in enumerate(spec.inputs)]
    open_sizes = {
        declared.name: [str(d) if d == -1 else d for d in shape]
        for declared, shape in zip(spec.inputs, known, strict=True)
        if declared.name not in wanted
    }
    check_open_sizes(path, open_sizes)
    inputs = []
    for declared, stored in zip(spec.inputs, known, strict=True):
        shape = wanted.get(declared.name)
        if shape is None:
            shape = declared.shape
            check_input(path, declared.name, shape)
        elif not fits(shape, stored):
            raise UsageError(
                f"input {declared.name} has the shape {list(stored)} in the file, not {list(shape)}: "
                "convert the model again with that shape"
            )
        inputs.append(replace(declared, shape=tuple(shape)))
    return replace(spec, inputs=tuple(inputs))


def _known_shape(tensor: Any, declared: TensorSpec) -> tuple[int, ...]:
    """Return an input's shape, with -1 for each open extent."""
    known = _signature(tensor)
    return known if len(known) == len(declared.shape) else declared.shape


def _signature(tensor: Any) -> tuple[int, ...]:
    """Return a tensor's shape with -1 for each open extent; empty if the file does not say."""
    return tuple(int(d) for d in tensor.ShapeSignatureAsNumpy()) if tensor.ShapeSignatureLength() else ()
