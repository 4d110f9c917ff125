"""A `.tflite` operator in the form for requirements: tensors, constants and attributes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from tvm_cascade.importers.tflite.model import tflite


class UnsupportedForm(NotImplementedError):
    """An operator in a form that is not supported; the message says which."""


class InvalidForm(ValueError):
    """An operator against TFLite's rules; the message names the rule."""


@dataclass(frozen=True, slots=True)
class Site:
    """One operator.

    Shapes are the imported ones, if known: an inner tensor may differ from the file's declaration.
    """

    name: str  # TFLite's, such as CONV_2D
    inputs: Sequence[Any]  # the importer's wrappers; an index of -1 is an input that is left out
    outputs: Sequence[Any]
    shapes: Sequence[tuple[int, ...]]  # of the inputs; of one that is left out, ()
    attributes: Any  # the table of options by TFLite's accessors, such as `StrideH`; None where the file has none
    known: Callable[[Any], np.ndarray | None]  # the value of a tensor; None where it is computed

    def has(self, k: int) -> bool:
        """Return True if input `k` is present."""
        return k < len(self.inputs) and self.inputs[k].tensor_idx >= 0

    def value(self, k: int) -> np.ndarray | None:
        """Return input `k`; None if computed or absent."""
        return self.known(self.inputs[k]) if self.has(k) else None

    def dtype(self, k: int) -> str:
        """Return the element type of input `k`."""
        return _type(self.inputs[k])

    @property
    def made(self) -> str:
        """Return the first output's element type."""
        return _type(self.outputs[0])

    def quantized(self, k: int) -> bool:
        """Return True if input `k` has a scale."""
        return bool(self.inputs[k].qnn_params)

    def integers(self, k: int) -> list[int]:
        """Return the elements of input `k`, a constant integer tensor; empty if computed or absent."""
        found = self.value(k)
        return [] if found is None else [int(v) for v in found.reshape(-1)]

    def attribute(self, accessor: str) -> int:
        """Return an attribute; 0 without an option table, like TFLite."""
        return 0 if self.attributes is None else int(getattr(self.attributes, accessor)())


_TYPES = {code: name.lower() for name, code in vars(tflite.TensorType).items() if isinstance(code, int)}


def _type(tensor: Any) -> str:
    """Return a tensor's element type, in NumPy's spelling."""
    return _TYPES.get(tensor.tensor.Type(), "an unknown type")


Requirement: TypeAlias = Callable[[Site], str]  # what of an operator breaks it; empty where nothing does


def spelled(accessor: str) -> str:
    """Return the schema's name for an attribute, such as `stride_h`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", accessor).lower()


def listed(values: Iterable[int]) -> str:
    """Format numbers for messages, at most eight."""
    numbers = [int(v) for v in values]
    return f"[{', '.join(map(str, numbers[:8]))}{', ...' if len(numbers) > 8 else ''}]"


def described(site: Site) -> str:
    """Describe an operator, for a refusal without a better reason."""
    inputs = (f"{site.dtype(k)} {listed(site.shapes[k])}" for k in range(len(site.inputs)) if site.has(k))
    fields = [] if site.attributes is None else [a for a in vars(type(site.attributes)) if _is_number(site, a)]
    attributes = ", ".join(f"{spelled(a)} {site.attribute(a)}" for a in fields)
    return f"inputs of {', '.join(inputs)}" + (f" with {attributes}" if attributes else "")


def _is_number(site: Site, accessor: str) -> bool:
    named = accessor[0].isupper() and accessor != "Init" and "Root" not in accessor and "Numpy" not in accessor
    return named and isinstance(_called(site, accessor), (bool, int, float))


def _called(site: Site, accessor: str) -> object:
    try:
        return getattr(site.attributes, accessor)()
    except TypeError:  # an accessor of a vector
        return None
