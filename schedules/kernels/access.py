"""`RowAccess`: row axes and windows of an operator's tensors, from which its row kernel is derived."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tvm_cascade.graph import Window


@dataclass(frozen=True, slots=True)
class RowAccess:
    """Every tensor's row axis, and the rows of every activation input read by an output row.

    `windows[i]`, `input_axes[i]` belong to activation input i, `output_axes[i]` to output i. An axis is None if the
    tensor is a single row. `columns[i]` is the window along the columns, the axis after the row axis; `columns` is
    empty if not computed. `opaque` is the reason why the operator can only run whole; `windows` is then meaningless.
    """

    windows: tuple[Window | None, ...]
    input_axes: tuple[int | None, ...]
    output_axes: tuple[int | None, ...]
    opaque: str | None = None
    columns: tuple[Window | None, ...] = ()

    @property
    def rowwise(self) -> bool:
        """Return True if the operator can produce a single output row at a time."""
        known = self.opaque is None and all(w is not None for w in self.windows)
        return known and bool(self.output_axes) and all(a is not None for a in self.output_axes)

    @property
    def whole(self) -> bool:
        """Return True if a kernel call computes everything; so for operators that read only constants."""
        return not (self.rowwise and self.windows)

    @property
    def without_columns(self) -> RowAccess:
        """Return the access with unknown windows along the columns: for kernels of whole rows."""
        return replace(self, columns=(None,) * len(self.columns))
