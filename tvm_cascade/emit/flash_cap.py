"""A cap on the flash of an image: code, weights and tables, as linked.

The linked bytes are compared with the cap; an image that exceeds the cap or its board's flash is explained by its
largest layers. No plan depends on the cap: `compilation.project` makes code small if the usual code exceeds the cap.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm_cascade.errors import CascadeError, InfeasibleError
from tvm_cascade.graph import Op
from tvm_cascade.messages import short_name
from tvm_cascade.report.flash_points import remedies_text
from tvm_cascade.schema.refusal import Error, FlashRemedy

_NAMED = 3  # layers that a message names


class FlashExceededError(InfeasibleError):
    """An image with more flash than a cap allows, or than the board has.

    Attributes
    ----------
    constants : int
        Bytes of weights and tables among `needed`.
    """

    def __init__(
        self,
        needed: int,
        available: int,
        constants: int,
        ops: Sequence[Op],
        whose: str = "--flash",
        tried: str = "",
        remedies: Sequence[FlashRemedy] = (),
    ) -> None:
        largest = sorted((op for op in ops if op.weight_bytes), key=lambda op: -op.weight_bytes)[:_NAMED]
        layers = ", ".join(f"{short_name(op.name)} ({op.weight_bytes})" for op in largest)
        self.needed, self.available, self.constants = needed, available, constants
        self.culprits = tuple(op.name for op in largest)
        self.ops, self.whose, self.tried, self.remedies = tuple(ops), whose, tried, tuple(remedies)
        if constants > available:
            self.remedy = "weights and tables alone exceed it: a smaller network, or more flash"
        else:
            self.remedy = f"{tried}; a smaller network, or more flash" if tried else "--optimise size takes less code"
        if remedies:
            self.remedy = f"{self.remedy}; {remedies_text(remedies)}"
        CascadeError.__init__(
            self,
            f"needs {needed} bytes of flash, {available} available ({whose}), {needed - available} bytes missing; {constants} "
            f"of them weights and tables, most in {layers}; {self.remedy}",
            self.culprits,
        )

    def after(self, tried: str) -> FlashExceededError:
        """Return the same error, with the attempts to obey the cap."""
        return FlashExceededError(self.needed, self.available, self.constants, self.ops, self.whose, tried)

    def with_remedies(self, remedies: Sequence[FlashRemedy]) -> FlashExceededError:
        """Return the same error, with what saves bytes and what that costs."""
        places = self.needed, self.available, self.constants, self.ops
        return FlashExceededError(*places, self.whose, self.tried, remedies)

    def to_dict(self) -> Error:
        """Return the error as an object of JSON."""
        found: Error = {**super().to_dict(), "needed_bytes": self.needed, "available_bytes": self.available}
        return {**found, "remedies": list(self.remedies)} if self.remedies else found


def require_flash(needed: int, cap: int | None, constants: int, ops: Sequence[Op]) -> None:
    """Raise `FlashExceededError` for an image with `needed` bytes in flash above the cap (None: no cap)."""
    if cap is not None and needed > cap:
        raise FlashExceededError(needed, cap, constants, ops)
