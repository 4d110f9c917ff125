"""`<name>.h`: the public side of an emitted network. What it declares is defined by `micro.entry`.

The arena lies where the application's build says: in an array of the network's own (in a section of its choice), in one
that all networks of the image share, or behind a pointer. See the comment that `_arena_declaration` writes.
"""

from __future__ import annotations

import tvm_cascade
from tvm_cascade.micro.c_interface import CInterface
from tvm_cascade.micro.hot_weights import declaration, total_bytes
from tvm_cascade.micro.names import c_comment
from tvm_cascade.micro.network import C_TYPES
from tvm_cascade.tensor_spec import TensorSpec


def emit_header(c: CInterface, note: str) -> str:
    """The text of the header; `note` names the network in its first line."""
    return "\n".join(
        [
            *_opening(c, note),
            *_sizes(c),
            "",
            *_errors(c.upper),
            *_struct(c, "inputs"),
            *_struct(c, "outputs"),
            *_arena_declaration(c),
            *_run_declaration(c),
            *declaration(c.name, c.hot),
            "/* Weights and tables, for the network's own files. */",
            f"extern const uint32_t {c.name}_flash[];",
            "",
            "#ifdef __cplusplus",
            "}",
            "#endif",
            "",
            f"#endif /* {c.upper}_H */",
            "",
        ]
    )


def _opening(c: CInterface, note: str) -> list[str]:
    """How to use the network, the include guard, and the checks of the compiler."""
    name, upper = c.name, c.upper
    return [
        f"/* {c_comment(note)}, written by tvm_cascade {tvm_cascade.__version__}",
        " *",
        f" * One inference: fill the inputs, call {name}_run(), read the outputs. Beside the stack, its RAM is",
        f" * {_memory(c)}. Inputs and outputs have places",
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
    ]


def _sizes(c: CInterface) -> list[str]:
    """Macros of sizes and quantization."""
    upper = c.upper
    lines = [
        "/* Bytes. */",
        f"#define {upper}_ARENA_SIZE {max(c.interface.arena_bytes, 1)}",
        f"#define {upper}_ARENA_ALIGN {c.interface.arena_align}",
        f"#define {upper}_INPUTS {len(c.interface.inputs)}",
        f"#define {upper}_OUTPUTS {len(c.interface.outputs)}",
    ]
    if c.steps is not None:
        lines.append(f"#define {upper}_STEPS {c.steps}")
    for which, specs in (("INPUT", c.interface.inputs), ("OUTPUT", c.interface.outputs)):
        for k, spec in enumerate(specs):
            lines.append(f"#define {upper}_{which}{k}_SIZE {spec.bytes}")
            if spec.c_name.upper() != f"{which}{k}":
                lines += [f"#define {upper}_{spec.c_name.upper()}_SIZE {upper}_{which}{k}_SIZE"]
            lines += _quantization(upper, spec)
    return lines


def _quantization(upper: str, spec: TensorSpec) -> list[str]:
    if spec.scale is None:
        return []
    prefix = f"{upper}_{spec.c_name.upper()}"
    return [f"#define {prefix}_SCALE {spec.scale!r}f", f"#define {prefix}_ZERO_POINT ({spec.zero_point})"]


def _passes(spec: TensorSpec) -> str:
    return f", {spec.passes} times from the first to the last" if spec.passes > 1 else ""


def _struct(c: CInterface, which: str) -> list[str]:
    """The struct of the pointers of one side, `inputs` or `outputs`."""
    const, specs = c.side(which)
    fields: list[str] = []
    for spec in specs:
        c_type = C_TYPES[spec.dtype]
        about = f"{c_comment(spec.name)}: {spec.type_text}, {spec.bytes} bytes"
        if not spec.streamed:
            fields.append(f"    {const}{c_type} *{spec.c_name}; /* {about} */")
            continue
        fields += [
            f"    /* {about}, asked for row by row, ascending{_passes(spec)}: write row `row` of every plane,",
            f"     * {spec.row_bytes} bytes, to `to` (in the arena) and return 0; anything else ends the run,",
            "     * which returns it. */",
            f"    int32_t (*{spec.c_name})(void *context, int32_t row, {c_type} *to);",
            f"    void *{spec.c_name}_context;",
        ]
    if c.hook and which == "inputs":
        fields += [
            f"    /* Called after every step, `done` of {c.upper}_STEPS, for watchdogs, progress and cancelling:",
            "     * what it returns other than 0 ends the run, which returns it. May be NULL, and is after",
            f"     * {c.name}_map_inputs(). */",
            "    int32_t (*hook)(void *context, int32_t done);",
            "    void *hook_context;",
        ]
    return [f"struct {c.name}_{which} {{", *fields, "};", ""]


def _arena_declaration(c: CInterface) -> list[str]:
    name, upper, busy = c.name, c.upper, c.calls_back
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


def _run_declaration(c: CInterface) -> list[str]:
    name, upper, busy = c.name, c.upper, c.calls_back
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


def _memory(c: CInterface) -> str:
    """What the network needs of RAM, for the head of its header."""
    rest = [f"{total_bytes(c.hot)} bytes of weights"] if c.hot else []
    rest += ["a byte that tells whether it runs"] if c.calls_back else []
    return " and ".join([f"the arena of {c.interface.arena_bytes} bytes", *rest])


def attributes(upper: str) -> list[str]:
    """Macros that give a definition its alignment and section; empty where the compiler knows no such attribute."""
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
