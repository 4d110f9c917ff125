"""Requirements on TFLite operators' inputs and attributes, as functions that return them.

Each one mirrors an assertion in the `Prepare` functions of TFLite's kernels (tensorflow/lite/kernels); the message says
the actual value.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from tvm_cascade.importers.tflite.site import Requirement, Site, UnsupportedForm, listed, spelled

_SAME, _VALID = 0, 1
_STORED = ("int8", "uint8", "int16")


def rank(k: int, fewest: int, most: int | None = None) -> Requirement:
    """Require `fewest` to `most` axes for input `k`, or exactly `fewest`."""
    last = fewest if most is None else most

    def check(site: Site) -> str:
        if not site.has(k) or fewest <= len(site.shapes[k]) <= last:
            return ""
        wanted = f"{fewest}" if fewest == last else f"{fewest} to {last}"
        return f"its input {k} has the shape {listed(site.shapes[k])}, not {wanted} axes"

    return check


def at_least(least: int, *accessors: str) -> Requirement:
    """Require attributes of `least` or more."""

    def check(site: Site) -> str:
        low = next((a for a in accessors if site.attribute(a) < least), None)
        return f"its {spelled(low)} is {site.attribute(low)}, and has to be {least} or more" if low else ""

    return check


def padded(site: Site) -> str:
    """Require SAME or VALID for the attribute padding."""
    padding = site.attribute("Padding")
    return "" if padding in (_SAME, _VALID) else f"its padding is {padding}, neither SAME (0) nor VALID (1)"


def axes(k: int, called: str = "axis", beyond: int = 0, data: int = 0) -> Requirement:
    """Require the constants in input `k` to be axes of input `data`, or up to `beyond` behind its last."""

    def check(site: Site) -> str:
        count = len(site.shapes[data]) + beyond
        wrong = next((a for a in site.integers(k) if not -count <= a < count), None)
        return "" if wrong is None else f"its {called} is {wrong}, of an input of {count - beyond} axes"

    return check


def axis_attribute(accessor: str, beyond: int = 0) -> Requirement:
    """Require an attribute to be an axis of input 0."""

    def check(site: Site) -> str:
        count, axis = len(site.shapes[0]) + beyond, site.attribute(accessor)
        return (
            "" if -count <= axis < count else f"its {spelled(accessor)} is {axis}, of inputs of {count - beyond} axes"
        )

    return check


def one_each(k: int, called: str, each: int = 1) -> Requirement:
    """Require `each` constants in input `k` for every axis of input 0."""

    def check(site: Site) -> str:
        if not site.has(k) or site.value(k) is None:
            return ""
        count, wanted = len(site.integers(k)), each * len(site.shapes[0])
        return "" if count == wanted else f"its {called} has {count} elements, {wanted} are needed"

    return check


def count_of(k: int, called: str, wanted: int) -> Requirement:
    """Require this number of constants in input `k`."""

    def check(site: Site) -> str:
        found = len(site.integers(k))
        return "" if found == wanted else f"its {called} has {found} element{'s' * (found != 1)}, not {wanted}"

    return check


def within(k: int, called: str, least: int, most: int | None = None) -> Requirement:
    """Require the constants in input `k` to lie between two bounds."""

    def check(site: Site) -> str:
        values = site.integers(k)
        if all(least <= v and (most is None or v <= most) for v in values):
            return ""
        bound = f"{least} or more" if most is None else f"{least} to {most}"
        return f"its {called} is {listed(values)}, and has to be {bound}"

    return check


def real(*inputs: int) -> Requirement:
    """Require inputs to be floats, or to have a scale."""

    def check(site: Site) -> str:
        wrong = (k for k in inputs if site.has(k) and site.dtype(k) != "float32" and not site.quantized(k))
        k = next(wrong, None)
        return "" if k is None else f"its input {k} is of {site.dtype(k)} and has no scale"

    return check


def of(k: int, *dtypes: str) -> Requirement:
    """Require one of these types for input `k`."""

    def check(site: Site) -> str:
        return "" if not site.has(k) or site.dtype(k) in dtypes else f"its input {k} is of {site.dtype(k)}"

    return check


def known(k: int, called: str) -> Requirement:
    """Require a constant input `k`."""

    def check(site: Site) -> str:
        if site.has(k) and site.value(k) is None:
            raise UnsupportedForm(f"its {called} (input {k}) is computed, and has to be constant")
        return ""

    return check


def scaled(site: Site) -> str:
    """Require a scale on the output if the data have one."""
    lost = site.quantized(0) and not site.outputs[0].qnn_params and site.made in _STORED
    return f"its output is of {site.made} and has no scale" if lost else ""


def real_or(*dtypes: str) -> Requirement:
    """Require input 0 to be floats, one of these types, or scaled."""
    return lambda site: "" if site.dtype(0) in dtypes else real(0)(site)


def stores(site: Site) -> str:
    """Require a scale on the output."""
    return (
        ""
        if site.outputs[0].qnn_params and site.made != "float32"
        else f"its output is of {site.made} and has no scale"
    )


def broadcast(*inputs: int) -> Requirement:
    """Require inputs with shapes that broadcast to one."""

    def check(site: Site) -> str:
        return _unequal(site, inputs) if _broadcast([site.shapes[k] for k in inputs]) is None else ""

    return check


def broadcast_all(site: Site) -> str:
    """Require all inputs to have shapes that broadcast to one."""
    return broadcast(*range(len(site.inputs)))(site)


def equal_types(*inputs: int) -> Requirement:
    """Require inputs with a single type."""

    def check(site: Site) -> str:
        kinds = dict.fromkeys(site.dtype(k) for k in inputs if site.has(k))
        return "" if len(kinds) < 2 else f"its inputs are of {' and '.join(kinds)}"

    return check


def joined(site: Site) -> str:
    """Require concatenated inputs to agree in type, and in all axes but the attribute axis."""
    count, axis = len(site.shapes[0]), site.attribute("Axis")
    if not -count <= axis < count:
        return f"its axis is {axis}, of inputs of {count} axes"
    rest = {(*s[: axis % count], *s[axis % count + 1 :]) for s in site.shapes if prod(s)}  # lists of loops begin empty
    if len(rest) > 1 or any(len(s) != count for s in site.shapes):
        return f"{_unequal(site, range(len(site.shapes)))} beside the axis {axis}"
    return equal_types(*range(len(site.inputs)))(site)


def packed(site: Site) -> str:
    """Require inputs with a single shape and a single type; the attribute values_count gives their number."""
    if len(set(site.shapes)) > 1:
        return _unequal(site, range(len(site.shapes)))
    if site.attribute("ValuesCount") != len(site.inputs):
        return f"its values_count is {site.attribute('ValuesCount')}, of {len(site.inputs)} inputs"
    return equal_types(*range(len(site.inputs)))(site) or axis_attribute("Axis", beyond=1)(site)


def multiplied(site: Site) -> str:
    """Require matrix factors with matching last axes, after adj_x and adj_y, and broadcasting batches."""
    x, y = site.shapes[:2]
    if min(len(x), len(y)) < 2:
        return f"{_unequal(site, (0, 1))}, and matrices have two axes or more"
    depth = x[-2] if site.attribute("AdjX") else x[-1]
    other = y[-1] if site.attribute("AdjY") else y[-2]
    if depth != other:
        turned = ", ".join(f"{spelled(a)} {bool(site.attribute(a))}".lower() for a in ("AdjX", "AdjY"))
        return f"{_unequal(site, (0, 1))}, with {turned}"
    return _unequal(site, (0, 1)) if _broadcast([x[:-2], y[:-2]]) is None else equal_or_quantized(site)


def equal_or_quantized(site: Site) -> str:
    """Require two inputs with a single type, or both with a scale, or a scaled second beside a float first."""
    scales = site.quantized(1) and (site.quantized(0) or site.dtype(0) == "float32")
    return "" if scales else equal_types(0, 1)(site)


def divisible(site: Site) -> str:
    """Refuse integers divided by a constant 0, and anything by 0 in FLOOR_DIV."""
    divisor = site.value(1)
    if divisor is None or divisor.all() or site.quantized(1):
        return ""
    refused = divisor.dtype.kind in "iu" or site.name == "FLOOR_DIV"
    return "its divisor (input 1) holds 0, by which the reference does not divide" if refused else ""


def raised(site: Site) -> str:
    """Refuse integers raised to a negative power."""
    power = site.value(1)
    negative = power is not None and power.dtype.kind == "i" and power.min(initial=0) < 0
    return "its exponent (input 1) is negative, to which integers are not raised" if negative else ""


def permutation(site: Site) -> str:
    """Require every axis once in perm (input 1)."""
    order, count = site.integers(1), len(site.shapes[0])
    turned = sorted(a % count if -count <= a < count else -1 for a in order) if count else order
    return "" if turned == list(range(count)) else f"its perm is {listed(order)}, of an input of {count} axes"


def reshaped(site: Site) -> str:
    """Require equal element counts in the new shape and the input; a single extent may be -1 for the rest."""
    wanted = site.integers(1)
    if not wanted and not (site.has(1) and site.value(1) is not None):
        return ""
    count, known = prod(site.shapes[0]), prod(d for d in wanted if d != -1)
    left = wanted.count(-1)
    sound = left < 2 and min(wanted, default=0) >= -1 and (known == count if not left else known and count % known == 0)
    return "" if sound else f"its new shape is {listed(wanted)}, of an input of shape {listed(site.shapes[0])}"


def squeezed(site: Site) -> str:
    """Require a single element along removed axes."""
    if site.attributes is None or not site.attributes.SqueezeDimsLength():
        return ""
    shape, gone = site.shapes[0], [int(a) for a in site.attributes.SqueezeDimsAsNumpy()]
    sound = all(-len(shape) <= a < len(shape) and shape[a] == 1 for a in gone)
    return "" if sound else f"its squeeze_dims are {listed(gone)}, of an input of shape {listed(shape)}"


def sliced(site: Site) -> str:
    """Require begin and size (inputs 1 and 2) inside the input; a size of -1 means the rest."""
    begin, size, shape = site.integers(1), site.integers(2), site.shapes[0]
    if site.value(1) is None or site.value(2) is None:
        return ""
    ends = (d if n == -1 else b + n for b, n, d in zip(begin, size, shape, strict=True))
    sound = all(0 <= b <= e <= d and n >= -1 for b, e, n, d in zip(begin, ends, size, shape, strict=True))
    return "" if sound else f"its begin is {listed(begin)} and its size {listed(size)}, of a shape of {listed(shape)}"


def stepped(site: Site) -> str:
    """Require begin, end and strides (inputs 1 to 3) in equal number, at most the input's rank; no stride may be 0."""
    limits = [site.integers(k) for k in (1, 2, 3)]
    if any(site.value(k) is None for k in (1, 2, 3)):
        return ""
    if len({len(v) for v in limits}) > 1:
        return f"its begin, end and strides have {', '.join(str(len(v)) for v in limits)} elements"
    if 0 in limits[2]:
        return f"its strides are {listed(limits[2])}: a step of 0 never ends"
    masks = (site.attribute("NewAxisMask"), site.attribute("EllipsisMask"))
    taken = sum(not any(mask >> k & 1 for mask in masks) for k in range(len(limits[0])))
    if taken > len(site.shapes[0]):
        return f"its begin has {taken} axes, of an input of shape {listed(site.shapes[0])}"
    if bin(masks[1]).count("1") > 1:
        return f"its ellipsis_mask is {masks[1]}, of which one bit may be set"
    return "" if any(masks) or site.value(0) is not None else _emptied(site, *limits)


def _emptied(site: Site, begin: Sequence[int], end: Sequence[int], strides: Sequence[int]) -> str:
    """Return the complaint about an axis left empty by a strided slice, or indexed outside."""
    first, last, shrunk = (site.attribute(f"{which}Mask") for which in ("Begin", "End", "ShrinkAxis"))
    for k, (b, e, step, extent) in enumerate(zip(begin, end, strides, site.shapes[0], strict=False)):
        if site.attribute("Offset"):
            b = b + extent if b < 0 else b
            e = b + e
        if shrunk >> k & 1:
            if not (first >> k & 1 or -extent <= b < extent):
                return f"its begin is {b} along axis {k}, of {extent}"
            continue
        taken = slice(None if first >> k & 1 else b, None if last >> k & 1 else e, step)
        if not range(*taken.indices(extent)):
            return f"its begin, end and strides are {b}, {e} and {step} along axis {k}, of {extent}: nothing is left"
    return ""


def broadcast_into(site: Site) -> str:
    """Require an input that broadcasts to the shape (input 1)."""
    wanted = tuple(site.integers(1))
    if site.value(1) is None or _broadcast([site.shapes[0], wanted]) == wanted:
        return ""
    return f"its shape is {listed(wanted)}, of an input of shape {listed(site.shapes[0])}"


def blocks_fit(site: Site) -> str:
    """Require for SPACE_TO_BATCH_ND and its inverse blocks of 1 or more for the axes behind the batch, with two pads or
    crops each.
    """
    shape, blocks, edges = site.shapes[0], site.integers(1), site.integers(2)
    if site.value(1) is None or site.value(2) is None:
        return ""
    inverse = site.name == "BATCH_TO_SPACE_ND"
    called = "crops" if inverse else "paddings"
    if not 0 < len(blocks) < len(shape) or min(blocks) < 1:
        return f"its block_shape is {listed(blocks)}, of an input of shape {listed(shape)}"
    if len(edges) != 2 * len(blocks) or min(edges, default=0) < 0:
        return f"its {called} are {listed(edges)}, for {len(blocks)} axes"
    if inverse and shape[0] % prod(blocks):
        return f"its block_shape is {listed(blocks)}, of {shape[0]} batches"
    if inverse:
        left = (shape[1 + i] * b - edges[2 * i] - edges[2 * i + 1] for i, b in enumerate(blocks))
        return "" if min(left) > 0 else f"its crops are {listed(edges)}, and leave nothing of {listed(shape)}"
    padded_to = (shape[1 + i] + edges[2 * i] + edges[2 * i + 1] for i in range(len(blocks)))
    sound = all(extent % b == 0 for extent, b in zip(padded_to, blocks, strict=True))
    return (
        "" if sound else f"its block_shape is {listed(blocks)}, its paddings {listed(edges)}, its input {listed(shape)}"
    )


def space_in_blocks(site: Site) -> str:
    """Require whole blocks along rows and columns for SPACE_TO_DEPTH."""
    block, shape = site.attribute("BlockSize"), site.shapes[0]
    sound = block > 0 and not (shape[1] % block or shape[2] % block)
    return "" if sound else f"its block_size is {block}, of an input of shape {listed(shape)}"


def depth_in_blocks(site: Site) -> str:
    """Require whole blocks along channels for DEPTH_TO_SPACE."""
    block, shape = site.attribute("BlockSize"), site.shapes[0]
    sound = block > 0 and not shape[3] % block**2
    return "" if sound else f"its block_size is {block}, of {shape[3]} channels"


def gathered(site: Site) -> str:
    """Require for GATHER axis and batch_dims inside the data, with the leading extents of the indices."""
    data, indices = site.shapes[:2]
    axis, batch = site.attribute("Axis"), site.attribute("BatchDims")
    if not -len(data) <= axis < len(data):
        return f"its axis is {axis}, of an input of {len(data)} axes"
    count = batch + len(indices) if batch < 0 else batch
    if not 0 <= count <= min(len(indices), axis % len(data)) or data[:count] != indices[:count]:
        return f"its batch_dims is {batch}, its inputs have the shapes {listed(data)} and {listed(indices)}"
    return ""


def gathered_nd(site: Site) -> str:
    """Require for GATHER_ND a last index extent within the data's rank."""
    data, indices = site.shapes[:2]
    if indices and 1 <= indices[-1] <= len(data):
        return ""
    return _unequal(site, (0, 1))


def scattered(site: Site) -> str:
    """Require for SCATTER_ND an index row for every update; updates have the shape behind the indexed axes."""
    indices, updates, _ = site.shapes
    known = site.value(2)
    shape = [] if known is None else [int(extent) for extent in known.reshape(-1)]
    count = indices[-1] if indices else 0
    sound = 1 <= count <= len(shape) and min(shape) > 0 and updates == (*indices[:-1], *shape[count:])
    return "" if sound else _unequal(site, (0, 1, 2))


def chosen(site: Site) -> str:
    """Require for SELECT two inputs with one shape, and a condition with that shape, its first axis or one element."""
    condition, x, y = site.shapes
    return "" if x == y and condition in ((), x[:1], x) else _unequal(site, (0, 1, 2))


def slopes(site: Site) -> str:
    """Require for PRELU slopes (input 1) that broadcast to the data."""
    return "" if _broadcast(site.shapes[:2]) == site.shapes[0] else _unequal(site, (0, 1))


def _broadcast(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...] | None:
    """Return the broadcast shape; None for incompatible shapes."""
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        return None


def _unequal(site: Site, inputs: Sequence[int]) -> str:
    return f"its inputs have the shapes {' and '.join(listed(site.shapes[k]) for k in inputs[:4])}"
