"""Calling single row kernels in this process, through TVM's LLVM back end: for tests and for looking at one kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tvm
from tvm import tirx
from tvm.ir import Call, GlobalVar
from tvm.tirx import Evaluate

from tvm_cascade.schedules.row_kernel import Param, RowKernel


class HostKernel:
    """A compiled row kernel: `call(args)` takes one array per pointer parameter and one int per scalar."""

    def __init__(self, kernel: RowKernel, extra: Sequence[Param] = (), func: tirx.PrimFunc | None = None) -> None:
        self.params = (*kernel.params, *extra)
        inner = GlobalVar("kernel")
        outer: list[Any] = []
        args: list[Any] = []
        for k, param in enumerate(self.params):
            if param.is_pointer or param in extra:
                extent = tirx.Var(f"n{k}", "int64")
                buffer = tirx.decl_buffer((extent,), param.dtype, f"b{k}")
                outer.append(buffer)
                args.append(tirx.address_of(buffer[0]))
            else:
                outer.append(tirx.Var(f"s{k}", "int32"))
                args.append(outer[-1])
        body = Evaluate(Call(inner, args, ret_ty="int32"))
        wrapper = tirx.PrimFunc(outer, body).with_attr("global_symbol", "call")
        private = (func or kernel.func).without_attr("global_symbol")
        self._lib = tvm.compile(tvm.IRModule({inner: private, GlobalVar("call"): wrapper}), target="llvm")

    def __call__(self, *args: np.ndarray | int) -> None:
        """Run the kernel once; arrays are changed in place, flattened views of contiguous arrays will do."""
        tensors = [tvm.runtime.tensor(a.reshape(-1)) if isinstance(a, np.ndarray) else a for a in args]
        self._lib["call"](*tensors)
        for given, used in zip(args, tensors, strict=True):
            if isinstance(given, np.ndarray) and given.size:
                given[...] = used.numpy().reshape(given.shape)
