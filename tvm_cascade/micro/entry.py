"""`<name>.c` as its callers see it: the arena, the places of inputs and outputs, and the run around the driver.

A run that calls functions of its user's, or whose arena others share, marks the arena as busy until it ends: whoever asks
for the same arena meanwhile gets an error, not a wrong result. See the header's comments, of `micro.header`.
"""

from __future__ import annotations

import re

from tvm_cascade.micro.c_interface import CInterface
from tvm_cascade.micro.hot_weights import definition
from tvm_cascade.micro.network import C_TYPES

_NAMES = "exp exp2 log log2 log10 log1p sin cos tan asin acos atan atan2 sinh cosh tanh sqrt pow floor ceil trunc round"
# functions of <math.h> as kernels of floats call them
_MATHS = re.compile(rf"\b(?:{'|'.join(_NAMES.split())}|nearbyint|erf|fabs|fmod)f?\(")
_BOOLEANS = re.compile(r"\bbool\b")
_ONE_ARENA = (  # clang has no such pragma, and the header says what to do
    "/* One arena holds values of several types. */",
    "#if defined(__GNUC__) && !defined(__clang__)",
    '#pragma GCC optimize("no-strict-aliasing")',
    "#endif",
    "",
)
_POINTER = "#if defined(TVM_CASCADE_ARENA_POINTER) && !defined(TVM_CASCADE_SHARED_ARENA)"


def emit_entry(c: CInterface, functions: str, helpers: str) -> str:
    """The text of `<name>.c`.

    `functions` are the kernels and the driver, or the driver alone where an object with the kernels lies beside it;
    `helpers` are the C functions that the kernels call.
    """
    lines = [
        f'#include "{c.name}.h"',
        "",
        *(["#include <math.h>"] if _MATHS.search(functions) else []),
        *(["#include <stdbool.h>"] if _BOOLEANS.search(functions) else []),
        "#include <string.h>",
        "",
        *_ONE_ARENA,
        *_arena_definition(c),
        "",
        *definition(c.name, c.hot),
        helpers,
        *_fetch(c),
        *(_hook(c.name) if c.hook else []),
        functions,
        *_ready(c),
        *_set_arena(c),
        *_map(c, "inputs"),
        *_map(c, "outputs"),
        *_run(c),
    ]
    return "\n".join(lines)


def hook_symbol(name: str) -> str:
    """The C function that a driver with a hook calls."""
    return f"{name}_between_steps"


def _arena_definition(c: CInterface) -> list[str]:
    name, upper, busy = c.name, c.upper, c.calls_back
    mark = [f"volatile uint8_t {name}_busy;"] if busy else []
    return [
        "#if defined(TVM_CASCADE_SHARED_ARENA)",
        "#elif defined(TVM_CASCADE_ARENA_POINTER)",
        f"uint8_t *{name}_arena;",
        *mark,
        "#else",
        f"#ifndef {upper}_ARENA_SECTION",
        f'#define {upper}_ARENA_SECTION ".bss.{name}_arena"',
        "#endif",
        f"{upper}_ALIGNED({upper}_ARENA_ALIGN) {upper}_SECTION({upper}_ARENA_SECTION) "
        f"uint8_t {name}_arena[{upper}_ARENA_SIZE];",
        *mark,
        "#endif",
    ]


def _only_shared(lines: list[str], busy: bool) -> list[str]:
    """Lines that use the byte `<name>_busy`, which a network without callbacks has only where it shares an arena."""
    return lines if busy else ["#if defined(TVM_CASCADE_SHARED_ARENA)", *lines, "#endif"]


def _ready(c: CInterface) -> list[str]:
    """The function that tells whether the arena can be used now."""
    name, upper, busy = c.name, c.upper, c.calls_back
    return [
        f"static int32_t {name}_ready(void) {{",
        _POINTER,
        f"    if ({name}_arena == NULL) {{",
        f"        return {upper}_NULL_POINTER;",
        "    }",
        "#endif",
        *_only_shared([f"    if ({name}_busy != 0u) {{", f"        return {upper}_BUSY;", "    }"], busy),
        f"    return ((uintptr_t){name}_arena % {upper}_ARENA_ALIGN) == 0u ? {upper}_OK : {upper}_MISALIGNED;",
        "}",
        "",
    ]


def _set_arena(c: CInterface) -> list[str]:
    name, upper, busy = c.name, c.upper, c.calls_back
    return [
        _POINTER,
        f"int32_t {name}_set_arena(void *memory, size_t bytes) {{",
        "    if (memory == NULL) {",
        f"        return {upper}_NULL_POINTER;",
        "    }",
        f"    if (((uintptr_t)memory % {upper}_ARENA_ALIGN) != 0u) {{",
        f"        return {upper}_MISALIGNED;",
        "    }",
        f"    if (bytes < {upper}_ARENA_SIZE) {{",
        f"        return {upper}_TOO_SMALL;",
        "    }",
        *([f"    if ({name}_busy != 0u) {{", f"        return {upper}_BUSY;", "    }"] if busy else []),
        f"    {name}_arena = (uint8_t *)memory;",
        f"    return {upper}_OK;",
        "}",
        "#endif",
        "",
    ]


def _map(c: CInterface, which: str) -> list[str]:
    """The function that sets the members of a side, `inputs` or `outputs`."""
    name, upper = c.name, c.upper
    const, specs = c.side(which)
    places: list[str] = []
    for spec in specs:
        member = f"{which}->{spec.c_name}"
        if spec.streamed:
            places += [f"    {member} = NULL;", f"    {member}_context = NULL;"]
            continue
        cast = f"({const}{C_TYPES[spec.dtype]} *)(void *)"
        places.append(f"    {member} = status == {upper}_OK ? {cast}&{name}_arena[{spec.offset}] : NULL;")
    if c.hook and which == "inputs":
        places += ["    inputs->hook = NULL;", "    inputs->hook_context = NULL;"]
    return [
        f"int32_t {name}_map_{which}(struct {name}_{which} *{which}) {{",
        f"    const int32_t status = {name}_ready();",
        f"    if ({which} == NULL) {{",
        f"        return {upper}_NULL_POINTER;",
        "    }",
        *places,
        "    return status;",
        "}",
        "",
    ]


def _copies(c: CInterface, which: str) -> list[str]:
    """Statements that copy what the application keeps outside of the arena: inputs into it, outputs out of it."""
    lines: list[str] = []
    for spec in c.side(which)[1]:
        if spec.streamed:
            continue
        place = f"&{c.name}_arena[{spec.offset}]"
        theirs = f"{which}->{spec.c_name}"
        source, target = (theirs, place) if which == "inputs" else (place, theirs)
        lines += [f"    if ((const void *){theirs} != (const void *){place}) {{"]
        lines += [f"        memcpy({target}, {source}, {spec.bytes}u);", "    }"]
    return lines


def _fetch(c: CInterface) -> list[str]:
    """The function that the driver asks for rows, where an input is streamed."""
    cases: list[str] = []
    for k, spec in enumerate(c.interface.inputs):
        if spec.streamed:
            cast = f"({C_TYPES[spec.dtype]} *)(void *)to"
            member = f"inputs->{spec.c_name}"
            call = f"({member})({member}_context, row, {cast})"  # no call of a macro of that name
            cases += [f"    if (input == {k}) {{", f"        return {call};", "    }"]
    if not cases:
        return []
    head = f"static int32_t {c.name}_fetch(int8_t *context, int32_t input, int32_t row, int8_t *to)"
    return [f"{head} {{", _context(c.name), *cases, f"    return {c.upper}_NULL_POINTER;", "}", ""]


def _hook(name: str) -> list[str]:
    """The function that the driver calls between steps."""
    head = f"static int32_t {hook_symbol(name)}(int8_t *context, int32_t done)"
    call = "    return inputs->hook == NULL ? 0 : inputs->hook(inputs->hook_context, done);"
    return [f"{head} {{", _context(name), call, "}", ""]


def _context(name: str) -> str:
    return f"    const struct {name}_inputs *inputs = (const struct {name}_inputs *)(const void *)context;"


def _run(c: CInterface) -> list[str]:
    name, upper, can_fail = c.name, c.upper, c.calls_back
    nulls = [f"inputs->{s.c_name} == NULL" for s in c.interface.inputs] + [
        f"outputs->{s.c_name} == NULL" for s in c.interface.outputs
    ]
    context = ", (int8_t *)(uintptr_t)inputs, &status" if can_fail else ""
    memory = f"(int8_t *)(void *){name}_arena, (int8_t *)(uintptr_t){name}_flash"
    return [
        f"int32_t {name}_run(const struct {name}_inputs *inputs, const struct {name}_outputs *outputs) {{",
        f"    int32_t status = {name}_ready();",
        f"    if (status != {upper}_OK) {{",
        "        return status;",
        "    }",
        f"    if ({' || '.join(['inputs == NULL', 'outputs == NULL', *nulls])}) {{",
        f"        return {upper}_NULL_POINTER;",
        "    }",
        *_only_shared([f"    {name}_busy = 1u;"], can_fail),
        *([f"    if ({name}_hot_ready == 0) {{", f"        {name}_load_weights();", "    }"] if c.hot else []),
        *_copies(c, "inputs"),
        f"    {'(void)' if can_fail else 'status = '}{name}_invoke({memory}{context});",
        f"    if (status == {upper}_OK) {{",
        *(f"    {line}" for line in _copies(c, "outputs")),
        "    }",
        *_only_shared([f"    {name}_busy = 0u;"], can_fail),
        "    return status;",
        "}",
        "",
    ]
