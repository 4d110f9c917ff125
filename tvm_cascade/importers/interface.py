"""Attach names, types and quantization of a model's inputs and outputs to the module, past every pass.

Relax renames parameters and has no output names. So the interface is JSON text in the attribute `INTERFACE_ATTR` on
`main` and on the module; either copy is enough.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from math import prod
from typing import Any

import tvm

from tvm_cascade.errors import LoadError, OpenSizesError, UsageError
from tvm_cascade.fixed_inputs import FixedInput
from tvm_cascade.messages import printable
from tvm_cascade.passes.main_rewriting import bindings_of
from tvm_cascade.passes.states import STATES_ATTR
from tvm_cascade.tensor_spec import Cut, Domain, IoSpec, State, TensorSpec, named_apart

INTERFACE_ATTR = "cascade_interface"
_UNNAMED = ("?", "-1")  # sizes that are not known and have no name
_EXAMPLES = (16, 64)  # an extent of a sequence, of an image
MAX_ELEMENTS = 1 << 28  # of one tensor: far above what a board or a test holds, far below exhausting memory


def attach(mod: tvm.IRModule, spec: IoSpec) -> tvm.IRModule:
    """Copy `mod` with the interface `spec`."""
    plain = replace(spec, states=(), fixed=())
    told = {"states": [[s.name, s.initial.hex(), s.returned, s.form] for s in spec.states]}
    text = json.dumps(asdict(plain) | told | {"fixed": [f.to_dict() for f in spec.fixed]})
    mod = mod.clone()
    main = mod["main"].with_attr(INTERFACE_ATTR, text)
    main = main.with_attr(STATES_ATTR, len(spec.states)) if spec.states else main.without_attr(STATES_ATTR)
    mod["main"] = main.without_attr("params") if "params" in main.attrs else main  # the importer's copies of weights
    return mod.with_attr(INTERFACE_ATTR, text)


def io_spec(mod: Any) -> IoSpec:
    """Return the interface attached by `load`.

    Raises
    ------
    UsageError
        For a module that did not come from `load`.
    """
    main = [f for gv, f in mod.functions.items() if gv.name_hint == "main"]
    for holder in (*main, mod):
        if holder.attrs is not None and INTERFACE_ATTR in holder.attrs:
            raw = json.loads(str(holder.attrs[INTERFACE_ATTR]))
            cut = Cut(*(tuple(raw["cut"][side]) for side in ("until", "start")))
            states = tuple(State(n, bytes.fromhex(first), back, tuple(form)) for n, first, back, form in raw["states"])
            fixed = tuple(FixedInput.from_dict(one) for one in raw["fixed"])
            return IoSpec(_specs(raw["inputs"]), _specs(raw["outputs"]), cut, states, fixed, raw["like"])
    raise UsageError("the module does not carry its interface: load it with tvm_cascade.load")


def has_interface(mod: tvm.IRModule) -> bool:
    """Return True if a module says how its file names and shapes its inputs and outputs."""
    try:
        io_spec(mod)
    except UsageError:
        return False
    return True


def check_sizes(path: object, mod: Any) -> None:
    """Raise for a tensor with more than `MAX_ELEMENTS` elements, before any allocation, or with an extent below 1, such
    as behind a window larger than its input.

    Raises
    ------
    LoadError
        Naming the tensor.
    """
    for var in (*mod["main"].params, *(b.var for b in bindings_of(mod["main"]))):
        try:
            check_size(var.ty)
        except ValueError as error:
            raise LoadError(path, str(error)) from error


def check_input(
    path: object, name: str, shape: Sequence[int], remedy: str = "export the model with larger ones"
) -> None:
    """Raise `LoadError` for an input with a size of 0; `remedy` ends the message."""
    if 0 in shape:
        raise LoadError(
            path, f"input {printable(name)} has the shape {list(shape)}, whose sizes of 0 leave no elements", remedy
        )


def check_open_sizes(path: object, shapes: Mapping[str, Sequence[int | str]]) -> None:
    """Raise `OpenSizesError` for unknown input sizes, except a leading size, which defaults to 1.

    A text stands for an unknown size and is its name in the file. The error names all such inputs, with options that
    fix the sizes: equal names get equal sizes.
    """
    unknown = {name: shape for name, shape in shapes.items() if any(isinstance(d, str) for d in shape[1:])}
    if not unknown:
        return
    named = ", ".join(f"{printable(name)} [{', '.join(printable(str(d)) for d in s)}]" for name, s in unknown.items())
    sizes = {shape[0]: 1 for shape in unknown.values() if isinstance(shape[0], str) and shape[0] not in _UNNAMED}
    options = [
        shlex.quote(f"{name}={','.join(str(_example(d, k, len(shape), sizes)) for k, d in enumerate(shape))}")
        for name, shape in unknown.items()
    ]
    several = len(unknown) > 1
    raise OpenSizesError(
        path,
        f"input{'s' * several} {named} {'have' if several else 'has'} sizes that the file leaves open",
        f"fix them, for example with {' '.join(f'--input-shape {printable(o)}' for o in options)}",
        unknown,
    )


def _example(size: int | str, axis: int, rank: int, sizes: dict[str, int]) -> int:
    """Return a size that an example gives an axis."""
    if isinstance(size, int):
        return size
    usual = 1 if axis == 0 else _EXAMPLES[rank > 3]
    return sizes.setdefault(size, usual) if size not in _UNNAMED else usual


def check_size(kind: Any) -> None:
    """Raise `ValueError` for a tensor type of more than `MAX_ELEMENTS` elements, or with an extent of 0 or less."""
    dims = getattr(getattr(kind, "shape", None), "values", None) or ()
    extents = [int(d) for d in dims if hasattr(d, "value")]
    if any(extent < 0 for extent in extents):
        raise ValueError(f"a tensor has the shape {extents}: a window is larger than its padded input")
    if any(extent == 0 for extent in extents):
        raise ValueError(f"a tensor has the shape {extents}: no element is left of its input")
    if prod(extents) > MAX_ELEMENTS:
        raise ValueError(f"a tensor of shape {extents} exceeds {MAX_ELEMENTS} elements")


def tensor_spec(path: object, name: str, kind: Any, remedy: str = "") -> TensorSpec:
    """Return the `TensorSpec` for a tensor `name` with the Relax type `kind`.

    Raises
    ------
    LoadError
        Where its shape is not static; `remedy` says what helps.
    """
    try:
        shape = tuple(int(d) for d in kind.shape.values)
    except (AttributeError, TypeError) as error:
        raise LoadError(path, f"tensor {printable(name)} has no static shape{remedy}") from error
    return TensorSpec(name, shape, str(kind.dtype))


def with_interface(
    path: object, mod: tvm.IRModule, inputs: Sequence[str], outputs: Sequence[str], remedy: str = ""
) -> tvm.IRModule:
    """Return `mod` with the interface of `main` attached; `inputs` and `outputs` are the model's names, in order."""
    main: Any = mod["main"]
    types = list(main.ret_ty.fields) if hasattr(main.ret_ty, "fields") else [main.ret_ty]
    read = [(name, p.ty) for name, p in zip(inputs, main.params, strict=True)], zip(outputs, types, strict=True)
    sides = ([tensor_spec(path, name, kind, remedy) for name, kind in side] for side in read)
    found = [named_apart(side) for side in sides]
    return attach(mod, IoSpec(found[0], found[1]))


def check_inputs(wanted: Iterable[str], inputs: Collection[str]) -> None:
    """Raise `UsageError` if a name in `wanted` is not among the model's `inputs`."""
    unknown = [name for name in wanted if name not in inputs]
    if unknown:
        raise UsageError(f"the model has no input {unknown[0]}; its inputs: {', '.join(inputs)}")


def fits(shape: Sequence[int], known: Sequence[int | None]) -> bool:
    """Return True if a shape agrees with a known shape; None or -1 stands for an unknown extent."""
    return len(shape) == len(known) and all(d in (-1, None, s) for s, d in zip(shape, known, strict=True))


def _specs(raw: Sequence[dict[str, Any]]) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(**{**s, **_typed(s)}) for s in raw)


def _typed(raw: dict[str, Any]) -> dict[str, Any]:
    shapes = {key: tuple(raw[key]) for key in ("shape", "stream_shape")}
    return {**shapes, "domain": None if raw["domain"] is None else Domain(**raw["domain"])}
