"""Import of `.pt2` files (torch.export) into Relax. Torch is an optional dependency, imported on use only.

Quantized networks are those of PT2E: `quantized_decomposed` quantize and dequantize operators around float ones. They
become Relax's own quantize and dequantize, which `passes.LowerQuantized` takes; `torch_quantized` has the converters.

Nothing of a file is executed: `torch_archive` reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tvm

from tvm_cascade.errors import CascadeError, LoadError, UnsupportedOperatorError, UsageError
from tvm_cascade.importers.biases import store_biases
from tvm_cascade.importers.channels_last import to_channels_last
from tvm_cascade.importers.constant_indices import wrap_indices
from tvm_cascade.importers.file_names import with_file_names
from tvm_cascade.importers.interface import (
    check_input,
    check_inputs,
    check_open_sizes,
    check_sizes,
    fits,
    with_interface,
)
from tvm_cascade.importers.torch.archive import RefusedArchive, open_program
from tvm_cascade.importers.torch.cut import graph_of, kind_of, until_before
from tvm_cascade.importers.torch.package import quietly, torch_package
from tvm_cascade.importers.torch.quantized import CONVERTERS
from tvm_cascade.importers.torch.recurrent import recurrent_converters, undecomposed
from tvm_cascade.importers.torch.refused import check_conditions, check_types
from tvm_cascade.importers.torch.states import Mutated, with_buffer_ends, with_buffer_states, without_none
from tvm_cascade.importers.values import blocks_closed, is_quantized, relax
from tvm_cascade.messages import last_line, printable
from tvm_cascade.passes.lower_quantized import with_real_operators
from tvm_cascade.tensor_spec import unique_names

# aten operators that are not decomposed, because they can be imported as they are
_KEPT = ("hardswish", "hardsigmoid", "hardtanh", "leaky_relu", "elu", "silu", "pad")


def load_torch(path: Path, data: bytes, input_shapes: Mapping[str, tuple[int, ...]]) -> tvm.IRModule:
    """See `tvm_cascade.frontend.load`. Symbolic sizes must be given by `input_shapes`, except a leading batch, which
    is 1.

    Raises
    ------
    MissingToolError
        Without torch.
    """
    torch = torch_package()
    from tvm.relax.frontend.torch.exported_program_translator import ExportedProgramImporter  # imports torch

    try:
        exported = open_program(data)
    except RefusedArchive as error:
        raise LoadError(path, str(error)) from error
    except Exception as error:  # zip, pickle and version errors, by version
        raise LoadError(path, f"not an archive of torch.export, or truncated: {last_line(error)}") from error
    try:
        with quietly():
            given, exported = exported, exported.run_decompositions(_decompositions(torch, exported))
            converters = {**CONVERTERS, **recurrent_converters(exported)}
            _check_operators(path, given, exported, converters)
            check_conditions(path, given, exported)
            exported, mutated = with_buffer_ends(without_none(exported))
            importer: Any = ExportedProgramImporter()
            importer.convert_map = _named(path, given, importer.convert_map)
            converters = _named(path, given, converters)
            with blocks_closed([importer.block_builder]):
                mod = importer.from_exported_program(exported, False, True, False, converters)
            check_types(path, given, exported, importer.env)
            mod = with_file_names(mod, _values(exported, importer.env), graph_of(given))
        return with_buffer_states(_finished(path, given, mod, input_shapes, mutated), mutated)
    except CascadeError:
        raise
    except Exception as error:  # the importer signals malformed operators by whatever breaks first
        raise LoadError(path, f"the importer cannot read it: {last_line(error)}") from error


def _values(exported: Any, converted: Mapping[Any, Any]) -> dict[str, Any]:
    """Return by node of the file what it was converted to: the last of the nodes that it was decomposed to."""
    sources = ((source.name, node) for node in exported.graph.nodes for source in node.meta.get("from_node", ()))
    return {name: converted.get(node) for name, node in sources}


def _decompositions(torch: Any, exported: Any) -> dict[Any, Any]:
    """Torch's default decompositions without the operators in `_KEPT`, and without recurrent ones of known sizes."""
    table = torch.export.default_decompositions()
    for name in _KEPT:
        packet = getattr(torch.ops.aten, name)
        for overload in packet.overloads():
            table.pop(getattr(packet, overload), None)
    for operator in undecomposed(torch, exported):
        table.pop(operator, None)
    return table


def _named(path: Path, given: Any, converters: Mapping[str, Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
    """Converters whose errors name the operators of the program, `given`, and the cut in front of them."""

    def named(convert: Callable[..., Any]) -> Callable[..., Any]:
        def converted(node: Any, *importer: Any) -> Any:
            try:
                return convert(node, *importer)
            except Exception as error:  # signals malformed operators by whatever breaks first
                remedy = until_before(given, [node])
                what = f"operator {printable(kind_of(node))} has a form that is not supported: {last_line(error)}"
                raise LoadError(path, what, remedy.text, remedy.operators or (kind_of(node),)) from error

        return converted

    return {name: named(convert) for name, convert in converters.items()}


def _check_operators(path: Path, given: Any, exported: Any, converters: Mapping[str, object]) -> None:
    """Raise `UnsupportedOperatorError` with the names of all operators that have no converter; `given` is the program of
    the file, before its decomposition."""
    from tvm.relax.frontend.torch.exported_program_translator import ExportedProgramImporter

    known = set(ExportedProgramImporter().convert_map) | set(converters)
    called = [n for n in exported.graph.nodes if n.op == "call_function"]
    missing = [n for n in called if kind_of(n) not in known]
    if missing:
        names = list(dict.fromkeys(printable(kind_of(n)) for n in missing))
        remedy, operators = until_before(given, missing)
        raise UnsupportedOperatorError(path, operators or names, sorted(known), remedy=remedy, described=names)


def _finished(
    path: Path, exported: Any, mod: Any, wanted: Mapping[str, tuple[int, ...]], mutated: Sequence[Mutated] = ()
) -> tvm.IRModule:
    """`mod` with static shapes, in the form that integer lowering takes, and with its interface attached."""
    mod = relax.transform.BindSymbolicVars(_sizes(path, mod["main"].params, wanted))(mod)
    mod = relax.transform.CanonicalizeBindings()(mod)
    mod = relax.transform.DeadCodeElimination()(mod)
    check_sizes(path, mod)
    mod = wrap_indices(mod)
    if is_quantized(mod):
        mod = to_channels_last(store_biases(mod))
    else:
        mod = relax.transform.FoldBatchnormToConv2D()(mod)
    inputs = [str(p.name) for p in mod["main"].params]
    own = unique_names(str(name) for name in exported.graph_signature.user_outputs if name is not None)
    outputs = [*(m.returned for m in mutated), *own]  # buffers in front change no name
    return with_real_operators(with_interface(path, mod, inputs, outputs))


def _sizes(path: Path, params: Any, wanted: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    """A number for every symbolic size: from the shapes `wanted`, else 1 for a leading batch."""
    given = {str(p.name): p for p in params}
    check_inputs(wanted, given)
    sizes: dict[str, int] = {}
    for name, param in given.items():
        stored, chosen = list(param.ty.shape.values), wanted.get(name)
        symbols = {axis: str(d) for axis, d in enumerate(stored) if not hasattr(d, "value")}
        if chosen is None:
            check_input(path, name, [1 if axis in symbols else int(d) for axis, d in enumerate(stored)])
            if 0 in symbols:
                sizes.setdefault(symbols[0], 1)
            continue
        known = [None if axis in symbols else int(d) for axis, d in enumerate(stored)]
        if not fits(chosen, known):
            raise UsageError(f"input {name} has the shape {_text(stored)} in the file, not {list(chosen)}")
        for axis, symbol in symbols.items():
            if sizes.setdefault(symbol, chosen[axis]) != chosen[axis]:
                raise UsageError(f"input {name}: {symbol} is {sizes[symbol]} elsewhere, not {chosen[axis]}")
    shapes = {name: [_fixed(d, sizes) for d in param.ty.shape.values] for name, param in given.items()}
    check_open_sizes(path, shapes)
    return sizes


def _fixed(extent: Any, sizes: Mapping[str, int]) -> int | str:
    """An extent, as a number where it or its symbol is known."""
    return int(extent) if hasattr(extent, "value") else sizes.get(str(extent), str(extent))


def _text(dims: Any) -> str:
    return f"[{', '.join(printable(str(d)) for d in dims)}]"
