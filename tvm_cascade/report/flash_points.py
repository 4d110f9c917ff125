"""Flash against instructions: what `--optimise` and `--weights` bring a network, and what they cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvm_cascade.schema import plan as schema
from tvm_cascade.schema.refusal import FlashRemedy


@dataclass(frozen=True, slots=True)
class FlashPoint:
    """A network planned with an `--optimise` and `--code-weights`: its bytes of flash, the estimated cost of an inference."""

    optimise: str
    code_weights: float
    weight_bytes: int  # weights and tables
    code_bytes: int  # estimated
    peak_bytes: int  # of the arena
    instructions: int
    cycles: int

    @property
    def options(self) -> str:
        """Return the options as on the command line."""
        coded = f" --code-weights {self.code_weights:.6g}" if self.code_weights else ""
        return f"--optimise {self.optimise}{coded}"

    @property
    def flash_bytes(self) -> int:
        """Return all bytes of flash."""
        return self.weight_bytes + self.code_bytes

    def to_dict(self) -> schema.FlashPoint:
        """Return the point as a JSON object."""
        return {
            "optimise": self.optimise,
            "code_weights": self.code_weights,
            "flash_bytes": self.flash_bytes,
            "weight_bytes": self.weight_bytes,
            "estimated_code_bytes": self.code_bytes,
            "peak_bytes": self.peak_bytes,
            "instructions": self.instructions,
            "cycles": self.cycles,
        }


def flash_frontier(points: Sequence[FlashPoint]) -> tuple[FlashPoint, ...]:
    """Return the points that no other beats in flash and cycles, by ascending flash; of equal ones the first."""
    found: list[FlashPoint] = []
    for point in sorted(points, key=lambda p: (p.flash_bytes, p.cycles, points.index(p))):
        if not found or point.cycles < found[-1].cycles:
            found.append(point)
    return tuple(found)


def flash_table(points: Sequence[FlashPoint]) -> str:
    """Format a frontier of flash against cycles, a line each."""
    lines, widest = ["flash against time (est.):"], max((len(p.options) for p in points), default=0)
    lines += [
        f"  {p.options:<{widest}} {p.flash_bytes:>9} bytes: {p.weight_bytes} of weights and tables, about {p.code_bytes} "
        f"of code; about {p.cycles} cycles"
        for p in points
    ]
    return "\n".join(lines)


def flash_remedies(points: Sequence[FlashPoint], chosen: FlashPoint, stream_ram: int | None) -> tuple[FlashRemedy, ...]:
    """List what takes bytes out of the flash of the `chosen` point, the cheapest in RAM and time first.

    `stream_ram` is the arena and the buffers of the plan for `--weights stream`; None without such a plan.
    """
    found: list[FlashRemedy] = [_remedy("--weights file", chosen.weight_bytes, 0, 1.0)]
    found += [
        _remedy(
            p.options,
            chosen.flash_bytes - p.flash_bytes,
            p.peak_bytes - chosen.peak_bytes,
            p.instructions / max(chosen.instructions, 1),
        )
        for p in points
        if p.flash_bytes < chosen.flash_bytes
    ]
    if stream_ram is not None:
        found.append(_remedy("--weights stream", chosen.weight_bytes, stream_ram - chosen.peak_bytes, 1.0))
    return tuple(found)


def _remedy(option: str, saved: int, ram: int, factor: float) -> FlashRemedy:
    return {"option": option, "saved_bytes": saved, "ram_bytes": ram, "instructions_factor": round(factor, 3)}


def remedies_text(remedies: Sequence[FlashRemedy]) -> str:
    """Format remedies as the end of a sentence."""
    texts: list[str] = []
    for one in remedies:
        costs = [f"{one['ram_bytes']:+d} bytes of RAM"] if one["ram_bytes"] else []
        if abs(one["instructions_factor"] - 1) >= 0.005:
            costs.append(f"{one['instructions_factor']:.2f} times the instructions")
        price = f" ({', '.join(costs)})" if costs else ""
        texts.append(f"{one['option']} saves {one['saved_bytes']} bytes{price}")
    return ", ".join(texts)
