"""Compare two plans, projects or runs by the figures in the files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tvm_cascade.errors import LoadError
from tvm_cascade.plain_files import readable
from tvm_cascade.schema.comparison import Comparison, Side
from tvm_cascade.sizes import bytes_and_unit

_LINES = {  # key of a side: its line
    "peak_bytes": "arena",
    "bound_bytes": "lower bound",
    "macs": "multiply-accumulates",
    "weight_bytes": "weights",
    "instructions": "instructions",
    "stack_bytes": "stack",
    "ram_bytes": "RAM of the image",
    "flash_bytes": "flash",
}
_WHAT = "what `plan --json` or `run --json` printed, or the folder of a project"


def compare(a: str | Path, b: str | Path) -> Comparison:
    """Read two plans, projects or runs, to see how they differ.

    Parameters
    ----------
    a, b : path
        What `plan --json`, `compile --json` or `run --json` printed, or a folder that `compile` or `bundle` wrote.

    Returns
    -------
    dict
        The JSON object of `tvm-cascade compare`: the bytes and counts of `a` and of `b`; `comparison_text` prints it.

    Raises
    ------
    LoadError
        A path cannot be read, or holds something else.
    """
    return {"a": _side(Path(a)), "b": _side(Path(b))}


def comparison_text(found: Comparison) -> str:
    """Format the differences, a single line each: both values, and the change from the first to the second."""
    a, b = found["a"], found["b"]
    lines = [f"a  {a['kind']:<8} {a['path']}", f"b  {b['kind']:<8} {b['path']}", ""]
    lines.append(f"{'':<22}{'a':>28}{'b':>28}  change")
    for key, name in _LINES.items():
        one, other = a.get(key), b.get(key)
        if isinstance(one, int) and isinstance(other, int) and one != other:
            change = f"{other - one:+d}" + (f" ({100 * (other / one - 1):+.1f} %)" if one else "")
            lines.append(f"{name:<22}{_shown(key, one):>28}{_shown(key, other):>28}  {change}")
    for name, one in a["options"].items():
        if (other := b["options"].get(name, one)) != one:
            lines.append(f"{name:<22}{one:>28}{other:>28}")
    return "\n".join(lines) if len(lines) > 4 else "\n".join([*lines[:3], "nothing that both say differs"])


def _shown(key: str, value: int) -> str:
    """Format a value; bytes also in a larger unit."""
    return bytes_and_unit(value) if key.endswith("_bytes") else str(value)


def _side(path: Path) -> Side:
    file = path / "metadata.json" if path.is_dir() else path
    try:
        data = json.loads(readable(file).read_text(encoding="utf-8"))
    except OSError as error:
        raise LoadError(file, f"{error.strerror}; give {_WHAT}") from None
    except ValueError:
        raise LoadError(file, f"is no JSON; give {_WHAT}") from None
    try:
        if path.is_dir():
            return _of_project(path, data)
        if "arena_high_water_bytes" in data:
            options = {"board": str(data["board"])}
            own = {"peak_bytes": data["arena_bytes"], "macs": data["executed_macs"]}
            return _made(path, "run", data | own, options)
        return _of_plan(path, data)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise LoadError(path, f"is something else; give {_WHAT}") from None


def _of_plan(path: Path, data: Mapping[str, Any]) -> Side:
    own = {"peak_bytes": data["peak_bytes"], "instructions": data["estimated"]["estimated_instructions"]}
    return _made(path, "plan", {**data, **own}, {k: str(data[k]) for k in ("target", "board") if k in data})


def _of_project(path: Path, data: Mapping[str, Any]) -> Side:
    own = data.get("bundle") or data["project"]
    options = {"target": own["target"], "board": own["board"]}
    asked = {name: value for name, value in data.get("options", {}).items() if not isinstance(value, Mapping)}
    options |= {name: "none" if value is None else str(value) for name, value in asked.items()}
    if "bundle" in data:
        return _made(path, "project", {"peak_bytes": own["arena_bytes"]}, options)
    weights = sum(op["weight_bytes"] for op in data["operators"])
    image = {key: value for key, value in (data.get("image") or {}).items() if key in _LINES}
    return _made(path, "project", {**data["plan"], **image, "weight_bytes": weights}, options)


def _made(path: Path, kind: Any, data: Mapping[str, Any], options: dict[str, str]) -> Side:
    """Build a single side of the comparison. Raise `TypeError` if a figure is not a whole number."""
    numbers: dict[str, Any] = {key: data.get(key) for key in _LINES}
    if not all(v is None or (isinstance(v, int) and not isinstance(v, bool) and v >= 0) for v in numbers.values()):
        raise TypeError
    return {"path": str(path), "kind": kind, "options": options, **numbers}  # type: ignore[typeddict-item]
