"""What the three quantizers share: counts of a quantized file's layers, and silence while a library works."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any


@dataclass
class LayerCounts:
    """Counts of a quantized file's operators, collected one at a time."""

    layers: int = 0  # with weights
    quantized: int = 0  # of these, in integers
    by_channel: int = 0  # of these, with a scale for each channel
    floats: Counter[str] = field(default_factory=Counter)  # operators in floats, by kind

    def add(self, kind: str, stored: bool, weighted: bool, by_channel: bool) -> None:
        """Count an operator: `stored` in integers, `weighted` by a constant, whose scales may be `by_channel`."""
        self.floats[kind] += not stored
        if weighted:
            self.layers += 1
            self.quantized += stored
            self.by_channel += stored and by_channel

    def fields(self) -> dict[str, Any]:
        """Return the fields of `QuantizeResult` about layers."""
        left = {kind: count for kind, count in sorted(self.floats.items()) if count}
        return {
            "layers": self.layers,
            "quantized_layers": self.quantized,
            "per_channel_layers": self.by_channel,
            "left_float": left,
        }


@contextlib.contextmanager
def silent() -> Iterator[None]:
    """Hide a library's printed output, log and warnings in the block: an error tells once why the library ended."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        said = io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
