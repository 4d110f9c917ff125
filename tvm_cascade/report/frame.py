"""A sliding window's frame, described as text."""

from __future__ import annotations

from tvm_cascade.schema.plan import Frame
from tvm_cascade.sizes import bytes_and_unit


def frame_text(frame: Frame, macs: int, instructions: int | None) -> list[str]:
    """Format lines on a frame beside the whole window; `macs` and `instructions` (None: not estimated) are its plan's."""
    window, hop, whole = frame["window_rows"], frame["hop"], frame["whole_macs"]
    lines = [
        f"frame           {hop} new of {window} rows; {bytes_and_unit(frame['state_bytes'])} kept from frame to frame",
        f"frame's work    {macs} multiply-accumulates, {_share(macs, whole)} of the whole window's {whole}; "
        f"at least {frame['least_macs']}",
    ]
    alike = frame.get("whole_estimated_instructions")
    if instructions is not None and alike:
        share = _share(instructions, alike)
        lines.append(f"instructions    about {instructions} a frame, {share} of the whole window's {alike}")
    if frame["running_sums"]:
        told = ", ".join(f"{size} bytes of {name}" for name, size in frame["running_sums"].items())
        lines.append(f"running sums    {frame['additions']} additions a frame; kept: {told}")
    if frame["border_rows"]:
        told = ", ".join(f"{rows} of {name}" for name, rows in frame["border_rows"].items())
        lines.append(
            f"border rows     {frame['border_macs']} multiply-accumulates of a frame, as they depend on padding: {told}"
        )
    if len(frame["frontier"]) > 1:
        summed = any(p["additions"] for p in frame["frontier"])
        points = [
            f"{p['state_bytes']} bytes for {p['macs']}{' + ' + str(p['additions']) if summed else ''}"
            for p in frame["frontier"]
        ]
        lines.append(f"state or work   {', '.join(points)} multiply-accumulates{' + additions' if summed else ''}")
    return lines


def _share(part: int, whole: int) -> str:
    return f"1/{whole / part:.1f}" if part and whole > 2 * part else f"{100 * part / max(whole, 1):.1f} %"
