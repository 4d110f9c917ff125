"""The public side of an emitted network: `<name>.h`, and where inputs and outputs lie.

The arena lies where the user's build says: in an array of the network's own (in a section of the user's choice), in
one that all networks of the image share, or behind a pointer. See the comment that `_arena_declaration` writes. What
the header declares is defined by `micro.entry`.
"""

from __future__ import annotations

import re
from collections.abc import Container, Sequence
from dataclasses import dataclass

import tvm_cascade
from tvm_cascade.cascading.plan import Plan
from tvm_cascade.micro.hot_weights import HotWeight, declaration, total_bytes
from tvm_cascade.micro.names import c_comment, unique_identifier
from tvm_cascade.micro.network import C_TYPES, IoSpec
from tvm_cascade.schedules.driver.lower_plan import place_of
from tvm_cascade.schedules.driver.streaming import streamed_inputs

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


def calls_back(ins: Sequence[Io], hook: bool) -> bool:
    """Whether a run calls functions of its user's: then it keeps a mark that tells them, and others, that it goes on."""
    return hook or any(io.spec.stream_axis is not None for io in ins)


def _arena_declaration(name: str, busy: bool) -> list[str]:
    upper = name.upper()
    mark = [f"extern volatile uint8_t {name}_busy;"] if busy else []
    return [
        "/* Where the arena lies is for your build to say, for all files that include this header:",
        " *",
        " * -DTVM_CASCADE_SHARED_ARENA    in `uint8_t tvm_cascade_arena[]`, which you define: as large as the largest",
        " *                               of the networks that share it, aligned for all of them. Beside it you define",
        " *                               `volatile uint8_t tvm_cascade_arena_busy`, 0 at first: not 0 while any runs.",
        f" * -DTVM_CASCADE_ARENA_POINTER   in memory of yours, which you name with {name}_set_arena(). Networks that are",
        " *                               given the same memory do not know of each other.",
        f" * neither                       in an array of {name}.c, in section {upper}_ARENA_SECTION if you",
        f' *                               define that, otherwise ".bss.{name}_arena".',
        " */",
        "#if defined(TVM_CASCADE_SHARED_ARENA)",
        "extern uint8_t tvm_cascade_arena[];",
        "extern volatile uint8_t tvm_cascade_arena_busy;",
        f"#define {name}_arena tvm_cascade_arena",
        f"#define {name}_busy tvm_cascade_arena_busy",
        "#elif defined(TVM_CASCADE_ARENA_POINTER)",
        f"extern uint8_t *{name}_arena; /* NULL until it is set */",
        *mark,
        f"/* `bytes` of memory for the arena; nothing else may use them during a run. Returns {upper}_OK or an error,",
        " * and then the arena is where it was. */",
        f"int32_t {name}_set_arena(void *memory, size_t bytes);",
        "#else",
        f"extern uint8_t {name}_arena[{upper}_ARENA_SIZE];",
        *mark,
        "#endif",
        "",
    ]


def _errors(upper: str) -> list[str]:
    return [
        "/* What the functions return. A function of yours that ends a run had better return a positive number. */",
        f"#define {upper}_OK 0",
        f"#define {upper}_NULL_POINTER (-1) /* an argument or a member of it is NULL, or the arena is */",
        f"#define {upper}_MISALIGNED (-2)   /* the arena does not lie at a multiple of {upper}_ARENA_ALIGN bytes */",
        f"#define {upper}_BUSY (-3)         /* a run that uses the arena has not ended: nothing was done */",
        f"#define {upper}_TOO_SMALL (-4)    /* memory for the arena has fewer than {upper}_ARENA_SIZE bytes */",
        "",
    ]


def _run_declaration(name: str, busy: bool) -> list[str]:
    upper = name.upper()
    inside = [
        f" * Inside of a run, that is in a function of yours that it calls, {name}_run() and the others below do nothing",
        f" * and return {upper}_BUSY, and so do those of networks that share the arena. Such a function has to return: after",
        f" * a longjmp out of it, or where its thread is deleted, set {name}_busy to 0.",
    ]
    shared = [f" * While a network runs that shares the arena, they do nothing and return {upper}_BUSY."]
    return [
        f"/* One inference. Returns {upper}_OK, an error, or what a function of yours has answered to end it; after any of",
        " * them the next run is as good as the first.",
        " *",
        " * Not reentrant: an arena serves one run at a time, from its first input to its last output. Threads, and",
        " * interrupts, have to take turns, with a mutex for one: the error below is a check for mistakes, not a lock.",
        *(inside if busy else shared),
        " */",
        f"int32_t {name}_run(const struct {name}_inputs *inputs, const struct {name}_outputs *outputs);",
        "",
        f"/* Sets the members to the places inside the arena, functions and contexts to NULL. Returns {upper}_OK, or an error,",
        " * and then all members are NULL. */",
        f"int32_t {name}_map_inputs(struct {name}_inputs *inputs);",
        f"int32_t {name}_map_outputs(struct {name}_outputs *outputs);",
        "",
    ]


def _memory(plan: Plan, busy: bool, hot: Sequence[HotWeight]) -> str:
    """What the network needs of RAM, for the head of its header."""
    rest = [f"{total_bytes(hot)} bytes of weights"] if hot else []
    rest += ["a byte that tells whether it runs"] if busy else []
    return " and ".join([f"the arena of {plan.peak} bytes", *rest])


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
    upper, busy = name.upper(), calls_back(ins, hook)
    lines = [
        f"/* {c_comment(note)}, written by tvm_cascade {tvm_cascade.__version__}",
        " *",
        f" * One inference: fill the inputs, call {name}_run(), read the outputs. Beside the stack, its RAM is",
        f" * {_memory(plan, busy, hot)}. Inputs and outputs have places",
        f" * in the arena ({name}_map_inputs, {name}_map_outputs), and what is mapped there is not copied. A place may be",
        " * used again during the run: fill the inputs before every inference. Inputs and outputs of your own lie outside",
        " * of the arena, and are copied.",
        " *",
        f" * To build it: C99 or later, {name}.c with -fno-strict-aliasing or its like (gcc finds that in the file itself).",
        " */",
        f"#ifndef {upper}_H",
        f"#define {upper}_H",
        "",
        "#include <limits.h>",
        "#include <stddef.h>",
        "#include <stdint.h>",
        "",
        "#if INT_MAX < 2147483647 || (defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__)",
        f'#error "{name} is for cores with int of 32 bits and the least significant byte first"',
        "#endif",
        "",
        "#ifdef __cplusplus",
        'extern "C" {',
        "#endif",
        "",
        *attributes(upper),
        f'#define {upper}_VERSION "tvm_cascade {tvm_cascade.__version__}"',
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
    lines += ["", *_errors(upper)]
    lines += _struct(name, "inputs", ins, "const ", hook) + _struct(name, "outputs", outs, "")
    lines += _arena_declaration(name, busy)
    lines += [
        *_run_declaration(name, busy),
        *declaration(name, hot),
        "/* Weights and tables, for the network's own files. */",
        f"extern const uint32_t {name}_flash[];",
        "",
        "#ifdef __cplusplus",
        "}",
        "#endif",
        "",
        f"#endif /* {upper}_H */",
        "",
    ]
    return "\n".join(lines)


def attributes(upper: str) -> list[str]:
    """Macros of alignment and section, in front of a definition; a compiler without the latter links to its own."""
    return [
        "#if defined(__GNUC__)",
        f"#define {upper}_ALIGNED(n) __attribute__((aligned(n)))",
        "#elif defined(__STDC_VERSION__) && __STDC_VERSION__ >= 201112L",
        f"#define {upper}_ALIGNED(n) _Alignas(n)",
        "#else",
        f"#define {upper}_ALIGNED(n)",
        "#endif",
        "#if defined(__GNUC__) && defined(__ELF__)",
        f"#define {upper}_SECTION(s) __attribute__((section(s)))",
        "#else",
        f"#define {upper}_SECTION(s)",
        "#endif",
        "",
    ]
