"""The public side of an emitted network: `<name>.h`, and the part of `<name>.c` that callers see.

The arena lies where the user's build says: in an array of the network's own (in a section of the user's choice), in
one that all networks of the image share, or behind a pointer. See the comment that `_arena_declaration` writes.
"""

from __future__ import annotations

import re
from collections.abc import Container, Sequence
from dataclasses import dataclass

from tvm_cascade.cascading.plan import Plan
from tvm_cascade.micro.hot_weights import HotWeight, declaration, definition
from tvm_cascade.micro.names import c_comment, unique_identifier
from tvm_cascade.micro.network import C_TYPES, IoSpec
from tvm_cascade.schedules.driver import place_of
from tvm_cascade.schedules.streaming import streamed_inputs

_NAMES = "exp exp2 log log2 log10 log1p sin cos tan asin acos atan atan2 sinh cosh tanh sqrt pow floor ceil trunc round"
# functions of <math.h> as kernels of floats call them
_MATHS = re.compile(rf"\b(?:{'|'.join(_NAMES.split())}|nearbyint|erf|fabs|fmod)f?\(")
_BOOLEANS = re.compile(r"\bbool\b")


_NUMBERED = re.compile(r"(?:in|out)put[0-9]+")  # how the header numbers inputs and outputs


@dataclass(frozen=True, slots=True)
class Port:
    """An input or output of the network, as the model names it."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    tensor: int  # index in the plan's graph
    scale: float | None = None
    zero_point: int | None = None


@dataclass(frozen=True)
class Io:
    """A port with its place: bytes from the arena's start."""

    spec: IoSpec
    offset: int


def place_ports(plan: Plan, ports: Sequence[Port], side: str, reserved: Container[str] = ()) -> list[Io]:
    """Every port of a side, `input` or `output`, with its C name, none of them in `reserved`, and its place.

    The header names sizes by number and by name, <NETWORK>_INPUT0_SIZE and <NETWORK>_<NAME>_SIZE, and a streamed input
    has a second member, <name>_context: no name means two things.
    """
    names: list[str] = []

    def taken(name: str) -> bool:
        other = name.removesuffix("_context") if name.endswith("_context") else f"{name}_context"
        numbered = _NUMBERED.fullmatch(name) and name != f"{side}{len(names)}"
        return bool(numbered) or name in names or other in names or name in reserved

    for port in ports:
        names.append(unique_identifier(port.name, side, taken))
    streamed = streamed_inputs(plan)
    made: list[Io] = []
    for port, c_name in zip(ports, names, strict=True):
        spec = IoSpec(
            name=port.name,
            c_name=c_name,
            dtype=port.dtype,
            shape=port.shape,
            bytes=plan.graph.tensors[port.tensor].bytes,
            scale=port.scale,
            zero_point=port.zero_point,
            stream_axis=plan.graph.tensors[port.tensor].row_axis if port.tensor in streamed else None,
            passes=max((len(s.stripes) for s in plan.segments if port.tensor in s.streamed), default=1) or 1,
        )
        made.append(Io(spec, place_of(plan, port.tensor)))
    return made


def _quantization(upper: str, io: IoSpec) -> list[str]:
    if io.scale is None:
        return []
    prefix = f"{upper}_{io.c_name.upper()}"
    return [f"#define {prefix}_SCALE {io.scale!r}f", f"#define {prefix}_ZERO_POINT ({io.zero_point})"]


def _passes(spec: IoSpec) -> str:
    return f", {spec.passes} times from the first to the last" if spec.passes > 1 else ""


def _struct(name: str, which: str, ios: Sequence[Io], const: str, hook: bool = False) -> list[str]:
    fields: list[str] = []
    for io in ios:
        spec, c_type = io.spec, C_TYPES[io.spec.dtype]
        about = f"{c_comment(spec.name)}: {spec.dtype}{list(spec.shape)}, {spec.bytes} bytes"
        if spec.stream_axis is None:
            fields.append(f"    {const}{c_type} *{spec.c_name}; /* {about} */")
            continue
        fields += [
            f"    /* {about}, asked for row by row, ascending{_passes(spec)}: write row `row` of every plane,",
            f"     * {spec.row_bytes} bytes, to `to` (in the arena) and return 0; anything else ends the run,",
            "     * which returns it. */",
            f"    int32_t (*{spec.c_name})(void *context, int32_t row, {c_type} *to);",
            f"    void *{spec.c_name}_context;",
        ]
    if hook:
        fields += [
            f"    /* Called after every step, `done` of {name.upper()}_STEPS, for watchdogs, progress and cancelling:",
            "     * what it returns other than 0 ends the run, which returns it. May be NULL, and is after",
            f"     * {name}_map_inputs(). */",
            "    int32_t (*hook)(void *context, int32_t done);",
            "    void *hook_context;",
        ]
    return [f"struct {name}_{which} {{", *fields, "};", ""]


def _arena_declaration(name: str) -> list[str]:
    upper = name.upper()
    return [
        "/* Where the arena lies is for your build to say, for all files that include this header:",
        " *",
        " * -DTVM_CASCADE_SHARED_ARENA    in `uint8_t tvm_cascade_arena[]`, which you define: as large as the largest",
        " *                               of the networks that share it, aligned for all of them.",
        f" * -DTVM_CASCADE_ARENA_POINTER   at `{name}_arena`, a pointer that you set before the first call, to a multiple",
        f" *                               of {upper}_ARENA_ALIGN bytes.",
        f" * neither                       in an array of {name}.c, in section {upper}_ARENA_SECTION if you",
        f' *                               define that, otherwise ".bss.{name}_arena".',
        " */",
        "#if defined(TVM_CASCADE_SHARED_ARENA)",
        "extern uint8_t tvm_cascade_arena[];",
        f"#define {name}_arena tvm_cascade_arena",
        "#elif defined(TVM_CASCADE_ARENA_POINTER)",
        f"extern uint8_t *{name}_arena;",
        "#else",
        f"extern uint8_t {name}_arena[{upper}_ARENA_SIZE];",
        "#endif",
        "",
    ]


def _arena_definition(name: str) -> list[str]:
    upper = name.upper()
    return [
        "#if defined(TVM_CASCADE_SHARED_ARENA)",
        "#elif defined(TVM_CASCADE_ARENA_POINTER)",
        f"uint8_t *{name}_arena;",
        "#else",
        f"#ifndef {upper}_ARENA_SECTION",
        f'#define {upper}_ARENA_SECTION ".bss.{name}_arena"',
        "#endif",
        f"uint8_t {name}_arena[{upper}_ARENA_SIZE] {upper}_ALIGNED({upper}_ARENA_ALIGN) "
        f"{upper}_SECTION({upper}_ARENA_SECTION);",
        "#endif",
    ]


def emit_header(
    name: str,
    plan: Plan,
    ins: Sequence[Io],
    outs: Sequence[Io],
    align: int,
    note: str,
    hook: bool = False,
    hot: Sequence[HotWeight] = (),
) -> str:
    """The network's public API."""
    upper = name.upper()
    lines = [
        f"/* {c_comment(note)}",
        " *",
        f" * One inference: fill the inputs, call {name}_run(), read the outputs. All RAM of the network is the arena",
        f" * of {plan.peak} bytes; inputs and outputs have places in it ({name}_map_inputs, {name}_map_outputs), and",
        " * what is mapped there is not copied. A place may be used again during the run: fill the inputs before every",
        " * inference.",
        " */",
        f"#ifndef {upper}_H",
        f"#define {upper}_H",
        "",
        "#include <stddef.h>",
        "#include <stdint.h>",
        "",
        "#ifdef __cplusplus",
        'extern "C" {',
        "#endif",
        "",
        "#if defined(__GNUC__)",
        f"#define {upper}_ALIGNED(n) __attribute__((aligned(n)))",
        "#else",
        f"#define {upper}_ALIGNED(n)",
        "#endif",
        "#if defined(__GNUC__) && defined(__ELF__)",
        f"#define {upper}_SECTION(s) __attribute__((section(s)))",
        "#else",
        f"#define {upper}_SECTION(s)",
        "#endif",
        "",
        "/* Bytes. */",
        f"#define {upper}_ARENA_SIZE {max(plan.peak, 1)}",
        f"#define {upper}_ARENA_ALIGN {align}",
        f"#define {upper}_INPUTS {len(ins)}",
        f"#define {upper}_OUTPUTS {len(outs)}",
    ]
    if hook:
        lines.append(f"#define {upper}_STEPS {sum(len(s.trace) * max(len(s.stripes), 1) for s in plan.segments)}")
    for which, ios in (("INPUT", ins), ("OUTPUT", outs)):
        for k, io in enumerate(ios):
            lines.append(f"#define {upper}_{which}{k}_SIZE {io.spec.bytes}")
            if io.spec.c_name.upper() != f"{which}{k}":
                lines += [f"#define {upper}_{io.spec.c_name.upper()}_SIZE {upper}_{which}{k}_SIZE"]
            lines += _quantization(upper, io.spec)
    lines += ["", f"#define {upper}_OK 0", f"#define {upper}_NULL_POINTER (-1)"]
    lines += [f"#define {upper}_MISALIGNED (-2) /* an arena of yours that is not at a multiple of {align} bytes */", ""]
    lines += _struct(name, "inputs", ins, "const ", hook) + _struct(name, "outputs", outs, "")
    lines += _arena_declaration(name)
    lines += [
        "/* One inference. Returns 0, a negative error, or what a function of yours has answered to end it. Not reentrant;",
        " * and until it returns nothing else may use its arena: no other network that shares it, neither from a function",
        " * that this one calls nor from an interrupt or another thread. After an error the next run is as good as any. */",
        f"int32_t {name}_run(const struct {name}_inputs *inputs, const struct {name}_outputs *outputs);",
        "",
        "/* The places of inputs and outputs inside the arena. */",
        f"void {name}_map_inputs(struct {name}_inputs *inputs);",
        f"void {name}_map_outputs(struct {name}_outputs *outputs);",
        "",
        *declaration(name, hot),
        "#ifdef __cplusplus",
        "}",
        "#endif",
        "",
        f"#endif /* {upper}_H */",
        "",
    ]
    return "\n".join(lines)


def _copies(name: str, which: str, ios: Sequence[Io]) -> list[str]:
    lines: list[str] = []
    for io in ios:
        if io.spec.stream_axis is not None:
            continue
        place = f"&{name}_arena[{io.offset}]"
        theirs = f"{which}->{io.spec.c_name}"
        source, target = (theirs, place) if which == "inputs" else (place, theirs)
        lines += [f"    if ((const void *){theirs} != (const void *){place}) {{"]
        lines += [f"        memcpy({target}, {source}, {io.spec.bytes}u);", "    }"]
    return lines


def _fetch(name: str, ins: Sequence[Io]) -> list[str]:
    """The function that the driver asks for rows, where an input is streamed."""
    cases: list[str] = []
    for k, io in enumerate(ins):
        if io.spec.stream_axis is not None:
            cast = f"({C_TYPES[io.spec.dtype]} *)(void *)to"
            member = f"inputs->{io.spec.c_name}"
            call = f"({member})({member}_context, row, {cast})"  # no call of a macro of that name
            cases += [f"    if (input == {k}) {{", f"        return {call};", "    }"]
    if not cases:
        return []
    head = f"int32_t {name}_fetch(int8_t *context, int32_t input, int32_t row, int8_t *to)"
    return [f"{head};", f"{head} {{", _context(name), *cases, f"    return {name.upper()}_NULL_POINTER;", "}", ""]


def _hook(name: str) -> list[str]:
    """The function that the driver calls between steps."""
    head = f"int32_t {hook_symbol(name)}(int8_t *context, int32_t done)"
    call = "    return inputs->hook == NULL ? 0 : inputs->hook(inputs->hook_context, done);"
    return [f"{head};", f"{head} {{", _context(name), call, "}", ""]


def hook_symbol(name: str) -> str:
    """The C function that a driver with a hook calls."""
    return f"{name}_between_steps"


def _context(name: str) -> str:
    return f"    const struct {name}_inputs *inputs = (const struct {name}_inputs *)(const void *)context;"


def emit_api(
    name: str,
    ins: Sequence[Io],
    outs: Sequence[Io],
    functions: str,
    prelude: str,
    hook: bool = False,
    hot: Sequence[HotWeight] = (),
) -> str:
    """`<name>.c`: the arena, the functions (or their declaration, with an object beside it) and the public API."""
    lines = [
        f'#include "{name}.h"',
        "",
        *(["#include <math.h>"] if _MATHS.search(functions) else []),
        *(["#include <stdbool.h>"] if _BOOLEANS.search(functions) else []),
        "#include <string.h>",
        "",
        *_arena_definition(name),
        f"extern const uint32_t {name}_flash[];",
        "",
        *definition(name, hot),
        prelude,
        *_fetch(name, ins),
        *(_hook(name) if hook else []),
        functions,
    ]
    for which, ios, const in (("inputs", ins, "const "), ("outputs", outs, "")):
        lines += [f"void {name}_map_{which}(struct {name}_{which} *{which}) {{"]
        mapped = [io for io in ios if io.spec.stream_axis is None]
        hooked = hook and which == "inputs"
        lines += [] if mapped or hooked else [f"    (void){which};"]
        for io in mapped:
            cast = f"({const}{C_TYPES[io.spec.dtype]} *)(void *)"
            lines.append(f"    {which}->{io.spec.c_name} = {cast}&{name}_arena[{io.offset}];")
        lines += ["    inputs->hook = NULL;", "    inputs->hook_context = NULL;"] if hooked else []
        lines += ["}", ""]
    return "\n".join([*lines, *_run(name, ins, outs, hook, bool(hot))])


def _run(name: str, ins: Sequence[Io], outs: Sequence[Io], hook: bool, hot: bool) -> list[str]:
    upper = name.upper()
    nulls = [f"inputs->{i.spec.c_name} == NULL" for i in ins] + [f"outputs->{i.spec.c_name} == NULL" for i in outs]
    can_fail = hook or any(i.spec.stream_axis is not None for i in ins)
    context = ", (int8_t *)(uintptr_t)inputs, &status" if can_fail else ""
    memory = f"(int8_t *)(void *){name}_arena, (int8_t *)(uintptr_t){name}_flash"
    return [
        f"int32_t {name}_run(const struct {name}_inputs *inputs, const struct {name}_outputs *outputs) {{",
        f"    int32_t status = {upper}_OK;",
        f"    if ({' || '.join(['inputs == NULL', 'outputs == NULL', *nulls])}) {{",
        f"        return {upper}_NULL_POINTER;",
        "    }",
        "#if defined(TVM_CASCADE_ARENA_POINTER) && !defined(TVM_CASCADE_SHARED_ARENA)",
        f"    if ({name}_arena == NULL) {{",
        f"        return {upper}_NULL_POINTER;",
        "    }",
        "#endif",
        "#if defined(TVM_CASCADE_ARENA_POINTER) || defined(TVM_CASCADE_SHARED_ARENA)",
        f"    if (((uintptr_t){name}_arena % {upper}_ARENA_ALIGN) != 0u) {{",
        f"        return {upper}_MISALIGNED;",
        "    }",
        "#endif",
        *([f"    if ({name}_hot_ready == 0) {{", f"        {name}_load_weights();", "    }"] if hot else []),
        *_copies(name, "inputs", ins),
        f"    {'(void)' if can_fail else 'status = '}{name}_invoke({memory}{context});",
        f"    if (status != {upper}_OK) {{",
        "        return status;",
        "    }",
        *_copies(name, "outputs", outs),
        f"    return {upper}_OK;",
        "}",
        "",
    ]
