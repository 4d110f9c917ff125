"""Read TASO's file of generated substitutions (`graph_subst.pb`; Jia et al., SOSP 2019).

The file is a protocol buffer with rules. A rule has source and target operators, each with operands (operator, output),
and pairs of equal outputs. A negative operator number is a variable: any tensor.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tvm_cascade.errors import LoadError
from tvm_cascade.plain_files import readable

# numbers of TASO's enumerations; kinds by the names of `operators.table`
_KINDS = {3: "conv2d", 8: "relu", 12: "concat", 13: "split", 16: "add", 17: "mul", 18: "matmul"}
_PARAMETERS = {6: "stride_h", 7: "stride_w", 8: "pad", 9: "activation", 10: "rank", 11: "axis"}
_NUMBER, _BYTES = 0, 2  # wire types: a number of seven bits a byte; bytes behind their length


@dataclass(frozen=True, slots=True)
class TasoOperator:
    """A rule's operator: operands as (operator on the same side, or a negative variable; output)."""

    kind: str
    inputs: tuple[tuple[int, int], ...]
    parameters: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class TasoRule:
    """A rule in the file: outputs (operator, port) in the source, and the equal outputs in the target."""

    number: int
    source: tuple[TasoOperator, ...]
    target: tuple[TasoOperator, ...]
    outputs: tuple[tuple[tuple[int, int], tuple[int, int]], ...]


def read_taso_rules(path: Path) -> tuple[TasoRule, ...]:
    """Read a file's rules, numbered from 0.

    Raises
    ------
    LoadError
        The file is missing, or not of this format, or has an operator that no rule of ours has.
    """
    try:
        data = readable(path).read_bytes()
    except OSError as error:
        raise LoadError(path, str(error.strerror)) from None
    try:
        rules = tuple(_rule(k, _bytes(v)) for k, v in enumerate(v for f, v in _fields(data) if f == 1))
    except (IndexError, ValueError) as error:
        raise LoadError(path, f"no file of TASO's substitutions: {error}") from None
    if not rules:
        raise LoadError(path, "no file of TASO's substitutions: it has no rule")
    return rules


def _rule(number: int, data: bytes) -> TasoRule:
    sides: dict[int, list[TasoOperator]] = {1: [], 2: []}
    outputs: list[tuple[tuple[int, int], tuple[int, int]]] = []
    for name, value in _fields(data):
        if name in sides:
            sides[name].append(_operator(_bytes(value)))
        elif name == 3:
            pair = _numbers(_bytes(value))
            outputs.append(((pair.get(1, 0), pair.get(3, 0)), (pair.get(2, 0), pair.get(4, 0))))
    rule = TasoRule(number, tuple(sides[1]), tuple(sides[2]), tuple(outputs))
    for operators in (rule.source, rule.target):
        if any(o >= k for k, operator in enumerate(operators) for o, _ in operator.inputs):
            raise ValueError(f"rule {number} reads an operator before it is made")
    ends = [(a, b) for (a, _), (b, _) in outputs]
    if not ends or any(not (0 <= a < len(rule.source) and 0 <= b < len(rule.target)) for a, b in ends):
        raise ValueError(f"rule {number} has no outputs, or outputs of operators that it lacks")
    return rule


def _operator(data: bytes) -> TasoOperator:
    kind, inputs, parameters = "", list[tuple[int, int]](), dict[str, int]()
    for name, value in _fields(data):
        if name == 1:
            if value not in _KINDS:
                raise ValueError(f"operators of TASO's kind {value} are not known")
            kind = _KINDS[value]
        elif name == 2:
            operand = _numbers(_bytes(value))
            inputs.append((operand.get(1, 0), operand.get(2, 0)))
        elif name == 3:
            parameter = _numbers(_bytes(value))
            if parameter.get(1, 0) in _PARAMETERS:
                parameters[_PARAMETERS[parameter.get(1, 0)]] = parameter.get(2, 0)
    if len(inputs) != (1 if kind in ("relu", "split") else 2):
        raise ValueError(f"{kind or 'an operator without a kind'} of {len(inputs)} operands")
    return TasoOperator(kind, tuple(inputs), parameters)


def _numbers(data: bytes) -> dict[int, int]:
    return {name: value for name, value in _fields(data) if isinstance(value, int)}


def _bytes(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise ValueError("a number where a record belongs")
    return value


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield a protocol buffer's field numbers and values; values are 64-bit integers, or bytes."""
    place = 0
    while place < len(data):
        key, place = _integer(data, place)
        value, place = _integer(data, place)
        if key & 7 == _NUMBER:
            yield key >> 3, value - (1 << 64) if value >> 63 else value
        elif key & 7 == _BYTES and place + value <= len(data):
            yield key >> 3, data[place : place + value]
            place += value
        else:
            raise ValueError(f"a field of wire type {key & 7}, or cut short, at byte {place}")


def _integer(data: bytes, place: int) -> tuple[int, int]:
    """Read a number with seven bits per byte, lowest first; return it and the next position."""
    value = shift = 0
    while data[place] & 128:
        value |= (data[place] & 127) << shift
        place, shift = place + 1, shift + 7
        if shift > 63:
            raise ValueError(f"a number of more than 64 bits at byte {place}")
    return value | data[place] << shift, place + 1
