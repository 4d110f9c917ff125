"""Import `.pt2` files (torch.export) into Relax, through ONNX. Torch is optional, imported only on use.

Torch's exporter writes ONNX (`torch_export`), read by the ONNX importer. Quantized networks are PT2E's: float operators
between `quantized_decomposed` operators.

Nothing in a file is executed: `torch_archive` reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

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
from tvm_cascade.passes.lower_quantized import with_real_operators


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
        return with_buffer_states(with_real_operators(mod, inverse_scales=True), mutated)
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


def _of_the_program(path: Path, error: LoadError) -> LoadError:
    """Return an error about the program's operators in place of an error about exported ONNX operators."""
    names = error.operators
    if isinstance(error, UnsupportedOperatorError) or not names or any(name in error.reason for name in names):
        return error
    what = f"operator {', '.join(map(printable, names))} has a form that is not supported: {error.reason}"
    return LoadError(path, what, error.remedy, names)
