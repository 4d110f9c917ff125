"""`Converter`: Relax's TFLite operator converter with its defects corrected, for the importer's parameter `op_converter`.

Each converter (`network.CONVERTERS`) says which defect it corrects. Quantized operators are imported as islands
(`passes.islands`) or, for operators that only move or compare stored values, directly on integers;
`passes.LowerQuantized` turns both into integer arithmetic.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import tvm
from tvm.relax.frontend.tflite import tflite_frontend as stock

from tvm_cascade.importers.tflite import (
    control,
    functions,
    hybrid,
    lists,
    lstm,
    moves,
    products,
    rnn,
    signals,
    states,
    svdf,
)
from tvm_cascade.importers.tflite.contradictions import contradiction
from tvm_cascade.importers.tflite.coverage import Unsupported, coverage
from tvm_cascade.importers.tflite.forms import check_form
from tvm_cascade.importers.tflite.kept import Variables
from tvm_cascade.importers.tflite.model import DECODE, kind_of, tflite
from tvm_cascade.importers.tflite.network import CONVERTERS, HYBRID, Network, Operator
from tvm_cascade.importers.tflite.shapes import fold_shape
from tvm_cascade.importers.tflite.site import InvalidForm, Site, UnsupportedForm, described
from tvm_cascade.importers.tflite.states import put_states
from tvm_cascade.messages import last_line
from tvm_cascade.passes.main_rewriting import relax
from tvm_cascade.search_monitor import counted

# their converters are registered
FAMILIES = (control, functions, hybrid, lists, lstm, moves, products, rnn, signals, states, svdf)

# Operators whose conversion is right on stored integers although the importer's list leaves them out.
_MOVES_ONLY = frozenset((
    "ARG_MAX", "ARG_MIN", "ASSIGN_VARIABLE", "BATCH_TO_SPACE_ND", "BROADCAST_TO", "DEPTH_TO_SPACE", "DYNAMIC_UPDATE_SLICE",
    "EMBEDDING_LOOKUP", "EXPAND_DIMS", "GATHER", "GATHER_ND", "IF", "MIRROR_PAD", "PACK", "PAD", "PADV2", "READ_VARIABLE",
    "RESIZE_NEAREST_NEIGHBOR", "REVERSE_V2", "SELECT", "SELECT_V2", "SLICE", "SPACE_TO_BATCH_ND", "SPACE_TO_DEPTH",
    "SPLIT", "SPLIT_V", "SQUEEZE", "STRIDED_SLICE", "TILE", "TOPK_V2", "TRANSPOSE", "UNPACK", "WHILE",
))  # fmt: skip
_FOLDED = frozenset(("DENSIFY", "FILL", "RANK", "SHAPE"))
# the LSTM is refused by its converter, which says why
_IN_ISLANDS = frozenset((
    "BATCH_MATMUL", "ELU", "GELU", "L2_NORMALIZATION", "PRELU", "RELU_0_TO_1", "SVDF",
    "UNIDIRECTIONAL_SEQUENCE_LSTM",
))  # fmt: skip


class Refused(Exception):
    """A network refused by the importer; the message says why, and the remedy."""

    def __init__(self, message: str, *at: int, invalid: bool = False) -> None:
        """Store the refused operators' positions `at`; `invalid` is True if they break TFLite's rules."""
        super().__init__(message)
        self.at = at
        self.invalid = invalid


_UNSUPPORTED = (tvm.error.OpNotImplemented, tvm.error.OpAttributeUnImplemented, NotImplementedError)


class Converter(Network):
    """TVM's `OperatorConverter`, corrected; its variables bear the model's tensor names (`passes.origin`)."""

    _SUPPORTED_QUANTIZED_OPS = stock.OperatorConverter._SUPPORTED_QUANTIZED_OPS | _MOVES_ONLY | _FOLDED | _IN_ISLANDS

    def __init__(
        self,
        *args: object,
        missing: dict[int, str] | None = None,
        variables: Variables | None = None,
        **kwargs: object,
    ) -> None:
        """Set up the converter. With `missing`, unconvertible operators are added there and give zeros; without it they
        raise.
        """
        super().__init__(*args, **kwargs)
        self.variables = variables or self.variables
        self._missing = missing
        self._absent: dict[int, str] = {}
        self._hybrid: dict[int, str] = {}
        self.convert_map.update({name: partial(convert, self) for name, convert in CONVERTERS.items()})

    def convert_op_to_relax(self) -> None:
        """Converts every operator; binds each result under its tensor's name, which reports and tests look for.

        Raises
        ------
        Unsupported, Refused
            For operators that cannot be converted, or not in their form, with their names.
        """
        missing: dict[int, str] = {}
        for i in counted("operators of the file", range(self.subgraph.OperatorsLength())):
            op = self.subgraph.Operators(i)
            name = kind_of(self.model, op)
            if name == DECODE:  # its outputs are constants
                continue
            try:
                if i in self._absent:
                    missing[i] = self._absent[i]
                    self._stand_in(op)
                    continue
                try:
                    self._convert(self.get_op_code_str(op), op, i in self._hybrid)
                except Exception as error:
                    if not isinstance(error, _UNSUPPORTED) and not self._quantizes_wide(op):
                        raise
                    missing[i] = f"{name} (operator {i}): {self._reason(op, error)}"
                    self._stand_in(op)
            except Exception as error:  # malformed operators, and what reads stand-ins, raise whatever breaks first
                if missing:
                    raise Unsupported(missing | {k: v for k, v in self._absent.items() if k > i}) from error
                text = f"operator {i}, {name}, is not supported in this form: {self._reason(op, error)}"
                raise Refused(text, i, invalid=isinstance(error, InvalidForm)) from error
        if missing and self._missing is None:
            raise Unsupported(missing)
        if self._missing is not None:
            self._missing.update(missing)
        if not self.nested:
            put_states(self)

    def _quantizes_wide(self, op: Operator) -> bool:
        """Return True if an operator writes quantized numbers with 32 bits or more, beyond the importer."""
        wide = (tflite.TensorType.INT32, tflite.TensorType.INT64)
        return any(t.qnn_params and t.tensor.Type() in wide for t in self.get_output_tensors(op))

    def _stand_in(self, op: Operator) -> None:
        """Bind zeros to an unconvertible operator's outputs, so later operators are checked too."""
        for output in self.get_output_tensors(op):
            dtype = self.get_tensor_type_str(output.tensor.Type())
            self.bind(output, relax.op.zeros(self.shape(output), dtype))

    def check_unsupported_ops(self) -> None:
        """Record unconvertible operators; refuse quantized weights beside float activations without a converter."""
        self._absent, self._hybrid = coverage(self, self.convert_map, self._SUPPORTED_QUANTIZED_OPS)
        refused = {i: name for i, name in self._hybrid.items() if name not in HYBRID}
        if refused:
            raise Refused(
                f"its weights are quantized and its activations are float ({', '.join(dict.fromkeys(refused.values()))}): "
                "convert it again with a representative data set (full integer quantization), or without quantization",
                *refused,
            )

    def _site(self, op: Operator) -> Site:
        """Return an operator in the form for its requirements."""
        name, inputs = self.get_op_code_str(op), self.get_input_tensors(op)
        shapes = [tuple(self.shape(t)) if t.tensor_idx >= 0 else () for t in inputs]
        return Site(name, inputs, self.get_output_tensors(op), shapes, _attributes(op), self._value)

    def _value(self, tensor: stock.TensorWrapper) -> np.ndarray | None:
        """Return a known tensor's value; None for a computed tensor."""
        return None if self.has_expr(tensor.tensor_idx) else np.asarray(self.get_tensor_value(tensor))

    def _reason(self, op: Operator, error: Exception) -> str:
        """Return an operator's fault: the error's words if written for readers, else a description of the operator."""
        if isinstance(error, (InvalidForm, *_UNSUPPORTED, Unsupported, Refused)):
            return last_line(error)
        return described(self._site(op))

    def _convert(self, name: str, op: Operator, hybrid: bool = False) -> None:
        check_form(self._site(op))
        if reason := contradiction(name, self.get_input_tensors(op), self.get_output_tensors(op)):
            raise UnsupportedForm(reason)
        if hybrid:
            result = HYBRID[name](self, op)
        else:
            result = None if fold_shape(self, name, op) else self.convert_map[name](op=op)
        if result is None:
            return
        outputs = self.get_output_tensors(op)
        if len(outputs) == 1:
            self.bind(outputs[0], result)
            return
        if isinstance(result, (relax.Tuple, list)):
            for output, value in zip(outputs, getattr(result, "fields", result), strict=True):
                if value is not None:  # of a list, an output that nobody reads
                    self.bind(output, value)
            return
        result = self.bb.emit(result)
        for k, output in enumerate(outputs):
            self.bind(output, relax.TupleGetItem(result, k))


_OPTIONS = {code: name for name, code in vars(tflite.BuiltinOptions).items() if isinstance(code, int)}


def _attributes(op: Operator) -> Any:
    """Return the operator's option table; None if absent or with an unknown type."""
    table, name = op.BuiltinOptions(), _OPTIONS.get(op.BuiltinOptionsType(), "")
    if table is None or not hasattr(tflite, name):
        return None
    options = getattr(tflite, name)()
    options.Init(table.Bytes, table.Pos)
    return options
