"""Emit `<name>.h`, the C interface of a network; `emit.entry` emits the definitions.

The template is `templates/network.h.in`. The application's build chooses the arena's place: an array for the network
alone (in a section of choice), an array shared by all networks of the image, or a pointer.
"""

from __future__ import annotations

import tvm_cascade
from tvm_cascade.emit import weights_file
from tvm_cascade.emit.c_interface import CInterface
from tvm_cascade.emit.hot_weights import declaration
from tvm_cascade.emit.names import c_comment
from tvm_cascade.emit.network import C_TYPES, INTERFACE_VERSION
from tvm_cascade.emit.states import declarations
from tvm_cascade.emit.template import fill_template, template
from tvm_cascade.tensor_spec import TensorSpec

_FLASH = "/* Weights and tables, for the network's own files. */\nextern const uint32_t @name@_flash[];\n"


def emit_header(c: CInterface, note: str) -> str:
    """Emit the text of the header; `note` names the network in the first line."""
    name, upper = c.name, c.upper
    inside = [
        f" * Inside of a run, that is in a function of yours that it calls, {name}_run() and the others below do nothing",
        f" * and return {upper}_BUSY, and so do those of networks that share the arena. Such a function has to return: after",
        f" * a longjmp out of it, or where its thread is deleted, set {name}_busy to 0.",
    ]
    shared = [f" * While a network runs that shares the arena, they do nothing and return {upper}_BUSY."]
    values = {
        "note": c_comment(note),
        "version": tvm_cascade.__version__,
        "name": name,
        "NAME": upper,
        "memory": _memory(c),
        "attributes": "\n".join(attributes(upper)),
        "memory_sizes": "".join(f"{line}\n" for line in _memory_sizes(c)),
        "place": _place(c),
        "arena_align": str(c.interface.arena_align),
        "sizes": "\n".join(_sizes(c)),
        "structs": "\n".join([*_struct(c, "inputs"), *_struct(c, "outputs")]),
        "when_busy": "\n".join(inside if c.calls_back else shared),
        "states": "".join(f"{line}\n" for line in declarations(c)),
        "weights": "".join(f"{line}\n" for line in declaration(name, c.copies)),
        "interface_version": str(INTERFACE_VERSION),
        "weight_errors": "".join(f"{line}\n" for line in weights_file.codes(c)),
        "bind_weights": "".join(f"{line}\n" for line in weights_file.declarations(c)),
        "flash": "" if weights_file.storage_of(c) == "file" else fill_template(_FLASH, {"name": name}),
    }
    return fill_template(template("network.h.in"), values)


def _memory_sizes(c: CInterface) -> list[str]:
    """Write macros with the bytes in all memories together, and in each named memory."""
    sizes = [("ARENA", max(c.interface.arena_bytes, 1), sum(m.shared_bytes for m in c.memories))]
    sizes += [(m.label.upper(), m.bytes, m.shared_bytes) for m in c.interface.memories]
    whole = [f"#define {c.upper}_{label}_SIZE {size}" for label, size, _ in sizes]
    if not c.interface.states:
        return whole
    shared = [f"#define {c.upper}_{label}_SIZE {max(size, 1)} /* without states */" for label, _, size in sizes]
    return ["#if defined(TVM_CASCADE_SHARED_ARENA)", *shared, "#else", *whole, "#endif"]


def _place(c: CInterface) -> str:
    """Declare the arena or the arrays in named memories, with the choices left to the build."""
    mark = f"extern volatile uint8_t {c.name}_busy;\n" if c.calls_back else ""
    if not c.interface.memories:
        values = {"name": c.name, "NAME": c.upper, "mark": mark}
        return fill_template(template("arena_place.h.in"), values).removesuffix("\n")
    lines = [
        "/* The network lies in several memories, each an array of its own in a section that your linker script places:",
        " * .NAME for the memory NAME, or what you define <NETWORK>_RAM_<NAME>_SECTION as. */",
        "#if defined(TVM_CASCADE_ARENA_POINTER)",
        f'#error "{c.name} lies in several memories: they are arrays, of its own or shared"',
        "#endif",
        "#if defined(TVM_CASCADE_SHARED_ARENA)",
        "/* In arrays that all networks of the image share, which you define, and what says that one of them runs. */",
        "extern volatile uint8_t tvm_cascade_arena_busy;",
        f"#define {c.name}_busy tvm_cascade_arena_busy",
    ]
    held = [m for m in c.interface.memories if m.bytes]
    for m in held:
        lines += [f"extern uint8_t tvm_cascade_{m.label}[];", f"#define {c.array(m)} tvm_cascade_{m.label}"]
    lines.append("#else")
    for m in held:
        macro = f"{c.upper}_{m.label.upper()}"
        lines += [f"#ifndef {macro}_SECTION", f'#define {macro}_SECTION ".{m.name}"', "#endif"]
        lines += [f"extern uint8_t {c.array(m)}[{macro}_SIZE];"]
    return "\n".join((*lines, *mark.splitlines(), "#endif"))


def _sizes(c: CInterface) -> list[str]:
    """Write macros: numbers of inputs, outputs and steps, sizes in bytes, scales and zero points."""
    upper = c.upper
    lines = [
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
    """Write the struct `<name>_inputs` or `<name>_outputs`: pointers to tensors, callbacks for streamed inputs, the
    hook.
    """
    const, specs = c.side(which)
    fields: list[str] = []
    for spec in specs:
        c_type = C_TYPES[spec.dtype]
        also = f", another {c_comment(spec.file_name)} of the model" if spec.file_name else ""
        rows = f" as {list(spec.stream_shape)}" if spec.stream_shape else ""
        about = f"{c_comment(spec.name)}{also}: {spec.type_text}{rows}, {spec.bytes} bytes"
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


def _memory(c: CInterface) -> str:
    """Describe the RAM needed by the network, for the comment at the head of the header."""
    rest = [f"{c.copies.bytes} bytes of weights"] if c.copies else []
    rest += ["a byte that tells whether it runs"] if c.calls_back else []
    rest += ["a byte that tells whether it has states"] if c.interface.states else []
    return " and ".join([f"the arena of {c.interface.arena_bytes} bytes", *rest])


def attributes(upper: str) -> list[str]:
    """Write macros that give a definition alignment and section; empty for compilers without such attributes."""
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
