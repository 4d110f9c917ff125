"""One sentence on the dead channels left out by a plan."""

from __future__ import annotations

from collections.abc import Sequence

from tvm_cascade.schema.plan import Removed


def dead_channels(removed: Sequence[Removed], file_weight_bytes: int, file_macs: int, macs: int) -> str:
    """Return the channels left out of the file's layers, and the weights and work saved; "" if there are none.

    `macs` are the network's without the channels.
    """
    if not removed:
        return ""
    channels, of = sum(r["channels"] for r in removed), sum(r["of"] for r in removed)
    saved = sum(r["weight_bytes"] for r in removed)
    layers = f"{len(removed)} layer{'s' * (len(removed) != 1)}"
    return (
        f"{channels} of {of} left out of {layers}: {saved} bytes of weights of {file_weight_bytes}, "
        f"{file_macs - macs} multiply-accumulates of {file_macs}"
    )
