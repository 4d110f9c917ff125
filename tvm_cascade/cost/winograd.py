"""Work of 3x3 convolutions on CPUs by Winograd's minimal filtering, as the kernels of `staging.kernels.cpu_winograd` do it.

F(m x m, 3 x 3) computes tiles of m x m outputs by (m + 2)^2 multiplications for each pair of channels, in place of 9 m^2.
Work is counted in multiplications, transforms and reads of weights included. The kernels choose their form by it, and the
analytic cost prices them by it.
"""

from __future__ import annotations

from tvm_cascade.cost.interface import OpFeatures

LARGEST = 4  # m, of the tiles that programs use unless told otherwise
_LANES = 16  # channels of a packed tensor's vector
_SIZES = (2, 4)
_TRANSFORM = 16  # multiplications that take as long as the transforms of one value of a transformed tile
_LOAD = 13  # multiplications that take as long as reading a weight that is in no near cache
_WORTH = 0.9  # of the work of the direct form, from which on this one is taken
_LEAST = 36 / (9 * 16)  # share of the multiplications that F(4x4, 3x3) has


def winograd_size(channels: tuple[int, int], out: tuple[int, int], largest: int) -> int | None:
    """Choose the tile size m, up to `largest`, with the least work for a convolution; None if the direct form has less.

    `channels`: input's and output's; `out`: rows and columns of the output.
    """
    return _form(channels, out, largest)[0]


def share(op: OpFeatures) -> float:
    """Return the share of an operator's multiply-accumulates that a CPU's kernel takes the time of: below 1 for convolutions
    in Winograd's form.
    """
    told = _convolution(op)
    return 1.0 if told is None else _form(*told, LARGEST)[1]


def least_share(op: OpFeatures) -> float:
    """Bound `share` from below for an operator that is merged with others, which may be worth another form."""
    return 1.0 if _convolution(op) is None else _LEAST


def _form(channels: tuple[int, int], out: tuple[int, int], largest: int) -> tuple[int | None, float]:
    """Return the tile size with the least work, and this work as a share of the direct form's."""
    ic, oc = (-(-c // _LANES) * _LANES for c in channels)
    direct = 9 * ic * oc * (out[0] * out[1] + _LOAD)
    work = {}
    for m in (s for s in _SIZES if s <= largest):
        tiles = -(-out[0] // m) * -(-out[1] // m)
        work[m] = (m + 2) ** 2 * (tiles * (ic * oc + _TRANSFORM * (ic + oc)) + _LOAD * ic * oc)
    best = min(work, key=lambda m: work[m], default=None)
    if best is None or work[best] >= _WORTH * direct:
        return None, 1.0
    return best, work[best] / direct


def _convolution(op: OpFeatures) -> tuple[tuple[int, int], tuple[int, int]] | None:
    """Return channels and output extents of a convolution that may have Winograd's form; None for other operators.

    The form is for 3x3 windows of stride 1, batch 1 and packed inputs: channels first, that fill most of their vectors.
    """
    if op.kind != "conv2d":
        return None
    merged = op.shape[:1] == (-4,)
    own = op.shape[3:] if merged else op.shape
    ends = [k for k, value in enumerate(own) if value == -1]
    if len(ends) < 2:
        return None
    source, result, window = own[: ends[0]], own[ends[0] + 1 : ends[1]], own[ends[1] + 1 : ends[1] + 8]
    if len(source) != 4 or len(result) != 4 or len(window) < 7 or source[0] != 1:
        return None
    taps = op.shape[1:3] if merged else (window[0], window[4])
    if tuple(taps) != (3, 3) or (window[1], window[2], window[5], window[6]) != (1, 1, 1, 1):
        return None
    channels, pixels = source[1], result[2] * result[3]
    if op.reduction != 9 * channels or 3 * (-channels % _LANES) > channels:
        return None
    return (channels, op.output_elements // pixels), (result[2], result[3])
