"""From a lowered plan to the network's C files: kernels as C99 or as an LLVM object, weights as const data, one header.

The emitted text needs no TVM header and no library beyond `<stdint.h>`, `<stddef.h>` and `memcpy`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import tvm
from tvm import tirx

from tvm_cascade.cascading.plan import Plan
from tvm_cascade.micro.names import c_comment, c_identifier, unique_identifiers
from tvm_cascade.micro.network import C_TYPES, EmittedNetwork, IoSpec
from tvm_cascade.schedules.driver import FlashItem, Lowered, place_of
from tvm_cascade.schedules.streaming import request_order, streamed_inputs

_LOWERING = (
    tirx.transform.FlattenBuffer,
    tirx.transform.StmtSimplify,
    tirx.transform.VectorizeLoop,
    tirx.transform.UnrollLoop,
    tirx.transform.StmtSimplify,
    tirx.transform.LowerTVMBuiltin,
    tirx.transform.LowerIntrin,
)


@dataclass(frozen=True, slots=True)
class Port:
    """An input or output of the network, as the model names it."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    tensor: int  # index in the plan's graph
    scale: float | None = None
    zero_point: int | None = None


def lower_for(mod: tvm.IRModule, target: tvm.target.Target) -> tvm.IRModule:
    """The pointer functions of `mod`, ready for `target.build.c` or `target.build.llvm`: no packed ABI, no workspace calls."""
    bound = tirx.transform.BindTarget(target.with_host(target))(mod)
    return tvm.ir.transform.Sequential([p() for p in _LOWERING])(bound)


def emit_object(lowered: Lowered, target: Mapping[str, object], symbol: str) -> bytes:
    """A relocatable object with one public symbol, `int32_t symbol(int8_t* arena, int8_t* flash)`."""
    import tempfile
    from pathlib import Path

    tgt = tvm.target.Target(dict(target))
    mod = lowered.mod.clone()
    gv = mod.get_global_var(lowered.invoke)
    mod[gv] = mod[gv].with_attr("global_symbol", symbol)
    built = tvm.get_global_func("target.build.llvm")(lower_for(mod, tgt), tgt)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernels.o"
        built.write_to_file(str(path))
        return path.read_bytes()


def emit_c_functions(lowered: Lowered, symbol: str) -> str:
    """The kernels and the driver as static C functions; the driver is called `symbol`."""
    target = tvm.target.Target("c")
    mod = lowered.mod.clone()
    for gv in list(mod.functions):
        name = symbol if gv.name_hint == lowered.invoke else gv.name_hint
        mod[gv] = mod[gv].with_attr("global_symbol", name)
    source = tvm.get_global_func("target.build.c")(lower_for(mod, target), target).inspect_source()
    return tidy_c(source)


def tidy_c(source: str) -> str:
    """What TVM's C back end prints, without its runtime: no includes, no exports, functions static and forward-declared."""
    body: list[str] = []
    for line in source.splitlines():
        text = line.strip()
        if text.startswith(("#include", "#define TVM_EXPORTS", "void* __tvm_ffi", "// tvm target", "#pragma unroll")):
            continue
        if text in ('extern "C"', "#ifdef __cplusplus", "#endif"):
            continue
        body.append(line)
    text = "\n".join(body)
    text = re.sub(r"^(?:TVM_DLL )(.*?\));\n", "", text, flags=re.M)
    text = re.sub(r"^(?:TVM_DLL )?int32_t (\w+)\(", r"static int32_t \1(", text, flags=re.M)
    text = text.replace(" __restrict__", "")
    text = re.sub(r"\n{3,}", "\n\n", text).strip()
    text = re.sub(r"^static int32_t \w+\(([^)]*)\) \{\n(.*?)^\}", _mark_unused, text, flags=re.M | re.S)
    heads = re.findall(r"^(static int32_t \w+\([^)]*\)) \{", text, flags=re.M)
    return "\n".join(f"{h};" for h in dict.fromkeys(heads)) + "\n\n" + text + "\n"


def _mark_unused(function: re.Match[str]) -> str:
    """A function whose unused parameters are named in `(void)` statements."""
    head, body = function[0].split("\n", 1)
    names = [p.split()[-1].lstrip("*") for p in function[1].split(",") if p.strip()]
    unused = [n for n in names if not re.search(rf"\b{n}\b", function[2])]
    return "\n".join([head, *(f"  (void){n};" for n in unused), body])


def emit_weights(name: str, flash: bytes, items: Sequence[FlashItem]) -> str:
    """The flash image as a const array of 32-bit words, little-endian, with the place of every constant in comments."""
    raw = flash + b"\0" * (-len(flash) % 8)
    words = np.frombuffer(raw, dtype="<u4")
    lines = [f"/* Weights, tables and traces of {c_comment(name)}: {len(flash)} bytes. */", f'#include "{name}.h"', ""]
    lines += [f"/* {i.offset:8d} {i.size:8d} bytes  {i.dtype}{list(i.shape)}  {c_comment(i.label)} */" for i in items]
    lines += [
        "",
        "#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__",
        '#error "this image is little-endian"',
        "#endif",
        "",
        f"const uint32_t {name}_flash[{max(len(words), 1)}] {name.upper()}_ALIGNED(8) = {{",
    ]
    text = [f"0x{w:08x}u" for w in words.tolist()] or ["0u"]
    lines += ["    " + ", ".join(text[i : i + 10]) + "," for i in range(0, len(text), 10)]
    lines += ["};", ""]
    return "\n".join(lines)


@dataclass(frozen=True)
class _Io:
    spec: IoSpec
    offset: int


def _ports(plan: Plan, ports: Sequence[Port], fallback: str) -> list[_Io]:
    names = unique_identifiers([p.name for p in ports], fallback)
    streamed = streamed_inputs(plan)
    made: list[_Io] = []
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
        )
        made.append(_Io(spec, place_of(plan, port.tensor)))
    return made


def _quantization(upper: str, io: IoSpec) -> list[str]:
    if io.scale is None:
        return []
    prefix = f"{upper}_{io.c_name.upper()}"
    return [f"#define {prefix}_SCALE {io.scale!r}f", f"#define {prefix}_ZERO_POINT ({io.zero_point})"]


def _struct(name: str, which: str, ios: Sequence[_Io], const: str) -> list[str]:
    fields: list[str] = []
    for io in ios:
        spec, c_type = io.spec, C_TYPES[io.spec.dtype]
        about = f"{c_comment(spec.name)}: {spec.dtype}{list(spec.shape)}, {spec.bytes} bytes"
        if spec.stream_axis is None:
            fields.append(f"    {const}{c_type} *{spec.c_name}; /* {about} */")
            continue
        fields += [
            f"    /* {about}, asked for row by row, ascending: write row `row` of every plane, {spec.row_bytes} bytes, to",
            "     * `to` (in the arena) and return 0; anything else ends the run, which returns it. */",
            f"    int32_t (*{spec.c_name})(void *context, int32_t row, {c_type} *to);",
            f"    void *{spec.c_name}_context;",
        ]
    return [f"struct {name}_{which} {{", *fields, "};", ""]


def emit_header(name: str, plan: Plan, ins: Sequence[_Io], outs: Sequence[_Io], align: int, note: str) -> str:
    """The network's public API."""
    upper = name.upper()
    lines = [
        f"/* {c_comment(note)}",
        " *",
        f" * One inference: fill the inputs, call {name}_run(), read the outputs. All RAM of the network is the arena of",
        f" * {plan.peak} bytes; inputs and outputs have places in it ({name}_map_inputs, {name}_map_outputs), and what is",
        " * mapped there is not copied. A place may be used again during the run: fill the inputs before every inference.",
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
        f"#define {upper}_SECTION(s) __attribute__((section(s)))",
        "#else",
        f"#define {upper}_ALIGNED(n)",
        f"#define {upper}_SECTION(s)",
        "#endif",
        "",
        "/* Bytes. */",
        f"#define {upper}_ARENA_SIZE {max(plan.peak, 1)}",
        f"#define {upper}_ARENA_ALIGN {align}",
        f"#define {upper}_INPUTS {len(ins)}",
        f"#define {upper}_OUTPUTS {len(outs)}",
    ]
    for which, ios in (("INPUT", ins), ("OUTPUT", outs)):
        for k, io in enumerate(ios):
            lines.append(f"#define {upper}_{which}{k}_SIZE {io.spec.bytes}")
            lines += [f"#define {upper}_{io.spec.c_name.upper()}_SIZE {upper}_{which}{k}_SIZE"]
            lines += _quantization(upper, io.spec)
    lines += ["", f"#define {upper}_OK 0", f"#define {upper}_NULL_POINTER (-1)", ""]
    lines += _struct(name, "inputs", ins, "const ") + _struct(name, "outputs", outs, "")
    lines += [
        f"extern uint8_t {name}_arena[{upper}_ARENA_SIZE];",
        "",
        "/* One inference. Returns 0, or a negative error. Not reentrant: the arena is shared. */",
        f"int32_t {name}_run(const struct {name}_inputs *inputs, const struct {name}_outputs *outputs);",
        "",
        "/* The places of inputs and outputs inside the arena. */",
        f"void {name}_map_inputs(struct {name}_inputs *inputs);",
        f"void {name}_map_outputs(struct {name}_outputs *outputs);",
        "",
        "#ifdef __cplusplus",
        "}",
        "#endif",
        "",
        f"#endif /* {upper}_H */",
        "",
    ]
    return "\n".join(lines)


def _copies(name: str, which: str, ios: Sequence[_Io]) -> list[str]:
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


def _fetch(name: str, ins: Sequence[_Io]) -> list[str]:
    """The function that the driver asks for rows, where an input is streamed."""
    cases: list[str] = []
    for k, io in enumerate(ins):
        if io.spec.stream_axis is not None:
            cast = f"({C_TYPES[io.spec.dtype]} *)(void *)to"
            member = f"inputs->{io.spec.c_name}"
            cases += [f"    if (input == {k}) {{", f"        return {member}({member}_context, row, {cast});", "    }"]
    if not cases:
        return []
    head = f"int32_t {name}_fetch(int8_t *context, int32_t input, int32_t row, int8_t *to)"
    inputs = f"    const struct {name}_inputs *inputs = (const struct {name}_inputs *)(const void *)context;"
    return [f"{head};", f"{head} {{", inputs, *cases, f"    return {name.upper()}_NULL_POINTER;", "}", ""]


def emit_api(name: str, ins: Sequence[_Io], outs: Sequence[_Io], functions: str, prelude: str) -> str:
    """`<name>.c`: the arena, the functions (or their declaration, with an object beside it) and the public API."""
    upper = name.upper()
    nulls = [f"inputs->{i.spec.c_name} == NULL" for i in ins] + [f"outputs->{i.spec.c_name} == NULL" for i in outs]
    lines = [
        f'#include "{name}.h"',
        "",
        "#include <string.h>",
        "",
        f"uint8_t {name}_arena[{upper}_ARENA_SIZE] {upper}_ALIGNED({upper}_ARENA_ALIGN) "
        f'{upper}_SECTION(".bss.{name}_arena");',
        f"extern const uint32_t {name}_flash[];",
        "",
        prelude,
        *_fetch(name, ins),
        functions,
    ]
    context = ", (int8_t *)(uintptr_t)inputs, &status" if any(i.spec.stream_axis is not None for i in ins) else ""
    for which, ios, const in (("inputs", ins, "const "), ("outputs", outs, "")):
        lines += [f"void {name}_map_{which}(struct {name}_{which} *{which}) {{"]
        mapped = [io for io in ios if io.spec.stream_axis is None]
        lines += [] if mapped else [f"    (void){which};"]
        for io in mapped:
            cast = f"({const}{C_TYPES[io.spec.dtype]} *)(void *)"
            lines.append(f"    {which}->{io.spec.c_name} = {cast}&{name}_arena[{io.offset}];")
        lines += ["}", ""]
    lines += [
        f"int32_t {name}_run(const struct {name}_inputs *inputs, const struct {name}_outputs *outputs) {{",
        f"    int32_t status = {upper}_OK;",
        f"    if ({' || '.join(['inputs == NULL', 'outputs == NULL', *nulls])}) {{",
        f"        return {upper}_NULL_POINTER;",
        "    }",
        *_copies(name, "inputs", ins),
        f"    {'(void)' if context else 'status = '}{name}_invoke((int8_t *)(void *){name}_arena, (int8_t *)(uintptr_t){name}_flash{context});",
        f"    if (status != {upper}_OK) {{",
        "        return status;",
        "    }",
        *_copies(name, "outputs", outs),
        f"    return {upper}_OK;",
        "}",
        "",
    ]
    return "\n".join(lines)


def emit_network(
    lowered: Lowered,
    name: str,
    inputs: Sequence[Port],
    outputs: Sequence[Port],
    *,
    target: Mapping[str, object] | None = None,
    align: int = 8,
    prelude: str = "",
    note: str = "",
) -> EmittedNetwork:
    """The files of one network.

    With `target` (an LLVM target) the functions come as `<name>_kernels.o`, otherwise as C99 in `<name>.c`.
    """
    name = c_identifier(name)
    ins, outs = _ports(lowered.plan, inputs, "input"), _ports(lowered.plan, outputs, "output")
    symbol = f"{name}_invoke"
    files: dict[str, bytes] = {}
    if target is None:
        functions, objects = emit_c_functions(lowered, symbol), ()
    else:
        context = ", int8_t *context, int32_t *status" if streamed_inputs(lowered.plan) else ""
        functions, objects = f"int32_t {symbol}(int8_t *arena, int8_t *flash{context});\n", (f"{name}_kernels.o",)
        files[objects[0]] = emit_object(lowered, target, symbol)
    files[f"{name}.h"] = emit_header(name, lowered.plan, ins, outs, align, note or name).encode()
    files[f"{name}.c"] = emit_api(name, ins, outs, functions, prelude).encode()
    files[f"{name}_weights.c"] = emit_weights(name, lowered.flash, lowered.flash_items).encode()
    return EmittedNetwork(
        name=name,
        files=files,
        sources=(f"{name}.c", f"{name}_weights.c"),
        objects=objects,
        inputs=tuple(i.spec for i in ins),
        outputs=tuple(o.spec for o in outs),
        arena_bytes=lowered.plan.peak,
        arena_align=align,
        requests=request_order(lowered.plan),
    )
