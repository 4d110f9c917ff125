"""Emit `<name>.c`: the arena, the mapping of inputs and outputs to it, and `<name>_run` around the driver.

The template is `templates/network.c.in`. A run that calls functions of the application, or uses a shared arena, marks
the arena as busy until the end; meanwhile a call that needs the same arena returns an error, not a wrong result. See
the comments in the header (`emit.header`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from tvm_cascade.emit import weights_file
from tvm_cascade.emit.c_interface import CInterface
from tvm_cascade.emit.hot_weights import before_run, definition
from tvm_cascade.emit.network import C_TYPES, NetworkMemory
from tvm_cascade.emit.states import definitions, marks, only_shared, part_definitions, restored, taken
from tvm_cascade.emit.template import fill_template, template

_NAMES = "exp exp2 log log2 log10 log1p sin cos tan asin acos atan atan2 sinh cosh tanh sqrt pow floor ceil trunc round"
# what float kernels use of <math.h>: functions, with or without the suffix f, and infinity
_MATHS = re.compile(rf"\b(?:(?:{'|'.join(_NAMES.split())}|nearbyint|erf|fabs|fmod)f?\(|INFINITY\b)")
_BOOLEANS = re.compile(r"\bbool\b")


def emit_entry(c: CInterface, functions: str, helpers: str) -> str:
    """Emit the text of `<name>.c`.

    `functions` is C for the kernels and the driver, or for the driver alone if the kernels are in an object file;
    `helpers` is C for functions called by the kernels.
    """
    name, upper, can_fail = c.name, c.upper, c.calls_back
    refusal = [f"    if ({name}_busy != 0u) {{", f"        return {upper}_BUSY;", "    }"]
    load = before_run(name, c.copies)
    pointers = [f"{which}->{spec.c_name}" for which in ("inputs", "outputs") for spec in c.side(which)[1]]
    context = ", (int8_t *)(uintptr_t)inputs, &status" if can_fail else ""
    held = [
        f"(int8_t *)(void *){part.name}" if _has_array(c, m) else "(int8_t *)NULL"
        for m in c.memories
        for part in c.parts(m)
    ]
    memory = ", ".join((*held, f"(int8_t *)(uintptr_t){name}_flash"))
    blocks = {
        "headers": [
            *(["#include <math.h>"] if _MATHS.search(functions) else []),
            *(["#include <stdbool.h>"] if _BOOLEANS.search(functions) else []),
        ],
        "weight_marks": weights_file.marks(c),
        "hot_weights": definition(name, c.copies),
        "bind_weights": weights_file.definitions(c),
        "require_weights": weights_file.before_run(c),
        "weights_unread": weights_file.after_run(c),
        "fetch": _fetch(c),
        "hook": _hook(name) if c.hook else [],
        "refuse_if_any_runs": _unless_marked(refusal, can_fail),
        "refuse_if_it_runs": refusal if can_fail else [],
        "input_places": _places(c, "inputs"),
        "output_places": _places(c, "outputs"),
        "state_mark": marks(c),
        "take_pushed": taken(c),
        "states": [*definitions(c), ""] if c.interface.states else [],
        "begin": [*_unless_marked([f"    {name}_busy = 1u;"], can_fail), *load, *restored(c)],
        "copy_inputs": _copies(c, "inputs"),
        "copy_outputs": [f"    {line}" for line in _copies(c, "outputs")],
        "end": _unless_marked([f"    {name}_busy = 0u;"], can_fail),
    }
    values = {
        "name": name,
        "NAME": upper,
        "helpers": helpers,
        "functions": functions,
        "any_null": " || ".join(f"{pointer} == NULL" for pointer in ("inputs", "outputs", *pointers)),
        "invoke": f"{'(void)' if can_fail else 'status = '}{name}_invoke({memory}{context});",
    }
    mark = f"volatile uint8_t {name}_busy;\n" if can_fail else ""
    blocks |= {"arrays": [*_arrays(c, mark), *part_definitions(c)], "ready": _ready(c, blocks)}
    blocks_of_lines = {key: "".join(f"{line}\n" for line in lines) for key, lines in blocks.items()}
    return fill_template(template("network.c.in"), values | blocks_of_lines)


def _has_array(c: CInterface, memory: NetworkMemory) -> bool:
    return not memory.name or memory.bytes > 0


def _arrays(c: CInterface, mark: str) -> list[str]:
    """Define the memories' arrays: the arena as the application's build chooses, named memories in sections."""
    if not c.interface.memories:
        filled = fill_template(template("arena_array.c.in"), {"name": c.name, "NAME": c.upper, "mark": mark})
        return filled.removesuffix("\n").split("\n")
    lines = [
        f"{c.upper}_ALIGNED({c.upper}_ARENA_ALIGN) {c.upper}_SECTION({c.upper}_{m.label.upper()}_SECTION) "
        f"uint8_t {c.array(m)}[{c.upper}_{m.label.upper()}_SIZE];"
        for m in c.memories
        if _has_array(c, m)
    ]
    return ["#if !defined(TVM_CASCADE_SHARED_ARENA)", *lines, *mark.splitlines(), "#endif"]


def _ready(c: CInterface, blocks: Mapping[str, list[str]]) -> list[str]:
    """Define a function to test if a run may begin, and a function to set an arena behind a pointer."""
    lines = {key: "".join(f"{line}\n" for line in blocks[key]) for key in ("refuse_if_any_runs", "refuse_if_it_runs")}
    if not c.interface.memories:
        lines["forget_states"] = f"    {c.name}_has_state = 0u;\n" if c.interface.states else ""
        filled = fill_template(template("arena_ready.c.in"), {"name": c.name, "NAME": c.upper, **lines})
        return filled.removesuffix("\n").split("\n")
    own = [c.array(m) for m in c.memories if m.shared_bytes]
    wrong = " || ".join(f"((uintptr_t){name} % {c.upper}_ARENA_ALIGN) != 0u" for name in own)
    return [
        f"static int32_t {c.name}_ready(void) {{",
        *blocks["refuse_if_any_runs"],
        f"    return ({wrong or '0'}) ? {c.upper}_MISALIGNED : {c.upper}_OK;",
        "}",
    ]


def hook_symbol(name: str) -> str:
    """Name the C function called by the driver after each step if the application has a hook."""
    return f"{name}_between_steps"


def _unless_marked(lines: list[str], busy: bool) -> list[str]:
    """Return `lines`, which use the byte `<name>_busy`; without callbacks (`busy` False) compile them only with a
    shared arena.
    """
    return lines if busy else only_shared(lines)


def _places(c: CInterface, which: str) -> list[str]:
    """Write C statements that point the members of struct `inputs` or `outputs` to tensors in the arena."""
    const, specs = c.side(which)
    places: list[str] = []
    for spec in specs:
        member = f"{which}->{spec.c_name}"
        if spec.streamed:
            places += [f"    {member} = NULL;", f"    {member}_context = NULL;"]
            continue
        cast = f"({const}{C_TYPES[spec.dtype]} *)(void *)"
        places.append(f"    {member} = status == {c.upper}_OK ? {cast}&{c.place(spec.offset or 0)} : NULL;")
    if c.hook and which == "inputs":
        places += ["    inputs->hook = NULL;", "    inputs->hook_context = NULL;"]
    return places


def _copies(c: CInterface, which: str) -> list[str]:
    """Write C statements that copy tensors kept by the application outside the arena: inputs in, outputs out."""
    lines: list[str] = []
    for spec in c.side(which)[1]:
        if spec.streamed:
            continue
        place = f"&{c.place(spec.offset or 0)}"
        theirs = f"{which}->{spec.c_name}"
        source, target = (theirs, place) if which == "inputs" else (place, theirs)
        lines += [f"    if ((const void *){theirs} != (const void *){place}) {{"]
        lines += [f"        memcpy({target}, {source}, {spec.bytes}u);", "    }"]
    return lines


def _fetch(c: CInterface) -> list[str]:
    """Write the C function called by the driver for each row of a streamed input; no lines without streamed inputs."""
    cases: list[str] = []
    for k, spec in enumerate(c.interface.inputs):
        if spec.streamed:
            cast = f"({C_TYPES[spec.dtype]} *)(void *)to"
            member = f"inputs->{spec.c_name}"
            call = f"({member})({member}_context, row, {cast})"  # parentheses: a macro of that name is not expanded
            cases += [f"    if (input == {k}) {{", f"        return {call};", "    }"]
    if not cases:
        return []
    head = f"static int32_t {c.name}_fetch(int8_t *context, int32_t input, int32_t row, int8_t *to)"
    return [f"{head} {{", _context(c.name), *cases, f"    return {c.upper}_NULL_POINTER;", "}", ""]


def _hook(name: str) -> list[str]:
    """Write the C function called by the driver after each step, which calls the application's hook if set."""
    head = f"static int32_t {hook_symbol(name)}(int8_t *context, int32_t done)"
    call = "    return inputs->hook == NULL ? 0 : inputs->hook(inputs->hook_context, done);"
    return [f"{head} {{", _context(name), call, "}", ""]


def _context(name: str) -> str:
    return f"    const struct {name}_inputs *inputs = (const struct {name}_inputs *)(const void *)context;"
