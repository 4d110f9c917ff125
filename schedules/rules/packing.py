"""Weight packing: rearranges weights at compile time into the order in which a kernel reads them from flash.

Square brackets are array shapes; filler, if any, is a few bytes per channel.
"""

from __future__ import annotations

import numpy as np


def interleave(weights: np.ndarray, block: int, group: int) -> np.ndarray:
    """Pack [kh, kw, ic, oc], per block of outputs and kernel row, as `[groups][block][group]` and a tail `[rest][block]`.

    The kw * ic values of a kernel row are contiguous in an NHWC row; `group` values are read at once. A block and
    kernel row takes kw * ic * block values, so the block from output `start` on begins at `start * kh * kw * ic`.
    """
    kh, kw, ic, oc = weights.shape
    length = kw * ic
    whole = length // group * group
    flat = weights.reshape(kh, length, oc)
    parts: list[np.ndarray] = []
    for start, count, size in ((0, oc // block, block), (oc // block * block, 1, oc % block)):
        own = flat[..., start : start + count * size].reshape(kh, length, count, size).transpose(2, 0, 1, 3)
        main = own[:, :, :whole].reshape(count, kh, whole // group, group, size).swapaxes(3, 4)
        rows = (p.reshape(count, kh, p[0, 0].size if count else 0) for p in (main, own[:, :, whole:]))
        parts.append(np.concatenate([*rows], axis=2).ravel())
    return np.concatenate(parts)


PAIRED = (0, 2, 1, 3)  # order in which `uxtb16` and `uxtb16 ror 8` widen the four bytes of a word to halfwords


def paired(weights: np.ndarray) -> np.ndarray:
    """Reorder [kh, kw, ic, oc] int16: every four taps of a kernel row in the order `PAIRED`, a shorter rest unchanged."""
    kh, kw, ic, oc = weights.shape
    length = kw * ic
    flat = weights.reshape(kh, length, oc).copy()
    whole = length // 4 * 4
    flat[:, :whole] = flat[:, :whole].reshape(kh, -1, 4, oc)[:, :, list(PAIRED)].reshape(kh, whole, oc)
    return flat.reshape(weights.shape)


def nibbles(weights: np.ndarray) -> np.ndarray:
    """Pack weights in [-8, 8), int8 [count], a multiple of eight, as int32 [count / 8].

    A word's bytes hold the first four in their lower halves, the others in their upper halves.
    """
    halves = (weights.reshape(-1, 2, 4) & 15).astype(np.uint8)
    return (halves[:, 0] | halves[:, 1] << 4).astype(np.uint8).reshape(-1).view("<i4")


def tap_nibbles(weights: np.ndarray) -> np.ndarray:
    """Pack weights in [-8, 8), [taps, ...], as int8 [taps / 2, ...]: an even tap in the lower half of a byte, the next in the
    upper half.

    The last upper half is empty if taps are odd.
    """
    even, odd = weights[::2], np.zeros_like(weights[::2])
    odd[: len(weights) // 2] = weights[1::2]
    return (even & 15 | odd << 4).astype(np.uint8).view(np.int8)


def tailed_interleave(weights: np.ndarray, block: int, group: int) -> np.ndarray:
    """Pack as `interleave` does, but with the tail in groups of eight, too: `[rest / 8][block][8]`.

    The number of outputs must be a multiple of `block`, the number of tail values a multiple of eight.
    """
    kh, kw, ic, oc = weights.shape
    length = kw * ic
    whole = length // group * group
    flat = weights.reshape(kh, length, oc // block, block).transpose(2, 0, 3, 1)  # [blocks, kh, block, length]
    parts = [flat[..., i : i + group] for i in range(0, whole, group)]
    parts += [flat[..., i : i + 8] for i in range(whole, length, 8)]
    return np.concatenate([p.reshape(oc // block, kh, -1) for p in parts], axis=2).ravel()


def lane_table(requantize: np.ndarray, biases: np.ndarray) -> np.ndarray:
    """Pack vectors of four channels, int32: for every four channels `[multiplier][-shift][bias 0][bias 1]...`, flat.

    `requantize` is [c, 3] as in `Requantize.table`, short form; `biases` is [variants, c].
    """
    rows = np.concatenate([requantize[:, :1].T, -requantize[:, 2:].T, biases]).astype(np.int32)  # [2 + variants, c]
    return rows.reshape(rows.shape[0], -1, 4).transpose(1, 0, 2).ravel()


def lane_records(weights: np.ndarray, biases: np.ndarray, requantize: np.ndarray) -> tuple[np.ndarray, int]:
    """Pack records of eight channels for `depthwise_mve`: int32 words, flat, and the words per record.

    `[multiplier even][odd][-shift even][odd]`, then a bias pair per row variant, then the weights, eight bytes a tap.
    """
    channels = weights.shape[-1]
    rows = np.concatenate([requantize[:, :1].T, -requantize[:, 2:].T, biases]).astype("<i4")
    split = rows.reshape(rows.shape[0], channels // 8, 4, 2).transpose(1, 0, 3, 2).reshape(channels // 8, -1)
    taps = weights.reshape(-1, channels // 8, 8).transpose(1, 0, 2).copy().view("<i4").reshape(channels // 8, -1)
    records = np.concatenate([split, taps], axis=1)
    return records.ravel(), records.shape[1]


def in_bytes(numbers: np.ndarray, bits: int) -> np.ndarray:
    """Pack numbers along the last axis, several in a byte, the first in the lowest bits; leave 8-bit numbers unchanged."""
    per = 8 // bits
    if per == 1:
        return np.ascontiguousarray(numbers)
    padded = np.pad(numbers, [(0, 0)] * (numbers.ndim - 1) + [(0, -numbers.shape[-1] % per)])
    parts = padded.reshape(*numbers.shape[:-1], -1, per).astype(np.uint8) & np.uint8((1 << bits) - 1)
    return np.bitwise_or.reduce(parts << (np.arange(per, dtype=np.uint8) * np.uint8(bits)), axis=-1)


def from_bytes(packed: np.ndarray, bits: int, size: int) -> np.ndarray:
    """Unpack `size` unsigned numbers along the last axis from bytes of `in_bytes`."""
    parts = (packed[..., None] >> (np.arange(8 // bits, dtype=np.uint8) * np.uint8(bits))) & np.uint8((1 << bits) - 1)
    return parts.reshape(*packed.shape[:-1], -1)[..., :size]
