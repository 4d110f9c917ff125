"""`CascadePass`: base class of this project's module passes, frozen dataclasses that run in TVM's pass infrastructure.

As in onnx ir-py and xDSL, a pass's options are fields. `requires` checks the precondition and raises, `call` transforms
a copy of the module and reports whether anything changed, `ensures` checks the postcondition::

    @dataclass(frozen=True)
    class DropDeadCode(CascadePass):
        entry: str = "main"

        def call(self, mod: IRModule) -> PassResult:
            return PassResult.compare(mod, DeadCodeElimination([self.entry])(mod))

`DropDeadCode()(mod)` and `tvm.transform.Sequential([DropDeadCode()])(mod)` run the pass through TVM, with instruments,
and return the module; `DropDeadCode().run(mod)` runs the pass directly and returns the `PassResult`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tvm
from tvm.ir import IRModule
from tvm.ir.transform import ModulePass, PassContext

from tvm_cascade.passes.error_classes import register_error_classes
from tvm_cascade.passes.relax_functions import same_module


@dataclass(frozen=True, slots=True)
class PassResult:
    """The module returned by a pass, with a flag that tells whether the pass changed anything."""

    mod: IRModule
    modified: bool  # whether `mod` differs from the module that the pass was given

    @classmethod
    def compare(cls, before: IRModule, after: IRModule) -> PassResult:
        """Return the result with module `after`; `modified` is True if `after` differs structurally from `before`."""
        return cls(after, not same_module(before, after))


class CascadePass(ModulePass):
    """A module pass with options as fields of a frozen dataclass.

    Subclasses are decorated with `@dataclass(frozen=True)` and define `call`; equal options make equal passes. TVM's
    instruments see the name `tvm_cascade.` followed by the class name.
    """

    def __post_init__(self) -> None:
        kind: Any = type(self)
        options = kind.__new__(kind)  # a copy: if TVM's closure held `self`, the reference cycle would never be freed
        options.__dict__.update(vars(self))

        def transform(mod: IRModule, _context: PassContext) -> IRModule:
            return options.run(mod).mod

        made: Any = tvm.ir.transform.module_pass(transform, opt_level=0, name=f"tvm_cascade.{kind.__name__}")
        self.__move_handle_from__(made)

    def run(self, mod: IRModule) -> PassResult:
        """Run the pass outside TVM's pass infrastructure; the result tells whether anything changed.

        `mod` is not modified. Raises the errors of the pass's `requires`, `call` and `ensures`.
        """
        self.requires(mod)
        result = self.call(mod)
        self.ensures(result.mod)
        return result

    def requires(self, mod: IRModule) -> None:
        """Raise a `CascadeError` if the pass cannot work on `mod`. By default it works on every module."""

    def call(self, mod: IRModule) -> PassResult:
        """Run the pass's work; `mod` must not be modified."""
        raise NotImplementedError

    def ensures(self, mod: IRModule) -> None:
        """Raise `ValidationError` if `mod`, the result, breaks a guarantee of the pass. By default nothing is checked."""


register_error_classes()
