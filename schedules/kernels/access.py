"""`RowAccess`: row axes and windows of an operator's tensors, from which its row kernel is derived."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tvm_cascade.graph import Window


@dataclass(frozen=True, slots=True)
class RowAccess:
    """The row axis of every tensor, and the rows of every activation input that one output row reads.

    `windows[i]`, `input_axes[i]` belong to activation input i, `output_axes[i]` to output i. An axis is None where the
    tensor is one row. `columns[i]` is the window along the columns, the axis after the row axis; `columns` is empty
    where it was not computed. `opaque` is the reason why the operator can only run whole; `windows` is then meaningless.
    """

    windows: tuple[Window | None, ...]
    input_axes: tuple[int | None, ...]
    output_axes: tuple[int | None, ...]
    opaque: str | None = None
    columns: tuple[Window | None, ...] = ()

    @property
    def rowwise(self) -> bool:
        """Whether the operator can produce one output row at a time."""
        known = self.opaque is None and all(w is not None for w in self.windows)
        return known and bool(self.output_axes) and all(a is not None for a in self.output_axes)

    @property
    def whole(self) -> bool:
        """Whether one call of its kernels computes everything; so do operators that read only constants."""
        return not (self.rowwise and self.windows)

    @property
    def without_columns(self) -> RowAccess:
        """The same with windows along the columns unknown: for kernels of whole rows."""
        return replace(self, columns=(None,) * len(self.columns))
