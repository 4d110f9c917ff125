"""Move views of maps behind the elementwise operators, concats and slices that read them, so that these run along the map's
rows or pixels.

    before: a = reshape(map, [1, t, c])      after: b = tanh(map)
            b = tanh(a)                             c = reshape(b, [1, t, c])

A Keras `Conv1D` is a convolution over a map of one row, with a view behind; PyTorch's quantizer stores anew behind a
flatten. Exact: the order of elements stays. What reads the view itself still finds it.
"""

from __future__ import annotations

from math import prod
from typing import Any

from tvm_cascade.passes.islands.stored import Stored
from tvm_cascade.passes.layout.channels_last import BINARY, UNARY
from tvm_cascade.passes.main_rewriting import Rewriting, Value, bindings_of, constant_of, name_of, relax, shape_of
from tvm_cascade.passes.relax_functions import substitute

_VIEWS = ("reshape", "squeeze", "flatten", "expand_dims")


def with_sunk_views(mod: Any) -> Any:
    """Return `mod` with views of maps behind elementwise operators, concats and slices in `main`; `mod` itself if none reads
    a view.
    """
    if not any(name_of(b.value) in _VIEWS and _is_map(b.value.args[0], b.value) for b in bindings_of(mod["main"])):
        return mod
    sinking = _Sinking(mod)
    made = sinking.run()
    return made.with_attrs(dict(mod.attrs or {})) if sinking.moved else mod


def _is_map(source: Value, view: Value) -> bool:
    """Test whether a view gives several rows or pixels of a rank-4 tensor in a lower rank."""
    shape = shape_of(source)
    return len(shape) == 4 > len(shape_of(view)) and sum(d > 1 for d in shape) > 1


def _places(view: tuple[int, ...], axis: int, shape: tuple[int, ...]) -> set[int]:
    """Return the axes in a map with this shape that a view axis may be: as long, with as much in front."""
    return {a for a, d in enumerate(shape) if d == view[axis] and prod(shape[:a]) == prod(view[:axis])}


class _Sinking(Rewriting):
    def __init__(self, mod: Any) -> None:
        super().__init__(mod)
        self.maps: dict[Value, Value] = {}  # old value -> new value with the same elements as a map
        self.reals: set[Value] = set()  # of these, real numbers that stand for stored integers
        self.moved = 0

    def _bind(self, var: Value, value: Value) -> None:
        for rule in (self._aliased, self._moved, self._kept):
            made = rule(var, value)
            if made is not None:
                self.renamed[var] = made
                return

    def _kept(self, var: Value, value: Value) -> Value:
        made = self.bb.emit(substitute(value, self.renamed))
        if name_of(value) in _VIEWS and (source := self._map_of(value.args[0])) is not None and _is_map(source, value):
            self.maps[var] = source
        return made

    def _map_of(self, value: Value) -> Value | None:
        return self.maps.get(value, self.renamed.get(value, value)) if isinstance(value, relax.Var) else None

    def _aliased(self, var: Value, value: Value) -> Value | None:
        """Return what a variable or a view is another name for: a map that had been given another shape."""
        if isinstance(value, relax.Var):
            if value in self.maps:
                self.maps[var] = self.maps[value]
            return self.renamed.get(value, value)
        if name_of(value) not in _VIEWS or value.args[0] not in self.maps or value.args[0] in self.reals:
            return None
        source = self.maps[value.args[0]]
        return source if shape_of(source) == shape_of(var) else None

    def _moved(self, var: Value, value: Value) -> Value | None:
        """Emit an operator on maps; return a view with the operator's own shape. None for an operator that stays."""
        stored = Stored.read_by(value)
        if stored is not None:
            if stored.scales == 1 and stored.tensor in self.maps:
                self.maps[var] = self.bb.emit(stored.along(self.maps[stored.tensor]).reals)
                self.reals.add(var)
            return None
        name = name_of(value)
        if name == "concat":
            made, read = self._concat(value), list(getattr(value.args[0], "fields", ()))
        elif name == "strided_slice":
            made, read = self._slice(value), [value.args[0]]
        elif name in UNARY or name in BINARY:
            operands, read = self._operands(value), list(value.args)
            made = None if operands is None else self.bb.emit(self._on_map(value, operands))
        else:
            return None
        if made is None:
            return None
        self.maps[var] = made
        if any(a in self.reals for a in read) and name != "quantize":
            self.reals.add(var)  # readers that are not elementwise find the operator where it was
            return None
        self.moved += 1
        return self.bb.emit(relax.op.reshape(made, list(shape_of(var))))

    def _concat(self, call: Value) -> Value | None:
        """Emit a concat of maps; None if a part is no map, or if no axis of the maps is the views' axis."""
        parts = list(getattr(call.args[0], "fields", ()))
        if not parts or any(not isinstance(p, relax.Var) or p not in self.maps for p in parts):
            return None
        axis, maps = int(call.attrs.axis) % len(shape_of(call)), [self.maps[p] for p in parts]
        common = set.intersection(*(_places(shape_of(p), axis, shape_of(m)) for p, m in zip(parts, maps, strict=True)))
        place = common.pop() if len(common) == 1 else None
        if place is None or len({shape_of(m)[:place] + shape_of(m)[place + 1 :] for m in maps}) > 1:
            return None
        return self.bb.emit(relax.op.concat(maps, axis=place))

    def _slice(self, call: Value) -> Value | None:
        """Emit a slice of a map; None if what is sliced is no map, or if no axis of the map is an axis that is cut."""
        source = self.maps.get(call.args[0]) if isinstance(call.args[0], relax.Var) else None
        if source is None or any(not isinstance(a, relax.Tuple) for a in call.args[1:]):
            return None
        axes, *bounds = ([getattr(f.value, "value", f.value) for f in a.fields] for a in call.args[1:])
        if not all(isinstance(n, int) for row in (axes, *bounds) for n in row):
            return None
        shape = shape_of(call.args[0])
        places = [_places(shape, axis % len(shape), shape_of(source)) for axis in axes]
        if any(len(found) != 1 for found in places):
            return None
        along = [place for (place,) in places]
        return self.bb.emit(
            relax.op.strided_slice(source, along, *bounds, assume_inbound=bool(call.attrs.assume_inbound))
        )

    def _operands(self, call: Value) -> list[Value] | None:
        """Return an operator's operands as maps; None if none is a map, or if they do not fit together."""
        read = [a for a in call.args if isinstance(a, relax.Var) and a in self.maps]
        shape = shape_of(self.maps[read[0]]) if read else ()
        if not read or any(shape_of(self.maps[a]) != shape for a in read):
            return None
        if name_of(call) == "quantize" and Stored.written_by(call).scales != 1:  # pyright: ignore[reportOptionalMemberAccess]
            return None
        squeezed = [d for d in shape if d > 1] == [d for d in shape_of(call) if d > 1]
        if not squeezed and len(read) < sum(prod(shape_of(a)) > 1 for a in call.args):
            return None  # the operands that are no maps would need the view of a view
        operands = [self._operand(a, call, shape) for a in call.args]
        return None if any(o is None for o in operands) else operands

    def _operand(self, value: Value, call: Value, shape: tuple[int, ...]) -> Value | None:
        new = substitute(value, self.renamed)
        if isinstance(value, relax.Var) and value in self.maps:
            return self.maps[value] if shape_of(value) == shape_of(call) else None
        if not isinstance(value.ty, relax.TensorType) or prod(shape_of(value)) == 1:
            return new if len(shape_of(value)) <= 1 else self._reshaped(new, (1,) * 4)
        if shape_of(value) == shape_of(call):
            return self._reshaped(new, shape)
        channels = prod(shape_of(value)) == shape_of(value)[-1] == shape[-1] == shape_of(call)[-1]
        return new if channels and len(shape_of(value)) <= len(shape) else None  # broadcast over rows and pixels

    def _reshaped(self, value: Value, shape: tuple[int, ...]) -> Value:
        data = constant_of(self._definition(value))
        if data is not None:
            return relax.const(data.reshape(shape), str(data.dtype))
        stored = Stored.read_by(self._definition(value))
        if stored is not None and stored.scales == 1:
            return self.bb.emit(stored.along(self._reshaped(stored.tensor, shape)).reals)
        return self.bb.emit(relax.op.reshape(value, list(shape)))

    def _on_map(self, call: Value, operands: list[Value]) -> Value:
        if name_of(call) == "quantize":
            return relax.op.quantize(*operands, axis=0, out_dtype=str(call.attrs.out_dtype))
        return relax.Call(call.op, operands, call.attrs)
