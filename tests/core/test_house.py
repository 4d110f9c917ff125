"""The house's arrows point one way: what each room may import, read from the source of every module."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

ALGORITHMS = {
    "graph",
    "native",
    "operators",
    "program",
    "cores",
    "memory",
    "ordering",
    "sliding",
    "cost",
    "cascading",
    "substitution",
    "parallel",
}
BASE = {
    "cache",
    "checks",
    "cuda_toolkit",
    "errors",
    "extras",
    "fixed_inputs",
    "footprints",
    "lazy",
    "machine",
    "messages",
    "plain_files",
    "publish",
    "records",
    "request",
    "schema",
    "search_monitor",
    "sizes",
    "text_templates",
}
MAY_IMPORT = {  # room: the rooms that it may import, beside BASE
    "cache": set(),
    "checks": set(),
    "cuda_toolkit": set(),
    "errors": set(),
    "extras": set(),
    "fixed_inputs": set(),
    "footprints": set(),
    "lazy": set(),
    "machine": set(),
    "messages": set(),
    "plain_files": set(),
    "publish": set(),
    "records": set(),
    "request": set(),
    "schema": set(),
    "comparison": set(),
    "search_monitor": set(),
    "sizes": set(),
    "text_templates": set(),
    "graph": set(),
    "tensor_spec": {"graph"},
    "operators": {"graph"},
    "program": {"operators"},
    "cores": {"graph"},
    "native": set(),
    "memory": {"graph", "native"},
    "ordering": {"graph", "memory", "native"},
    "sliding": {"graph"},
    "cost": {"graph", "operators"},
    "cascading": {"native", "graph", "cores", "memory", "ordering", "cost"},
    "parallel": {"graph", "operators", "cost"},
    "substitution": {"graph", "operators", "cost", "parallel"},
    "schedules": ALGORITHMS,
    "passes": ALGORITHMS | {"schedules"},
    # an integer LSTM has no float form that a pass could lower: it is lowered as it is read
    "importers": {"operators", "passes", "program", "sliding", "tensor_spec"},
    "frontend": {"importers", "tensor_spec"},
    "report": {"graph", "cores", "memory", "cost", "cascading"},
    "pipeline": ALGORITHMS | {"schedules", "passes", "frontend", "report", "results", "tensor_spec"},
    "registration": {"relax_pipeline"},
    "late_methods": set(),
    "tvm_import": set(),
    "torch_import": set(),
    "staging.kernels": ALGORITHMS | {"schedules", "passes"},
    "staging.program": ALGORITHMS | {"schedules", "passes", "staging.kernels"},
    "relax_pipeline": ALGORITHMS | {"schedules", "passes", "request", "staging.kernels", "staging.program"},
    "runtime": ALGORITHMS | {"schedules", "passes", "staging.kernels", "staging.program"},
    "measured": ALGORITHMS | {"schedules", "passes", "staging.kernels", "staging.program", "runtime"},
    "optimizing": ALGORITHMS | {"schedules", "passes", "importers", "staging.program", "measured", "runtime"},
    "deploy": ALGORITHMS
    | {"schedules", "passes", "pipeline", "runtime", "staging.kernels", "staging.program"}
    | {"measured", "tensor_spec"},
    "boards": ALGORITHMS,
    "emit": ALGORITHMS | {"schedules", "passes", "pipeline", "tensor_spec", "boards", "report"},
    "checking": ALGORITHMS | {"schedules", "passes", "importers", "frontend", "pipeline", "tensor_spec", "emit"},
    "runs": ALGORITHMS
    | {"schedules", "passes", "importers", "frontend", "report", "pipeline", "tensor_spec"}
    | {"boards", "emit", "checking"},
    "samples": {"graph", "tensor_spec"},
    "validation": {"cores", "samples", "importers", "frontend", "pipeline", "tensor_spec"}
    | {"boards", "emit", "checking", "runs"},
    "quantization": {"samples", "importers", "frontend", "checking", "tensor_spec"},
    "compilation": ALGORITHMS | {"report", "results", "schedules", "passes", "pipeline", "boards", "emit", "runs"},
    "results": {"cascading", "report"},
}
NO_TVM = ALGORITHMS | BASE | {"tensor_spec", "report", "registration", "results", "cli"}


SCHEDULES_MAY_IMPORT = {  # the same inside of schedules/
    "tir": set(),
    "kernels": {"tir"},
    "rules": {"tir", "kernels"},
    "driver": {"tir", "kernels"},
    "forms": {"tir", "kernels", "rules", "driver"},
    "tuning": {"tir", "kernels", "rules", "driver"},
    "primitives": {"tir"},
}


def room_of(parts: Sequence[str]) -> str:
    """The room of a module, by its dotted name without `tvm_cascade`: of `staging`, each of its packages is one."""
    return ".".join(parts[: 2 if parts[0] == "staging" else 1])


def rooms() -> dict[str, list[Path]]:
    """Every module by its room; `cli`, `api`, `testing` and the package itself may import everything."""
    found: dict[str, list[Path]] = {}
    for path in (ROOT / "tvm_cascade").rglob("*.py"):
        inside = path.relative_to(ROOT / "tvm_cascade")
        if inside.parts[0] not in ("passes", "schedules"):
            found.setdefault(room_of(inside.with_suffix("").parts), []).append(path)
    for room in ("passes", "schedules"):
        found[room] = list((ROOT / room).rglob("*.py"))
    return found


@dataclass
class Module:
    """What the tests ask about a module, read once: its trees would take too much memory."""

    imported: list[str] = field(default_factory=list)  # at its top or inside its functions, by dotted names
    relative: bool = False  # whether it imports by relative names
    bare_constants: list[int] = field(default_factory=list)  # lines that use `relax.const` without a type
    bare_errors: list[int] = field(default_factory=list)  # lines that raise errors about operators without their names


@cache
def module(path: Path) -> Module:
    """Reads a module."""
    found, typed = Module(), set[int]()
    for node in ast.walk(ast.parse(path.read_text())):  # a call before its function
        if isinstance(node, ast.Import):
            found.imported += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found.relative |= node.module is None or bool(node.level)
            found.imported += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Call):
            if len(node.args) + len(node.keywords) == 2:
                typed.add(id(node.func))
            if _forgets_operators(node):
                found.bare_errors.append(node.lineno)
        elif isinstance(node, ast.Attribute) and _is_relax_const(node) and id(node) not in typed:
            found.bare_constants.append(node.lineno)
    return found


def imported(path: Path) -> list[str]:
    """What a module imports."""
    assert not module(path).relative, f"{path}: a relative import"
    return module(path).imported


ROOMS = rooms()


PRODUCT = [p for room, paths in ROOMS.items() if room != "testing" for p in paths]


def test_no_module_needs_what_only_posix_systems_have() -> None:
    gone = {"fcntl", "termios", "tty", "pty", "grp", "pwd", "resource", "syslog"}
    assert not {(p.name, m) for p in PRODUCT for m in imported(p) if m.partition(".")[0] in gone}


def test_constants_state_their_type() -> None:
    """`relax.const(data)` makes 32 bits of 64 without a word: it is called with a type, or `constant` is, which has one."""
    every = (p for paths in ROOMS.values() for p in paths)
    assert not [f"{path.relative_to(ROOT)}:{line}" for path in every for line in module(path).bare_constants]


OPERATORS_AT = {"UsageError": 1, "ValidationError": 1, "GraphError": 2, "LoadError": 3}  # among the arguments


def test_errors_whose_message_names_an_operator_carry_its_name() -> None:
    """`--json` prints the names apart: a message of "operator X" without them is a site that forgot."""
    assert not [f"{path.relative_to(ROOT)}:{line}" for path in PRODUCT for line in module(path).bare_errors]


def _is_relax_const(node: ast.Attribute) -> bool:
    return node.attr == "const" and isinstance(node.value, ast.Name) and node.value.id == "relax"


def _forgets_operators(call: ast.Call) -> bool:
    """Whether a call makes an error whose message names an operator, and does not hand over its name."""
    needed = OPERATORS_AT.get(getattr(call.func, "id", ""))
    if needed is None or any(isinstance(a, ast.Starred) for a in call.args):
        return False
    told = len(call.args) > needed or any(k.arg == "operators" for k in call.keywords)
    return not told and any(_names_operator(n) for a in call.args for n in ast.walk(a))


def _names_operator(node: ast.AST) -> bool:
    """Whether a text says "operator" in front of a value, or holds the name of an `op`."""
    if not isinstance(node, ast.JoinedStr):
        return False
    said = any(isinstance(v, ast.Constant) and str(v.value).endswith("operator ") for v in node.values[:-1])
    return said or any(
        isinstance(v, ast.FormattedValue) and ast.unparse(v.value).endswith("op.name") for v in node.values
    )


ABOVE = {"__main__", "__init__", "api", "cli", "testing", "staging.__init__"}  # import everything


def test_every_room_is_known() -> None:
    assert set(ROOMS) - set(MAY_IMPORT) == ABOVE


FACES = {ROOT / "passes" / "__init__.py"}  # names passes of rooms above, imported when they are asked for


@pytest.mark.parametrize("room", sorted(MAY_IMPORT))
def test_a_room_imports_only_what_stands_below_it(room: str) -> None:
    allowed = MAY_IMPORT[room] | BASE | {room}
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in ROOMS[room]
        for name in imported(path)
        if name.startswith("tvm_cascade.") and room_of(name.split(".")[1:]) not in allowed and path not in FACES
    ]
    assert not wrong


@pytest.mark.parametrize("room", sorted(SCHEDULES_MAY_IMPORT))
def test_a_room_of_schedules_imports_only_what_stands_below_it(room: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in (ROOT / "schedules" / room).rglob("*.py")
        for name in imported(path)
        if name.startswith("tvm_cascade.schedules.") and name.split(".")[2] not in SCHEDULES_MAY_IMPORT[room] | {room}
    ]
    assert not wrong
    assert {p.name for p in (ROOT / "schedules").iterdir() if (p / "__init__.py").exists()} <= set(SCHEDULES_MAY_IMPORT)


@pytest.mark.parametrize("room", sorted(NO_TVM))
def test_the_core_knows_no_tvm(room: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in ROOMS[room]
        for name in imported(path)
        if name.split(".")[0] in ("tvm", "tvm_ffi")
    ]
    assert not wrong


def test_the_table_has_no_cycle() -> None:
    done = set(BASE)
    while left := set(MAY_IMPORT) - done:
        ready = {room for room in left if MAY_IMPORT[room] - done <= {room}}
        assert ready, f"a cycle among {sorted(left)}"
        done |= ready
