"""An operator of a `.tflite` file as requirements see it: its tensors, its constants and its attributes."""

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
    """An operator that breaks TFLite's rules; the message says which one."""


@dataclass(frozen=True, slots=True)
class Site:
    """One operator.

    Shapes are those of the tensors as far as they are imported: an inner tensor may differ from what the file declares.
    """

    name: str  # TFLite's, such as CONV_2D
    inputs: Sequence[Any]  # the importer's wrappers; an index of -1 is an input that is left out
    outputs: Sequence[Any]
    shapes: Sequence[tuple[int, ...]]  # of the inputs; of one that is left out, ()
    attributes: Any  # the table of options by TFLite's accessors, such as `StrideH`; None where the file has none
    known: Callable[[Any], np.ndarray | None]  # the value of a tensor; None where it is computed

    def has(self, k: int) -> bool:
        """Whether input `k` is there."""
        return k < len(self.inputs) and self.inputs[k].tensor_idx >= 0

    def value(self, k: int) -> np.ndarray | None:
        """Input `k`; None where it is computed or left out."""
        return self.known(self.inputs[k]) if self.has(k) else None

    def dtype(self, k: int) -> str:
        """The element type of input `k`."""
        return _type(self.inputs[k])

    @property
    def made(self) -> str:
        """The element type of the first output."""
        return _type(self.outputs[0])

    def quantized(self, k: int) -> bool:
        """Whether input `k` has a scale."""
        return bool(self.inputs[k].qnn_params)

    def integers(self, k: int) -> list[int]:
        """The elements of input `k`, a constant of integers; none where it is computed or left out."""
        found = self.value(k)
        return [] if found is None else [int(v) for v in found.reshape(-1)]

    def attribute(self, accessor: str) -> int:
        """An attribute; the number 0 where the file has no table of options, as TFLite takes it."""
        return 0 if self.attributes is None else int(getattr(self.attributes, accessor)())


_TYPES = {code: name.lower() for name, code in vars(tflite.TensorType).items() if isinstance(code, int)}


def _type(tensor: Any) -> str:
    """The element type of a wrapper's tensor, as NumPy spells it."""
    return _TYPES.get(tensor.tensor.Type(), "an unknown type")


Requirement: TypeAlias = Callable[[Site], str]  # what of an operator breaks it; empty where nothing does


def spelled(accessor: str) -> str:
    """The schema's name of an attribute, such as `stride_h`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", accessor).lower()


def listed(values: Iterable[int]) -> str:
    """Numbers as messages have them, the first eight."""
    numbers = [int(v) for v in values]
    return f"[{', '.join(map(str, numbers[:8]))}{', ...' if len(numbers) > 8 else ''}]"


def described(site: Site) -> str:
    """What an operator is made of, for a refusal that knows no more."""
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
