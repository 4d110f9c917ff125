"""Import `.pt2` files (torch.export) into Relax, through ONNX. Torch is optional, imported only on use.

Torch's exporter writes ONNX (`torch_export`), read by the ONNX importer. Quantized networks are PT2E's: float operators
between `quantized_decomposed` operators.

Nothing in a file is executed: `torch_archive` reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tvm

from tvm_cascade.errors import CascadeError, LoadError, UnsupportedOperatorError
from tvm_cascade.importers.onnx.load import load_model
from tvm_cascade.importers.torch.archive import RefusedArchive, open_program
from tvm_cascade.importers.torch.cut import graph_of, kind_of, until_before
from tvm_cascade.importers.torch.export import NotExported, TorchProgram, exported_model
from tvm_cascade.importers.torch.package import quietly
from tvm_cascade.importers.torch.refused import check_conditions
from tvm_cascade.importers.torch.states import with_buffer_ends, with_buffer_states
from tvm_cascade.messages import last_line, printable
from tvm_cascade.passes.integer.task import Inverses, inverse_of
from tvm_cascade.passes.lower_quantized import with_real_operators
from tvm_cascade.passes.small_weights import with_small_weights

_QUANTIZES = "quantized_decomposed.quantize_per_tensor"  # the scale is a Python float, or a tensor
_DEQUANTIZES = (
    "quantized_decomposed.dequantize_per_"  # the arguments end with the least and the largest value, and the type
)


def load_torch(path: Path, data: bytes, input_shapes: Mapping[str, tuple[int, ...]]) -> tvm.IRModule:
    """Load a `.pt2` file, see `tvm_cascade.frontend.load`. `input_shapes` must give symbolic sizes, except a leading
    batch, which is 1.

    Raises
    ------
    MissingToolError
        Without torch, or without what it writes ONNX by.
    """
    try:
        given = open_program(data)
    except CascadeError:
        raise
    except RefusedArchive as error:
        raise LoadError(path, str(error)) from error
    except Exception as error:  # zip, pickle and version errors, by version
        raise LoadError(path, f"not an archive of torch.export, or truncated: {last_line(error)}") from error
    try:
        with quietly():
            check_conditions(path, given)
            program, mutated, returned = with_buffer_ends(given)
            model, nodes = exported_model(given, program, returned)
            mod = load_model(path, model, input_shapes, TorchProgram(graph_of(given), nodes, returned))
        read = with_buffer_states(with_real_operators(mod, _inverses(given)), mutated)
        return with_small_weights(read) if _has_small_weights(given) else read
    except NotExported as error:
        remedy = until_before(given, [error.node] if error.node is not None else [])
        if error.node is None:
            raise LoadError(path, str(error)) from error
        names = remedy.operators or (kind_of(error.node),)
        raise UnsupportedOperatorError(path, names, remedy=remedy.text) from error
    except LoadError as error:
        raise _of_the_program(path, error) from error
    except CascadeError:
        raise
    except Exception as error:  # signals malformed programs by whatever breaks first
        raise LoadError(path, f"the importer cannot read it: {last_line(error)}") from error


def _inverses(program: Any) -> Inverses:
    """Return the inverses of scales that are no float32 numbers: torch inverts them in float64."""
    nodes = (n for n in program.graph.nodes if n.op == "call_function" and _QUANTIZES in str(n.target))
    scales = {n.args[1] for n in nodes if isinstance(n.args[1], float)}
    pairs = {float(np.float32(s)): float(np.float32(1 / s)) for s in sorted(scales) if s > 0}
    return {scale: inverse for scale, inverse in pairs.items() if inverse != inverse_of(np.float32(scale), {})}


def _has_small_weights(program: Any) -> bool:
    """Test whether a program dequantizes constants of four bits or fewer, stored as int8 in a narrower range."""
    constants = {spec.arg.name for spec in program.graph_signature.input_specs if spec.kind.name != "USER_INPUT"}
    for node in program.graph.nodes:
        if _DEQUANTIZES in str(node.target) and node.args[0].name in constants:
            least, most = node.args[-3:-1]
            if least >= -8 and most <= 7:
                return True
    return False


def _of_the_program(path: Path, error: LoadError) -> LoadError:
    """Return an error about the program's operators in place of an error about exported ONNX operators."""
    names = error.operators
    if isinstance(error, UnsupportedOperatorError) or not names or any(name in error.reason for name in names):
        return error
    what = f"operator {', '.join(map(printable, names))} has a form that is not supported: {error.reason}"
    return LoadError(path, what, error.remedy, names)
