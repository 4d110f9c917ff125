"""Tables for an audio front end in integers: window, Fourier transform, mel filters, gain and logarithm.

Arithmetic and precision are those of TensorFlow Lite Micro's audio front end: a table that differs in a single number
changes the features. Every step is in single floats. Cosines and powers are the nearest single floats to the exact
values; logarithms are rounded as in the C libraries used with the front end (`single_log1p`).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import cos, floor, pi, sin

import numpy as np

from tvm_cascade.emit.single_log1p import single_log1p
from tvm_cascade.errors import UsageError
from tvm_cascade.request import FrontEndRequest

WEIGHT_BITS = 12  # fraction bits of the window and of the filters
NOISE_BITS = 14  # fraction bits of the noise estimate's smoothing
SNR_BITS, GAIN_OUT_BITS = 12, 6  # fraction bits of what the gain multiplies to, and of what comes out of it
LOG_BITS, LOG_SEGMENTS = 16, 7  # fraction bits of the logarithm, and of the places of its table
_f = np.float32


@dataclass(frozen=True, slots=True)
class Filters:
    """Triangles over the mel scale. A bin belongs to one rising and one falling slope: the `weights` go to the bin's
    own group, the rest up to 1 (`rest`) to the next.
    """

    first: int  # bin
    widths: tuple[int, ...]  # bins of each group, one group more than channels
    weights: tuple[int, ...]  # of every bin from `first` on, with WEIGHT_BITS
    rest: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Transform:
    """A complex transform with half the real transform's points, in stages; twiddles are Q15 pairs."""

    factors: tuple[int, ...]  # outermost first
    order: tuple[int, ...]  # by place, the element that stands there before the first stage
    twiddles: tuple[tuple[int, int], ...]
    real_twiddles: tuple[tuple[int, int], ...]  # that make the real transform of the complex one


def samples(asked: FrontEndRequest, milliseconds: int) -> int:
    """Convert a time to samples."""
    return milliseconds * asked.sample_rate // 1000


def points(asked: FrontEndRequest) -> int:
    """Return the transform's points: the least power of two with room for a window."""
    return 1 << (samples(asked, asked.window_ms) - 1).bit_length()


def correction_bits(asked: FrontEndRequest) -> int:
    """Return the bits by which the transform scales down, beyond the filters' bits."""
    return points(asked).bit_length() - 1 - WEIGHT_BITS // 2


def window(asked: FrontEndRequest) -> tuple[int, ...]:
    """Compute Hann's window, with WEIGHT_BITS."""
    size = samples(asked, asked.window_ms)
    step = _f(2 * pi) / _f(size)
    cosines = (_f(cos(step * _f(i + 0.5))) for i in range(size))
    return tuple(_fixed(_f(0.5) - _f(0.5) * cosine) for cosine in cosines)


def _fixed(value: np.float32) -> int:
    return floor(value * _f(1 << WEIGHT_BITS) + _f(0.5))


def _mel(frequency: np.float32) -> np.float32:
    return _f(1127.0) * single_log1p(frequency / _f(700.0))


def filters(asked: FrontEndRequest) -> Filters:
    """Compute the filters of all channels; raise `UsageError` if a filter exceeds half the sample rate."""
    bins, groups = points(asked) // 2 + 1, asked.channels + 1
    low, high = _mel(_f(asked.low_hz)), _mel(_f(asked.high_hz))
    spacing = (high - low) / _f(groups)
    centres = [low + spacing * _f(i + 1) for i in range(groups)]
    width = _f(0.5) * _f(asked.sample_rate) / _f(bins - 1)
    first = at = int(_f(1.5) + _f(asked.low_hz) / width)
    widths, weights, rest = [], [], []
    for group, centre in enumerate(centres):
        before = low if group == 0 else centres[group - 1]
        begun = at
        while (mel := _mel(_f(at) * width)) <= centre:
            weight = (centre - mel) / (centre - before)
            weights.append(_fixed(weight))
            rest.append(_fixed(_f(1.0) - weight))
            at += 1
        widths.append(at - begun)
    if at >= bins:
        raise UsageError(f"--high-hz {asked.high_hz:g} is too near half the sample rate of {asked.sample_rate} Hz")
    return Filters(first, tuple(widths), tuple(weights), tuple(rest))


def transform(asked: FrontEndRequest) -> Transform:
    """Plan the transform's radix-4 and radix-2 stages."""
    count, factors = points(asked) // 2, list[int]()
    left = count
    while left > 1:
        factors.append(4 if left % 4 == 0 else 2)
        left //= factors[-1]
    order = [0]
    for place, factor in enumerate(reversed(factors)):
        stride = int(np.prod(factors[: len(factors) - 1 - place]))
        order = [digit * stride + rest for digit in range(factor) for rest in order]
    angles = [-2 * pi * k / count for k in range(count)]
    halves = [-pi * ((k + 1) / count + 0.5) for k in range(count // 2)]
    return Transform(tuple(factors), tuple(order), _turns(angles), _turns(halves))


def _turns(angles: list[float]) -> tuple[tuple[int, int], ...]:
    return tuple((floor(0.5 + 32767 * cos(a)), floor(0.5 + 32767 * sin(a))) for a in angles)


def gains(asked: FrontEndRequest) -> tuple[int, ...]:
    """Compute the gain by noise, as parabolas: two values, then for each octave the value at the start, a slope, a
    bend, and a gap.
    """
    scale = asked.smoothing_bits - correction_bits(asked)

    def gain(x: int) -> int:
        real = _f(_f(x) / _f(2.0**scale)) + _f(asked.gain_offset)
        value = _f(1 << asked.gain_bits) * _f(float(real) ** -float(_f(asked.gain_strength)))
        return 32767 if value > 32767 else int(_f(value + _f(0.5)))

    table = [gain(0), gain(1)]
    for octave in range(2, 33):
        begin = 1 << (octave - 1)
        end = 2 * begin - 1 if octave == 32 else 2 * begin
        here = gain(begin)
        middle, last = gain(begin + begin // 2) - here, gain(end) - here
        slope = 4 * middle - last
        table += [here, slope, last - slope, 0]
    return tuple(table[:-1])


def logarithms() -> tuple[int, ...]:
    """Compute log2(1 + x) - x, in units of 2^-LOG_BITS, at segment ends in [0, 1]."""
    count = 1 << LOG_SEGMENTS
    found = [round((np.log2(1 + k / count) - k / count) * (1 << LOG_BITS)) for k in range(count + 1)]
    return (*found, 0)
