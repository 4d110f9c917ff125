"""cuDNN kernels for programs: `register()` makes `tvm_cascade.cudnn`, recorded by the programs' captured graphs.

Needs nvidia-cudnn-frontend, NVIDIA's Python binding for cuDNN, and cuDNN 9 itself (nvidia-cudnn-cu13, which PyTorch
brings too).

A call has a text, which describes the computation, and tensors: the multiplied tensor, [the added tensor], weights, [a
bias], the result. Images have channels last. Every result has a separate plan and working memory, made at the first
computation: TVM runs a program once before capture. A replayed graph runs nothing from this module.
"""

import json
import math
import threading

NAME = "tvm_cascade.cudnn"


def register(cudnn=None, tvm_ffi=None, empty=None):
    """Register the function in this process, once.

    The needed libraries (see `Library`) are imported unless given. Raises ImportError without NVIDIA's binding, OSError
    if that finds no cuDNN.
    """
    if cudnn is None:
        import cudnn  # pyright: ignore[reportMissingImports]
    if tvm_ffi is None:
        import tvm_ffi
    if empty is None:
        import tvm

        empty = tvm.runtime.empty
    if tvm_ffi.get_global_func(NAME, allow_missing=True) is None:
        tvm_ffi.register_global_func(NAME, Library(cudnn, tvm_ffi, empty))


class Library:
    """Runs products by cuDNN. `empty(shape, dtype, device)` allocates working memory."""

    def __init__(self, cudnn, tvm_ffi, empty):
        self._cudnn, self._ffi, self._empty = cudnn, tvm_ffi, empty
        self._handles, self._plans = {}, {}
        self._lock = threading.Lock()

    def __call__(self, text, *tensors):
        device = tensors[-1].device
        with self._lock:
            handle = self._handle(device)
            key = text, handle, *(x.data_ptr() for x in tensors)
            if key not in self._plans:
                self._plans[key] = Plan(self._cudnn, json.loads(text), tensors, handle, self._empty, device)
            self._cudnn.set_stream(handle=handle, stream=self._ffi.get_raw_stream(device))
            self._plans[key].run(handle)

    def _handle(self, device):
        key = str(device)
        if key not in self._handles:
            self._handles[key] = self._cudnn.create_handle()
        return self._handles[key]


class Plan:
    """A call: graph, tensor addresses, and working memory."""

    def __init__(self, cudnn, asked, tensors, handle, empty, device):
        types = {
            "float16": cudnn.data_type.HALF,
            "bfloat16": cudnn.data_type.BFLOAT16,
            "float32": cudnn.data_type.FLOAT,
        }
        wide = cudnn.data_type.FLOAT
        self._pointers = {}
        self.graph = cudnn.pygraph(intermediate_data_type=wide, compute_data_type=wide, handle=handle)
        left = [_Operand(x, name, types[name]) for x, name in zip(tensors, asked["types"], strict=True)]
        source, addend = left.pop(0), left.pop(0) if asked["addend"] else None
        weight, bias, result = left.pop(0), left.pop(0) if asked["bias"] else None, left.pop(0)
        depth, columns = asked["channels"]
        x = self._tensor(source, *source.channels(depth, asked["begins"][0]))
        if asked["kind"] == "conv2d":
            order = (0, 3, 1, 2)
            w = self._tensor(weight, [weight.shape[i] for i in order], [weight.strides[i] for i in order])
            top, first, bottom, last = asked["padding"]
            value = self.graph.conv_fprop(
                image=x, weight=w, pre_padding=[top, first], post_padding=[bottom, last],
                stride=asked["strides"], dilation=asked["dilation"], compute_data_type=wide,
            )  # fmt: skip
        else:
            w = self._tensor(weight, [1, *weight.shape], [weight.shape[0] * weight.shape[1], *weight.strides])
            value = self.graph.matmul(A=x, B=w, compute_data_type=wide)
        if bias is not None:
            image = asked["kind"] == "conv2d"
            shape = [1, columns, 1, 1] if image else [1, 1, columns]
            strides = [columns, 1, columns, columns] if image else [columns, columns, 1]
            value = self.graph.bias(input=value, bias=self._tensor(bias, shape, strides))
        if addend is not None:
            value = self.graph.add(a=value, b=self._tensor(addend, *addend.channels(columns, asked["begins"][1])))
        if asked["low"] is not None:
            bounds = {"lower_clip": asked["low"]} | ({} if asked["high"] is None else {"upper_clip": asked["high"]})
            value = self.graph.relu(input=value, **bounds)
        shape, strides, pointer = result.channels(columns, asked["begins"][2])
        value.set_output(True).set_data_type(result.kind).set_dim(shape).set_stride(strides)
        self._pointers[value] = pointer
        self._build(cudnn, exact=source.name == "float32" and not asked["tf32"])
        self._memory = empty((max(1, self.graph.get_workspace_size()),), "uint8", device)

    def run(self, handle):
        """Run the plan on the handle's stream."""
        self.graph.execute(self._pointers, self._memory.data_ptr(), handle=handle)

    def _build(self, cudnn, exact):
        self.graph.validate()
        self.graph.build_operation_graph()
        self.graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
        if exact:  # without the rounding of TF32
            self.graph.deselect_numeric_notes([cudnn.numerical_note.TENSOR_CORE])
        self.graph.check_support()
        self.graph.build_plans()

    def _tensor(self, operand, shape, strides, pointer=None):
        made = self.graph.tensor(dim=shape, stride=strides, data_type=operand.kind)
        self._pointers[made] = operand.pointer if pointer is None else pointer
        return made


class _Operand:
    """A tensor of a call: extents, strides in elements, address and type."""

    def __init__(self, tensor, name, kind):
        self.shape, self.pointer, self.name, self.kind = list(tensor.shape), tensor.data_ptr(), name, kind
        self.strides, step = [], 1
        for extent in reversed(self.shape):
            self.strides.insert(0, step)
            step *= extent

    def channels(self, count, begin):
        """Return extents and strides, in cuDNN's order, of `count` channels from `begin` on, and their address."""
        pointer = self.pointer + begin * (4 if self.name == "float32" else 2)
        if len(self.shape) == 4:
            n, h, w, _ = self.shape
            return [n, count, h, w], [self.strides[0], 1, self.strides[1], self.strides[2]], pointer
        rows = math.prod(self.shape[:-1])
        return [1, rows, count], [rows * self.shape[-1], self.shape[-1], 1], pointer
