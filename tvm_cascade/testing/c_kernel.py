"""A row kernel as its users get it: through the C back end and the machine's own C compiler."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import tvm

from tvm_cascade.emit.codegen import print_c
from tvm_cascade.schedules.kernels.kernel import Role, RowKernel
from tvm_cascade.schedules.rules.intrinsics import C_PRELUDE

_HEAD = "#include <stdint.h>\n#include <stddef.h>\n#include <string.h>\n#include <math.h>\n"
# sanitizers that need no runtime
_FLAGS = ("-fno-strict-aliasing", "-fsanitize=bounds,shift", "-fsanitize-undefined-trap-on-error")
Argument = np.ndarray | int


class CKernel:
    """The kernel as a shared library in `folder`."""

    def __init__(self, kernel: RowKernel, folder: Path) -> None:
        mod = tvm.IRModule({"row_kernel": kernel.func.with_attr("global_symbol", "row_kernel")})
        text = print_c(mod).replace("static int32_t row_kernel", "int32_t row_kernel")
        (folder / "k.c").write_text(_HEAD + C_PRELUDE + text)
        command = ("gcc", "-O1", "-shared", "-fPIC", *_FLAGS, str(folder / "k.c"), "-o", str(folder / "k.so"))
        subprocess.run(command, check=True)
        self._kernel, self._library = kernel, ctypes.CDLL(str(folder / "k.so"))

    def __call__(self, y: int, values: Mapping[Role, Sequence[Argument]]) -> None:
        """Make row `y` out of `values`, one for each parameter of a role; the kernel's own constants are not among them."""
        values = {Role.CONSTANT: self._kernel.constants, **values}
        given = [values[p.role][p.index] if p.role in values else y for p in self._kernel.params]
        args = [v.ctypes.data_as(ctypes.c_void_p) if isinstance(v, np.ndarray) else ctypes.c_int32(v) for v in given]
        assert self._library.row_kernel(*args) == 0
