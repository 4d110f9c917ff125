"""What coding a network's weights saves, and what it costs: the choice behind `--flash` (`schedules.rules.coded`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor, log10

from tvm_cascade.passes.prepare_graph import PreparedGraph
from tvm_cascade.schedules.rules.coded import LEAST_SAVED, codable, instructions_of, saved_bytes
from tvm_cascade.schedules.rules.dense import read_dense
from tvm_cascade.schedules.rules.quantized import read_conv


@dataclass(frozen=True, slots=True)
class CodedLayer:
    """A layer with weights that may be coded."""

    saved: int  # bytes
    instructions: int  # of an inference, more, estimated

    @property
    def price(self) -> float:
        """Return the instructions that a byte costs."""
        return self.instructions / self.saved


def coded_layers(prepared: PreparedGraph) -> tuple[CodedLayer, ...]:
    """List the layers of a network with weights that may be coded, the cheapest byte first."""
    found: list[CodedLayer] = []
    for operator in prepared.extracted.operators if prepared.core.core.rules else ():
        spec = None if operator is None else operator.spec
        conv = None if spec is None else read_conv(spec) or read_dense(spec)
        if conv is not None and codable(conv):
            saved = saved_bytes(conv, prepared.core)
            if saved >= LEAST_SAVED:
                found.append(CodedLayer(saved, instructions_of(conv, prepared.core)))
    return tuple(sorted(found, key=lambda layer: layer.price))


@dataclass(frozen=True, slots=True)
class Coding:
    """The layers coded at a price."""

    price: float  # instructions that a byte costs at most
    layers: int
    saved: int  # bytes

    def __str__(self) -> str:
        return f"coding the weights of {self.layers} layer{'s' * (self.layers > 1)}, {self.saved} bytes fewer"


def coding_that_saves(layers: Sequence[CodedLayer], missing: int) -> Coding:
    """Choose the layers to code that save `missing` bytes by the cheapest bytes; all of them if they do not save as many."""
    saved, number = 0, 0
    for number, layer in enumerate(layers, 1):
        saved += layer.saved
        more = number < len(layers) and layers[number].price == layer.price
        if saved >= missing and not more:
            break
    price = rounded_up(layers[number - 1].price)
    chosen = [layer for layer in layers if layer.price <= price]
    return Coding(price, len(chosen), sum(layer.saved for layer in chosen))


def rounded_up(price: float) -> float:
    """Return the least number of three digits that is not below."""
    digits = 2 - floor(log10(price))
    return ceil(price * 10.0**digits) / 10.0**digits
