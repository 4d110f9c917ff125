"""What a row kernel must know about the tensors that it reads and writes."""

from __future__ import annotations

from dataclasses import dataclass

from tvm_cascade.graph import Window


@dataclass(frozen=True, slots=True)
class RowAccess:
    """Rows of every activation input that one output row reads.

    `windows[i]`, `input_axes[i]` belong to activation input i, `output_axes[i]` to output i. An axis is None where the
    tensor is one row. `columns[i]` is the window along the columns, the axis behind the row axis; empty where nobody
    asked. `opaque` says why the operator can only run whole; `windows` then counts for nothing.
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
