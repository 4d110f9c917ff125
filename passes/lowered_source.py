"""The module lowered by `LowerQuantized`, kept in an attribute of the lowered module.

Graph substitutions rewrite quantized operators, not integer operators, so `Cascade` after `LowerQuantized` starts from
the module before. The attribute is a tensor with the bytes of the module's JSON: TVM cannot print a module inside a
module.
"""

# TVM's nodes get their fields at run time, where no type checker sees them.
# pyright: reportAttributeAccessIssue=false, reportReturnType=false
from __future__ import annotations

import numpy as np
import tvm
from tvm.ir import IRModule

SOURCE_ATTR = "cascade.source"
EXTERNAL_ATTR = "external_mods"  # TVM's, of `RunCodegen`


def with_source(lowered: IRModule, source: IRModule) -> IRModule:
    """Attach `source`, the module before lowering, to `lowered`.

    Return `lowered` unchanged if it has a source, from an earlier lowering, or runtime modules from foreign code
    generators, which JSON cannot hold.
    """
    if dict(lowered.attrs or {}).keys() & {SOURCE_ATTR, EXTERNAL_ATTR}:
        return lowered
    text = tvm.ir.save_json(source).encode()
    return lowered.with_attr(SOURCE_ATTR, tvm.runtime.tensor(np.frombuffer(text, np.uint8)))


def source_of(mod: IRModule) -> IRModule | None:
    """Return the module before lowering; None if `mod` has no source."""
    text = dict(mod.attrs or {}).get(SOURCE_ATTR)
    return None if text is None else tvm.ir.load_json(text.numpy().tobytes().decode())


def without_source(mod: IRModule) -> IRModule:
    """Remove the attribute from `mod`; return `mod` without the attribute unchanged."""
    return mod.without_attr(SOURCE_ATTR) if SOURCE_ATTR in dict(mod.attrs or {}) else mod
