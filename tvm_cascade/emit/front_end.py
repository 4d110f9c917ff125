"""An audio front end as C for a single configuration: from sound to rows of log-mel features, in integers (`tvm-cascade
front-end`).

The arithmetic equals TensorFlow Lite Micro's audio front end bit for bit (rfc/0019, section 7). Tables are computed
here, so the C has no floats, and no memory besides state and a single spectrum.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import tvm_cascade
from tvm_cascade.emit import front_end_tables as tables
from tvm_cascade.emit.template import fill_template, template
from tvm_cascade.errors import UsageError
from tvm_cascade.publish import publish, require_empty
from tvm_cascade.request import FrontEndRequest

_LINE = 116  # characters of a row of numbers
_BYTES = {"uint8_t": 1, "uint16_t": 2, "int16_t": 2, "struct pair": 4}


@dataclass(frozen=True, slots=True)
class FrontEnd:
    """A front end as C."""

    texts: Mapping[str, str]  # of its files, by name
    step_samples: int  # of a push
    first_row: int  # pushes until there is a row
    ram_bytes: int
    table_bytes: int


@dataclass(frozen=True, slots=True)
class _Table:
    kind: str
    name: str
    items: tuple[str, ...]

    @property
    def bytes(self) -> int:
        return _BYTES[self.kind] * len(self.items)

    @property
    def text(self) -> str:
        rows = [""]
        for item in self.items:
            if len(rows[-1]) + len(item) > _LINE:
                rows.append("")
            rows[-1] += f"{' ' * bool(rows[-1])}{item},"
        lines = (f"static const {self.kind} {self.name}[{len(self.items)}] = {{", *(f"    {row}" for row in rows), "};")
        return "\n".join(lines)


def write_front_end(asked: FrontEndRequest, output: Path) -> FrontEnd:
    """Write the C and the header into the new folder `output`.

    Raises `UsageError` for a configuration without a possible front end, and for an `output` that exists and is not
    empty.
    """
    made = front_end(asked)
    with publish(output, require_empty) as folder:
        for name, text in made.texts.items():
            (folder / name).write_text(text, encoding="utf-8", newline="\n")
    return made


def front_end(asked: FrontEndRequest) -> FrontEnd:
    """Write the front end for a configuration."""
    if not re.fullmatch(r"[a-z_][a-z0-9_]*", asked.name):
        raise UsageError(f"--name {asked.name} is no C identifier of small letters, digits and underscores")
    window, step = (tables.samples(asked, ms) for ms in (asked.window_ms, asked.step_ms))
    if not 1 <= step <= window:
        raise UsageError(
            f"--step-ms {asked.step_ms} has to be at most --window-ms {asked.window_ms}: sound would be left out"
        )
    if window < 5:
        raise UsageError(f"--window-ms {asked.window_ms} holds {window} samples: give more")
    scaled = tables.correction_bits(asked)
    if asked.gain and (asked.smoothing_bits < scaled or asked.gain_bits < scaled + tables.SNR_BITS):
        least = f"--smoothing-bits {scaled} and --gain-bits {scaled + tables.SNR_BITS}"
        raise UsageError(f"a transform of {tables.points(asked)} points takes at least {least}")
    held, numbers = _tables(asked), _numbers(asked, window, step)
    values = {key: str(value) for key, value in numbers.items()}
    values |= {"version": tvm_cascade.__version__, "name": asked.name, "NAME": asked.name.upper()}
    values["tables"] = "\n".join(table.text for table in held)
    for name, (code, call) in {"gain": _gain(asked), "log": _log(asked)}.items():
        values |= {f"{name}_code": fill_template(code, values), f"{name}_call": call}
    texts = {f"{asked.name}{end}": fill_template(template(f"front_end{end}.in"), values) for end in (".c", ".h")}
    return FrontEnd(texts, step, numbers["first"], numbers["ram"], sum(table.bytes for table in held))


def _numbers(asked: FrontEndRequest, window: int, step: int) -> dict[str, int]:
    first, half = -(-window // step), tables.points(asked) // 2
    even, odd, least = (
        int(np.float32(x) * np.float32(1 << tables.NOISE_BITS))
        for x in (asked.even_smoothing, asked.odd_smoothing, asked.least_signal)
    )
    return {
        "rate": asked.sample_rate, "channels": asked.channels, "window_ms": asked.window_ms, "step_ms": asked.step_ms,
        "window": window, "step": step, "half": half, "first": first, "span": asked.span, "even": even, "odd": odd,
        "least": least, "smoothing_bits": asked.smoothing_bits, "log_shift": asked.log_shift,
        "stages": len(tables.transform(asked).factors), "first_bin": tables.filters(asked).first,
        "ram": 4 * asked.channels + 4 + 2 * first * step + 4 * half,
    }  # fmt: skip


def _gain(asked: FrontEndRequest) -> tuple[str, str]:
    """Write the function for the gain, and the lines applying the gain."""
    if not asked.gain:
        return "", ""
    shift = asked.gain_bits - tables.correction_bits(asked) - tables.SNR_BITS
    out = tables.SNR_BITS - tables.GAIN_OUT_BITS
    lines = (
        f"    const uint32_t ratio = (uint32_t)(((uint64_t)signal * gain_at(noise)) >> {shift});",
        f"    signal = ratio < {2 << tables.SNR_BITS}u ? (ratio * ratio) >> {2 + tables.SNR_BITS + out}"
        f" : (ratio >> {out}) - {1 << tables.GAIN_OUT_BITS}u;",
    )
    return template("front_end_gain.c.in"), "".join(f"{line}\n" for line in lines)


def _log(asked: FrontEndRequest) -> tuple[str, str]:
    if not asked.log:
        return "", ""
    bits = tables.correction_bits(asked)
    way = f"<<= {bits}" if bits >= 0 else f">>= {-bits}"
    return template("front_end_log.c.in"), f"    signal {way};\n    signal = signal > 1u ? logarithm(signal) : 0u;\n"


def _tables(asked: FrontEndRequest) -> list[_Table]:
    made, filters = tables.transform(asked), tables.filters(asked)
    found = [
        _table("uint8_t", "factors", made.factors),
        _table("uint16_t", "order", made.order),
        _pairs("twiddles", made.twiddles),
        _pairs("real_twiddles", made.real_twiddles),
        _table("int16_t", "hann", tables.window(asked)),
        _table("uint16_t", "widths", filters.widths),
        _table("uint16_t", "weights", filters.weights),
        _table("uint16_t", "rest", filters.rest),
    ]
    found += [_table("int16_t", "gains", tables.gains(asked))] if asked.gain else []
    return [*found, *([_table("uint16_t", "logarithms", tables.logarithms())] if asked.log else [])]


def _table(kind: str, name: str, numbers: Sequence[int]) -> _Table:
    return _Table(kind, name, tuple(map(str, numbers)))


def _pairs(name: str, numbers: Sequence[tuple[int, int]]) -> _Table:
    return _Table("struct pair", name, tuple(f"{{{r}, {i}}}" for r, i in numbers))
