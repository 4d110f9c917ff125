"""Relax passes of the project, one a file; each works alone in a `tvm.transform.Sequential`."""

from __future__ import annotations

from tvm_cascade.passes.cascade import Cascade
from tvm_cascade.passes.extract_graph import Extracted, extract_graph
from tvm_cascade.passes.lower_quantized import LowerQuantized

__all__ = ["Cascade", "Extracted", "LowerQuantized", "extract_graph"]
