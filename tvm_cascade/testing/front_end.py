"""An audio front end as numpy and whole numbers of any size compute it: the oracle of the C that `emit.front_end` writes.

It shares a logarithm with that and no more: its tables are spelled out here, the transform recurses, the filters are matrices.
`CONFIGURATIONS` and `chirp` are what TensorFlow Lite Micro's own front end was asked and heard for `tests/micro/front_end.json`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from math import isqrt

import numpy as np

from tvm_cascade.emit.single_log1p import single_log1p
from tvm_cascade.request import FrontEndRequest

Pair = tuple[int, int]
CONFIGURATIONS = {
    "defaults": FrontEndRequest(),
    "pymicro": FrontEndRequest(step_ms=10),
    "fine": FrontEndRequest(sample_rate=48000, window_ms=24, step_ms=12, channels=57, low_hz=60.0, high_hz=20000.0),
    "plain": FrontEndRequest(sample_rate=8000, window_ms=46, step_ms=23, channels=53, high_hz=3700.0, gain=False),
}


def chirp(asked: FrontEndRequest) -> np.ndarray:
    """Return ten windows of a loud triangular wave that glides from 0 Hz to two fifths of the sample rate, in whole numbers."""
    count = 10 * asked.window_ms * asked.sample_rate // 1000
    place = np.arange(count, dtype="int64") ** 2 * 13107 // count % 65536  # of 65536, in a period
    return np.where(place < 32768, 2 * place - 32768, 98303 - 2 * place).astype("int16")


@dataclass
class FrontEndOracle:
    """A front end that hears a stream; the fields are those of `request.FrontEndRequest`, samples for milliseconds."""

    rate: int = 16000
    window: int = 480
    step: int = 320
    channels: int = 40
    low: float = 125.0
    high: float = 7500.0
    smoothing_bits: int = 10
    smoothing: tuple[float, float] = (0.025, 0.06)
    least: float = 0.05
    gain: bool = True
    offset: float = 80.0
    strength: float = 0.95
    gain_bits: int = 21
    log_shift: int = 6
    noise: list[int] = field(default_factory=list[int])

    def __post_init__(self) -> None:
        self.points = 1
        while self.points < self.window:
            self.points *= 2
        phase = np.float32(np.float32(2 * np.pi) / np.float32(self.window)) * (
            np.arange(self.window, dtype="f4") + np.float32(0.5)
        )
        cosine = np.cos(phase.astype("f8")).astype("f4")
        self.hann = np.floor((np.float32(0.5) - np.float32(0.5) * cosine) * np.float32(4096) + np.float32(0.5)).astype(
            "i8"
        )
        self.noise = [0] * self.channels
        self.correction = int(np.log2(self.points)) - 6
        self.filters = self._filters()

    def rows(self, sound: np.ndarray) -> Iterator[list[int]]:
        """The features of every whole window of `sound`, int16."""
        for start in range(0, len(sound) - self.window + 1, self.step):
            yield self._row(sound[start : start + self.window].astype("i8"))

    def _row(self, heard: np.ndarray) -> list[int]:
        shaped = (heard * self.hann) >> 12
        shift = 15 - int(np.abs(shaped).max(initial=0, where=shaped > -32768)).bit_length()  # whose size is no int16
        padded = np.zeros(self.points, "i8")
        padded[: self.window] = (shaped << shift).astype("i2")
        spectrum = self._spectrum([int(v) for v in padded])
        energy = np.array([r * r + i * i for r, i in spectrum], object)
        sums = [int(v) for v in self.filters @ energy]
        return [self._feature(k, _root(total) >> shift) for k, total in enumerate(sums)]

    def _feature(self, channel: int, signal: int) -> int:
        part = int(np.float32(self.smoothing[channel % 2]) * np.float32(16384))
        scaled = (signal << self.smoothing_bits) % 2**32
        noise = (scaled * part + self.noise[channel] * (16384 - part)) >> 14
        self.noise[channel] = noise
        floor = signal * int(np.float32(self.least) * np.float32(16384)) >> 14
        left = max((scaled - min(noise, scaled)) >> self.smoothing_bits, floor)
        if self.gain:
            ratio = (left * self._gain(noise) >> (self.gain_bits - self.correction - 12)) % 2**32
            left = ratio * ratio >> 20 if ratio < 8192 else (ratio >> 6) - 64
        value = (left << self.correction if self.correction > 0 else left >> -self.correction) % 2**32
        return min(_logarithm(value, self.log_shift), 65535)

    def _gain(self, noise: int) -> int:
        """A parabola through three points of an octave."""

        def exact(x: int) -> int:
            real = np.float32(np.float32(x) / np.float32(2.0 ** (self.smoothing_bits - self.correction)))
            power = np.power(np.float64(real + np.float32(self.offset)), -np.float64(np.float32(self.strength)))
            return int(min(np.float32(2.0**self.gain_bits) * np.float32(power), np.float32(32766.5)) + np.float32(0.5))

        if noise <= 2:
            return exact(noise)
        octave = noise.bit_length()
        begin = 1 << (octave - 1)
        y0, y1, y2 = exact(begin), exact(begin * 3 // 2), exact(2 * begin - (octave == 32))
        slope = 4 * (y1 - y0) - (y2 - y0)
        bend = (y2 - y0) - slope
        place = (noise << 11 >> octave) & 1023
        return y0 + (((bend * place >> 5) + (slope << 5)) * place + (1 << 14) >> 15)

    def _filters(self) -> np.ndarray:
        """[channels, bins]: what a channel takes of the energy of a bin, of 4096."""
        bins, f4 = self.points // 2 + 1, np.float32
        hertz = f4(0.5 * self.rate / (bins - 1))

        def mel(x: np.float32) -> np.float32:
            return f4(1127.0) * single_log1p(x / f4(700.0))

        low, groups = mel(f4(self.low)), self.channels + 1
        spacing = (mel(f4(self.high)) - low) / f4(groups)
        ends = [low, *(f4(low + f4(spacing * f4(k + 1))) for k in range(groups))]
        matrix = np.zeros((groups + 1, bins), object)
        for k in range(int(f4(1.5) + f4(self.low) / hertz), bins):
            at = mel(f4(k) * hertz)
            group = next((g for g in range(groups) if at <= ends[g + 1]), None)
            if group is None:
                break
            weight = f4((ends[group + 1] - at) / (ends[group + 1] - ends[group]))
            matrix[group, k] = int(np.floor(weight * f4(4096) + f4(0.5)))
            matrix[group + 1, k] = int(np.floor((f4(1.0) - weight) * f4(4096) + f4(0.5)))
        return matrix[1:groups]

    def _spectrum(self, x: Sequence[int]) -> list[Pair]:
        """Bins of the real transform, of `x` scaled down by its length, rounded where 16 bits are."""
        half = self.points // 2
        made = _transform([(x[2 * k], x[2 * k + 1]) for k in range(half)])
        bins: list[Pair] = [(0, 0)] * (half + 1)  # the first and the last are not asked for
        for k in range(1, half // 2 + 1):
            (ar, ai), (br, bi) = _divided(made[k], 2), _divided((made[half - k][0], -made[half - k][1]), 2)
            turn = _turn(k + half / 2, 2 * half)
            plus, minus = (ar + br, ai + bi), _times((ar - br, ai - bi), turn)
            bins[k] = ((plus[0] + minus[0]) >> 1, (plus[1] + minus[1]) >> 1)
            bins[half - k] = ((plus[0] - minus[0]) >> 1, (minus[1] - plus[1]) >> 1)
        return bins


def _divided(a: Pair, by: int) -> Pair:
    return (a[0] * (32767 // by) + 16384 >> 15, a[1] * (32767 // by) + 16384 >> 15)


@cache
def _turn(part: float, whole: int) -> Pair:
    """A part of a whole turn, backwards, in Q15."""
    turn = np.exp(-2j * np.pi * part / whole)
    return int(np.floor(0.5 + 32767 * turn.real)), int(np.floor(0.5 + 32767 * turn.imag))


def _times(a: Pair, turn: Pair) -> Pair:
    r, i = turn
    return (a[0] * r - a[1] * i + 16384 >> 15, a[0] * i + a[1] * r + 16384 >> 15)


def _transform(x: list[Pair]) -> list[Pair]:
    count = len(x)
    if count == 1:
        return x
    by = 4 if count % 4 == 0 else 2
    parts, size = [_transform(x[k::by]) for k in range(by)], count // by
    made: list[Pair] = [(0, 0)] * count
    for k in range(size):
        turned = [_divided(part[k], by) for part in parts]
        turned = [turned[0], *(_times(v, _turn(q * k, count)) for q, v in enumerate(turned[1:], 1))]
        for place in range(by):
            total = (0, 0)
            for q, (r, i) in enumerate(turned):
                for _ in range(q * place % by * 4 // by):  # a quarter of a turn back
                    r, i = i, -r
                total = (total[0] + r, total[1] + i)
            made[k + place * size] = total
    return made


def _root(x: int) -> int:
    root = isqrt(x)
    most = 65535 if x < 2**32 else 2**32 - 1
    return root + (x - root * root > root and root != most)


def _logarithm(x: int, shift: int) -> int:
    if x <= 1:
        return 0
    whole = x.bit_length() - 1
    part = (x - (1 << whole)) * 65536 >> whole
    first = part >> 9
    low, high = (round((np.log2(1 + k / 128) - k / 128) * 65536) for k in (first, min(first + 1, 128)))
    binary = (whole << 16) + part + low + ((high - low) * (part - (first << 9)) >> 16)
    natural = 45426 * binary + 32768 >> 16
    return (natural << shift) + 32768 >> 16
