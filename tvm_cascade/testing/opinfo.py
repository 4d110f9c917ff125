"""What becomes of a sample of PyTorch's OpInfo database as a `.pt2` file: it computes what torch computes, is refused with a
reason, or something is wrong.

Every entry of the database (an operator, for float32, int64 or bool) gives one sample, drawn by the seed. Those are left out
that torch does not sample, compute or export, that have no tensor of one to five axes, and that compute no numbers, or others
every time.
"""

from __future__ import annotations

import json
import random
import tempfile
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

import tvm_cascade
from tvm_cascade.errors import CascadeError, ToolError, ValidationError
from tvm_cascade.importers.torch.package import torch_package
from tvm_cascade.testing.forked import PASS, REFUSED, SECONDS, WRONG, Outcome, forked

torch: Any = torch_package()
tree: Any = torch.utils._pytree
LEFT_OUT = "left out"
_DTYPES = (torch.float32, torch.int64, torch.bool)
_SAMPLES = 60  # of an entry, at most, from which one is drawn
_LONGEST = 300  # characters of a reason


@dataclass(frozen=True, slots=True)
class Entry:
    """An operator for a type, and which of its samples is drawn."""

    name: str
    operator: Any
    dtype: Any
    pick: int


def entries(seed: int = 1) -> list[Entry]:
    """Return the entries of the database, in an order that the seed decides."""
    database = import_module("torch.testing._internal.common_methods_invocations").op_db
    drawn = random.Random(seed)
    found = [(o, d) for o in database for d in _DTYPES if d in o.dtypes]
    drawn.shuffle(found)
    return [Entry(_name(o, d), o, d, drawn.randrange(_SAMPLES)) for o, d in found]


def _name(operator: Any, dtype: Any) -> str:
    variant = f".{operator.variant_test_name}" if operator.variant_test_name else ""
    return f"{operator.name}{variant} {str(dtype).removeprefix('torch.')}"


def outcomes(chosen: Iterable[Entry], jobs: int = 1, seconds: int = SECONDS) -> Iterator[tuple[Entry, Outcome]]:
    """What becomes of every entry, in the order in which they end; see `forked`."""
    torch.set_num_threads(1)
    examined(Entry("warm", SimpleNamespace(get_op=lambda: torch.relu, sample_inputs=_warm_samples), torch.float32, 0))
    yield from forked(chosen, examined, jobs, seconds)


def _warm_samples(*_: Any, **__: Any) -> list[Any]:
    """One sample, by which everything is loaded before the first entry is forked."""
    return [SimpleNamespace(input=torch.ones(1, 4), args=(), kwargs={})]


class _Call(torch.nn.Module):
    """A call of a function, whose tensors are the inputs."""

    def __init__(self, function: Any, sample: Any) -> None:
        super().__init__()
        self.function = function
        self.leaves, self.spec = tree.tree_flatten(((sample.input, *sample.args), sample.kwargs))
        self.given = [v.detach() for v in self.leaves if isinstance(v, torch.Tensor)]

    def forward(self, *given: Any) -> Any:
        rest = iter(given)
        leaves = [next(rest) if isinstance(v, torch.Tensor) else v for v in self.leaves]
        args, keywords = tree.tree_unflatten(leaves, self.spec)
        return tuple(tree.tree_leaves(self.function(*args, **keywords)))


def examined(entry: Entry) -> Outcome:
    """What becomes of the sample of one entry."""
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "sample.pt2"
        try:
            call = _drawn(entry)
            wanted = _computed(call)
            program = torch.export.export(call.eval(), tuple(x.clone() for x in call.given), strict=False)
            torch.export.save(program, path)
        except Exception:  # torch's own, of many kinds
            return Outcome(LEFT_OUT)
        try:
            made = _run(path, program.graph_signature.user_inputs, call.given)
        except (ToolError, ValidationError) as error:
            return Outcome(WRONG, _line(error, folder))
        except CascadeError as error:
            return Outcome(REFUSED, _line(error, folder))
        said = difference(made, wanted, call)
        return Outcome(WRONG, said) if said else Outcome(PASS)


def _drawn(entry: Entry) -> _Call:
    torch.manual_seed(0)
    given = entry.operator.sample_inputs("cpu", entry.dtype, requires_grad=False)
    usable = list(islice((s for s in given if _is_usable(s)), _SAMPLES + 1))
    return _Call(entry.operator.get_op(), usable[entry.pick % len(usable)])


def _is_usable(sample: Any) -> bool:
    leaves = tree.tree_leaves((sample.input, sample.args, sample.kwargs))
    tensors = [v for v in leaves if isinstance(v, torch.Tensor)]
    return bool(tensors) and all(
        1 <= t.dim() <= 5 and 1 <= t.numel() <= 4000 and t.layout == torch.strided for t in tensors
    )


def _computed(call: _Call) -> list[np.ndarray]:
    """What torch computes; raises `ValueError` for no numbers, or others every time."""
    with torch.no_grad():
        first, again = ([t.numpy().copy() for t in call(*[x.clone() for x in call.given])] for _ in range(2))
    for one, other in zip(first, again, strict=True):
        if one.dtype.kind not in "fiub" or not np.array_equal(one, other, equal_nan=bool(one.dtype.kind == "f")):
            raise ValueError("no numbers, or others every time")
    return first


def _run(path: Path, names: Sequence[str], given: Sequence[Any]) -> list[np.ndarray]:
    project = path.parent / "project"
    tvm_cascade.compile(path, target="host", output=project, cache=False)
    stored = json.loads((project / "metadata.json").read_text())["project"]["interface"]["inputs"]
    kinds = {one["name"]: one["dtype"] for one in stored}
    inputs = {n: x.numpy().astype(kinds[n]) for n, x in zip(names, given, strict=True) if n in kinds}
    return [np.asarray(v) for v in tvm_cascade.run(project, inputs=inputs).outputs.values()]


def difference(made: Sequence[np.ndarray], wanted: Sequence[np.ndarray], call: _Call | None = None) -> str:
    """Return what differs first between what was computed and what torch computes; "" where nothing does.

    Integers of 64 bits may be of 32. Places of equal elements may be others: torch leaves their order open.
    """
    if len(made) != len(wanted):
        return f"{len(made)} outputs for {len(wanted)}"
    for one, other in zip(made, wanted, strict=True):
        other = other.astype(one.dtype) if other.dtype == np.int64 and one.dtype == np.int32 else other
        if one.shape != other.shape or one.dtype != other.dtype:
            return f"{one.dtype}{list(one.shape)} for {other.dtype}{list(other.shape)}"
        if other.dtype.kind in "biu":
            if not np.array_equal(one, other) and not (call is not None and _equal_elements(call, made, one, other)):
                return "other integers"
            continue
        finite = other[np.isfinite(other)]
        top = min(float(np.abs(finite).max()), 1e6) if finite.size else 1.0
        if not np.allclose(one, other, rtol=1e-4, atol=1e-5 * max(top, 1e-3), equal_nan=True):
            return f"{one.ravel()[:2]} for {other.ravel()[:2]}"
    return ""


def _equal_elements(call: _Call, made: Sequence[np.ndarray], one: np.ndarray, other: np.ndarray) -> bool:
    """Return whether two results of `topk`, which are places, name equal elements of its input."""
    if getattr(call.function, "__name__", "") != "topk" or one is not made[1]:
        return False
    given = call.given[0].numpy()
    numbers = [v for v in call.leaves if not isinstance(v, torch.Tensor)]
    axis = numbers[1] if len(numbers) > 1 and not isinstance(numbers[1], bool) else -1
    found, wanted = (np.take_along_axis(given, places, axis) for places in (one, other))
    return np.array_equal(found, wanted)


def _line(error: Exception, folder: str) -> str:
    text = str(error).replace(f"{folder}/", "")
    return " ".join("".join(c for c in text if c.isprintable() or c.isspace()).split())[:_LONGEST]


def read_expected(path: Path) -> dict[str, Outcome]:
    """The expected outcomes, as `written` writes them."""
    lines = (line.split("\t") for line in path.read_text().splitlines() if not line.startswith("#"))
    return {name: Outcome(*rest) for name, *rest in lines}


def written(expected: Mapping[str, Outcome]) -> str:
    """A line for every entry: its name, the verdict, and the reason where it did not pass."""
    head = (
        "# Outcomes of the entries of PyTorch's OpInfo database: name, verdict, reason of a refusal.",
        "# Written by `python benchmarks/opinfo.py --update`.",
    )
    return "\n".join((*head, *(line(name, outcome) for name, outcome in sorted(expected.items())))) + "\n"


def line(name: str, outcome: Outcome) -> str:
    """An entry as `read_expected` reads it."""
    return "\t".join((name, outcome.verdict, *([outcome.reason] if outcome.reason else [])))
