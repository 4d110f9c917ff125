"""Code generation for a network from a lowered plan: kernels as C99 or as an LLVM object, weights as const data, one
header.

The emitted C needs no TVM header, only standard headers; `<math.h>` and `<stdbool.h>` only if kernels use them.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import tvm
from tvm import tirx

from tvm_cascade.cache import NO_CACHE, Cache
from tvm_cascade.cascading.plan import MemoryUse, Plan
from tvm_cascade.cascading.state_areas import areas
from tvm_cascade.cores import CORES
from tvm_cascade.emit import hot_weights
from tvm_cascade.emit.c_interface import CInterface
from tvm_cascade.emit.entry import emit_entry
from tvm_cascade.emit.header import emit_header
from tvm_cascade.emit.hot_weights import Copies
from tvm_cascade.emit.names import network_identifier
from tvm_cascade.emit.network import EmittedNetwork, Interface, NetworkMemory, StoredWeights
from tvm_cascade.emit.placement import place_io, placed_states
from tvm_cascade.emit.weights import Weights, emit_weights
from tvm_cascade.emit.weights_file import FILE, identity, storage_of, weights_file
from tvm_cascade.passes.copied_weights import CopiedWeights
from tvm_cascade.schedules.driver.lower_plan import FlashItem, Lowered
from tvm_cascade.schedules.driver.streaming import request_order
from tvm_cascade.schedules.kernels.spec import ignores_nan
from tvm_cascade.schedules.rules.helpers import needed
from tvm_cascade.schedules.tir.bind_loads import bind_loads
from tvm_cascade.schedules.tir.c_names import with_c_names
from tvm_cascade.schedules.tir.dead_binds import remove_dead_binds
from tvm_cascade.schedules.tir.exact_floats import mark_floats, print_floats
from tvm_cascade.schedules.tir.mve_conversions import keep_products
from tvm_cascade.schedules.tir.nan import keep_nan, keep_nan_in_vectors
from tvm_cascade.schedules.tir.rounded_products import rounded_products
from tvm_cascade.search_monitor import counted, monitor
from tvm_cascade.tensor_spec import IoSpec

_ANY_NAME = "tvm_cascade_kernel"  # of a kernel in the cache
MARK = "tvm_cascade_step"  # called by a lowered driver before every step of an operator; no part of the emitted text
_MARK_LINE = re.compile(rf"^ *{MARK}\((\d+)\);\n", re.M)

_LOWERING = (
    tirx.transform.FlattenBuffer,
    tirx.transform.StmtSimplify,
    tirx.transform.VectorizeLoop,
    tirx.transform.UnrollLoop,
    tirx.transform.StmtSimplify,
    tirx.transform.LowerTVMBuiltin,
    tirx.transform.LowerIntrin,
)


def lower_for(mod: tvm.IRModule, target: tvm.target.Target) -> tvm.IRModule:
    """Lower the functions of `mod`, which take raw pointers and allocate nothing on a heap, for `target.build.c` or `.llvm`."""
    bound = tirx.transform.BindTarget(target.with_host(target))(mod)
    return tvm.ir.transform.Sequential([p() for p in _LOWERING])(bound)


def emit_object(lowered: Lowered, target: Mapping[str, object], symbol: str, cache: Cache = NO_CACHE) -> bytes:
    """Compile the kernels of a plan, without the driver, to a relocatable object; each is named `<symbol>_<kernel>`."""
    mod = _renamed(lowered, symbol, f"{symbol}_")
    del mod[mod.get_global_var(lowered.invoke)]
    monitor().report("kernels, all at once by LLVM", len(mod.get_global_vars()), unit="")
    return cache.value("object", lambda: (repr(dict(target)), tvm.ir.save_json(mod)), lambda: build_object(mod, target))


def build_object(mod: tvm.IRModule, target: Mapping[str, object]) -> bytes:
    """Compile the functions of `mod`, which take raw pointers, to a relocatable object by LLVM; returns its bytes."""
    made_for = tvm.target.Target(dict(target))
    lowered = lower_for(rounded_products(mod), made_for)
    has_vectors = any(core.mve and core.mcpu == target.get("mcpu") for core in CORES.values())
    if has_vectors:
        kept = {gv: f if ignores_nan(f) else keep_nan_in_vectors(f) for gv, f in lowered.functions_items()}
        lowered = tvm.IRModule({gv: keep_products(func) for gv, func in kept.items()})
    else:
        lowered = tvm.IRModule({gv: keep_nan(func) for gv, func in lowered.functions_items()})
    built = tvm.get_global_func("target.build.llvm")(lowered, made_for)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernels.o"
        built.write_to_file(str(path))
        return path.read_bytes()


def emit_c_driver(lowered: Lowered, symbol: str, cache: Cache = NO_CACHE) -> str:
    """Emit the driver alone as a C function called `symbol`, with declarations of the kernels.

    Driver and kernels are compiled separately: LLVM would inline the kernels into one function, short of registers.
    """
    texts = _print_driver(_renamed(lowered, symbol, f"{symbol}_"), lowered.invoke, cache)
    heads = [_head(text).removeprefix("" if name == lowered.invoke else "static ") for name, text in texts.items()]
    return _unit(heads, [text if name == lowered.invoke else "" for name, text in texts.items()])


def _renamed(lowered: Lowered, symbol: str, prefix: str = "") -> tvm.IRModule:
    """Give a plan's functions public names: the driver is `symbol`, kernels get the prefix."""
    mod = lowered.mod.clone()
    for gv in mod.get_global_vars():
        name = symbol if gv.name_hint == lowered.invoke else f"{prefix}{gv.name_hint}"
        mod[gv] = mod[gv].with_attr("global_symbol", name)
    return mod


def emit_c_functions(lowered: Lowered, symbol: str, cache: Cache = NO_CACHE) -> str:
    """Emit the kernels and the driver as static C functions; the driver is called `symbol`."""
    mod = _renamed(lowered, symbol)
    driver = _print_driver(mod, lowered.invoke, cache)[lowered.invoke]
    texts = [
        driver if gv.name_hint == lowered.invoke else _print_kernel(mod[gv], cache)
        for gv in counted("kernels", list(mod.get_global_vars()))
    ]
    return _unit([_head(text) for text in texts], texts)


def print_c(mod: tvm.IRModule) -> str:
    """Print the functions of `mod`, which take raw pointers and do not call one another, as C99 text."""
    texts = [_print_kernel(mod[gv], NO_CACHE) for gv in mod.get_global_vars()]
    return _unit([_head(text) for text in texts], texts)


def _print_kernel(func: tirx.PrimFunc, cache: Cache) -> str:
    """Print a function, without calls to others, as C. The cache ignores the function's name in this network."""
    unnamed = func.with_attr("global_symbol", _ANY_NAME)

    def printed() -> str:
        return _print_module(tvm.IRModule({_ANY_NAME: unnamed}))[_ANY_NAME]

    text = cache.text("C", lambda: [tvm.ir.save_json(unnamed)], printed)
    return text.replace(f" {_ANY_NAME}(", f" {func.attrs['global_symbol']}(", 1)


def _print_driver(mod: tvm.IRModule, driver: str, cache: Cache) -> dict[str, str]:
    """Print the function `driver`, and the functions called by it with empty bodies, as C texts by name in `mod`."""
    mod = mod.clone()
    for gv in mod.get_global_vars():
        if gv.name_hint != driver:
            func, zero = mod[gv], tirx.const(0, "int32")
            mod[gv] = tirx.PrimFunc(func.params, tirx.Return(zero), func.ret_type).with_attr(dict(func.attrs or {}))
    made = cache.text("C driver", lambda: [tvm.ir.save_json(mod)], lambda: json.dumps(_print_module(mod)))
    return json.loads(made)


def kernel_names(text: str, name: str) -> frozenset[str]:
    """Return the functions that a network's C text declares besides its driver."""
    heads = re.findall(r"^(?:static )?int32_t (\w+)\(.*\);$", text, flags=re.M)
    return frozenset(heads) - {f"{name}_invoke"}


def without_marks(text: str, kernels: Iterable[str]) -> tuple[str, tuple[int, ...]]:
    """Remove the marks from a driver's C text; return the operators of its kernel calls, in the order of the text."""
    calls: list[int] = []
    operator = -1
    for line in text.splitlines():
        if mark := _MARK_LINE.match(f"{line}\n"):
            operator = int(mark[1])
        elif (call := re.match(r" +(\w+)\(.*\);$", line)) and call[1] in kernels:
            calls.append(operator)
    return _MARK_LINE.sub("", text), tuple(calls)


def _print_module(mod: tvm.IRModule) -> dict[str, str]:
    """Print the functions of `mod` as C99 texts, by name in `mod`."""
    target = tvm.target.Target("c")
    mod = lower_for(mod, target)
    for gv in mod.get_global_vars():
        mod[gv] = with_c_names(mark_floats(keep_nan(bind_loads(remove_dead_binds(mod[gv])))))
    source = tvm.get_global_func("target.build.c")(mod, target).inspect_source()
    names = [gv.name_hint for gv in mod.get_global_vars()]
    return dict(zip(names, map(print_floats, tidy_c(source)), strict=True))


def _head(text: str) -> str:
    """Return the declaration of a C function, without the semicolon."""
    return text.split(" {\n", 1)[0]


def _unit(heads: Sequence[str], texts: Sequence[str]) -> str:
    """Assemble C text with all functions declared at the top."""
    return "".join(f"{head};\n" for head in heads) + "\n" + "\n".join(texts)


# A cast of a buffer to another element type. It goes through void*: views are aligned, which -Wcast-align cannot see.
_VIEW = re.compile(r"\(\((u?int(?:8|16|32|64)_t|float|double)\*\)(\w+)\)")


def tidy_c(source: str) -> list[str]:
    """Split text from TVM's C back end into functions: static, without includes, exports and declarations."""
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
    text = re.sub(r"\binff?\b", "INFINITY", text)  # as TVM prints the start of a maximum of floats
    text = _VIEW.sub(r"((\1*)(void*)\2)", text)
    text = re.sub(r"\n{3,}", "\n\n", text).strip()
    text = re.sub(r"^static int32_t \w+\(([^)]*)\) \{\n(.*?)^\}", _mark_unused, text, flags=re.M | re.S)
    return [f"{function.rstrip()}\n" for function in re.split(r"^(?=static int32_t \w+\()", text, flags=re.M)[1:]]


def _mark_unused(function: re.Match[str]) -> str:
    """Add a `(void)` statement to a matched C function for each unused parameter."""
    head, body = function[0].split("\n", 1)
    names = [p.split()[-1].lstrip("*") for p in function[1].split(",") if p.strip()]
    unused = [n for n in names if not re.search(rf"\b{n}\b", function[2])]
    return "\n".join([head, *(f"  (void){n};" for n in unused), body])


def _functions(
    lowered: Lowered, name: str, target: Mapping[str, object] | None, cache: Cache
) -> tuple[str, dict[str, bytes]]:
    """Emit the C text of a plan's functions, and the kernels' object file if they are compiled for `target`."""
    symbol = f"{name}_invoke"
    if target is None:
        return emit_c_functions(lowered, symbol, cache), {}
    driver = emit_c_driver(lowered, symbol, cache)
    return driver, {f"{name}_kernels.o": emit_object(lowered, target, symbol, cache)}


def _memories(plan: Plan, copies: Copies) -> tuple[NetworkMemory, ...]:
    """Return the memories a plan was placed in, for the emitted network, with copied weights beside the blocks."""
    kept = [_kept(plan, use) for use in plan.placed]
    made = [
        NetworkMemory(use.ram.name, use.start, use.bytes, use.ram.address, 0, *own)
        for use, own in zip(plan.placed, kept, strict=True)
    ]
    return tuple(replace(m, weights=copies.bytes) if m.name == copies.memory else m for m in made)


def _kept(plan: Plan, use: MemoryUse) -> tuple[int, int]:
    """Return start and bytes of a memory's part with states."""
    return next(((a.start, a.bytes) for a in areas(plan) if a.kept and use.start <= a.start < use.end), (0, 0))


def _texts(c: CInterface, functions: str, helpers: str, lowered: Lowered) -> dict[str, bytes]:
    """Emit the header, the source and the weights of a network, by file name."""
    storage, weights = storage_of(c), Weights(lowered.flash, lowered.flash_items, lowered.table_bytes)
    texts = {f"{c.name}.h": emit_header(c, c.name), f"{c.name}.c": emit_entry(c, functions, helpers)}
    if storage == "stream":  # the driver's tables stay in the image
        weights = Weights(lowered.flash[: weights.tables], _tables(lowered), weights.tables)
    if storage != "file":
        texts[f"{c.name}_weights.c"] = emit_weights(c.name, weights, storage == "section")
    files = {name: text.encode() for name, text in texts.items()}
    stored = c.interface.weights
    return files | ({stored.file: weights_file(lowered.flash, stored.identity)} if stored and stored.in_file else {})


def _tables(lowered: Lowered) -> tuple[FlashItem, ...]:
    return tuple(item for item in lowered.flash_items if item.offset < lowered.table_bytes)


def _stored(lowered: Lowered, storage: str, code: str) -> StoredWeights | None:
    """Describe where weights are stored; `code` is the C text of all functions, and of compiled kernels their bytes."""
    if storage == "linked":
        return None
    if storage == "section":
        return StoredWeights(storage)
    own = identity(code, lowered.flash[: lowered.table_bytes], lowered.flash_items)
    return StoredWeights(storage, FILE, own, len(lowered.flash))


def emit_network(
    lowered: Lowered,
    name: str,
    io: IoSpec,
    *,
    target: Mapping[str, object] | None = None,
    align: int = 8,
    prelude: str = "",
    copied: CopiedWeights | None = None,
    cache: Cache = NO_CACHE,
    storage: str = "linked",
) -> EmittedNetwork:
    """Emit the files of a network: header, source, weights, and for a `target` the object file with the kernels.

    Parameters
    ----------
    name : str
        Prefix of files and symbols, made a C identifier here.
    io : IoSpec
        Inputs and outputs in the order of the plan's graph.
    target : mapping, optional
        An LLVM target: kernels are emitted as `<name>_kernels.o`. Without it they are emitted as C99 in `<name>.c`.
    align : int
        Alignment of the arena in bytes.
    prelude : str
        C helper functions for kernels; those that no kernel calls are left out.
    copied : CopiedWeights, optional
        Constants that are copied to RAM and read there (`emit.hot_weights`).
    cache : Cache
        Keeps the kernels' code, each by itself; kernels of an object, which LLVM compiles together, as one.
    storage : str
        Where weights are stored, as `PlanRequest.weights` says. "stream" wants a plan lowered with a `segment_call`.
    """
    name = network_identifier(name)
    marked, files = _functions(lowered, name, target, cache)
    functions, calls = without_marks(marked, kernel_names(marked, name))
    objects = tuple(files)
    helpers = needed(prelude, functions)
    stored = _stored(lowered, storage, repr((functions, helpers, files)))
    if storage == "stream":
        copies = hot_weights.streamed_copies(lowered, functions)
    else:
        copies = hot_weights.copies_of(lowered, functions, copied or CopiedWeights())
    functions = hot_weights.redirect(lowered, functions, name, copies)
    plan = lowered.plan
    placed = place_io(plan, io, lowered.hooked)
    requests, memories, states = request_order(plan), _memories(plan, copies), placed_states(placed)
    inputs, outputs = placed.own_inputs, placed.own_outputs
    kept = (0, 0) if plan.placed else _kept(plan, plan.memories[0])
    interface = Interface(
        name,
        inputs,
        outputs,
        plan.peak,
        align,
        requests,
        memories=memories,
        states=states,
        kept=kept,
        weights=stored,
    )
    steps = sum(len(s.trace) * max(len(s.stripes), 1) for s in plan.segments) if lowered.hooked else None
    files |= _texts(CInterface(interface, steps, copies), functions, helpers, lowered)
    return EmittedNetwork(
        name=name,
        files=files,
        sources=tuple(file for file in (f"{name}.c", f"{name}_weights.c") if file in files),
        objects=objects,
        inputs=inputs,
        outputs=outputs,
        arena_bytes=plan.peak,
        arena_align=align,
        requests=requests,
        ram_weight_bytes=copies.bytes,
        cut=io.cut,
        memories=memories,
        states=states,
        kept=kept,
        fixed=io.fixed,
        weights=stored,
        like=io.like,
        calls=calls,
    )
