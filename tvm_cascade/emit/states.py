"""The states of an emitted network in `<name>.h` and `<name>.c`, and the parts of the arena without states.

A state lies in the arena from one call to the next. Before the first run, and by `<name>_reset`, every state gets the
initial value; `<name>_state_save` and `_load` copy all states out and back, in the order of the header's list. Data
that arrives piece by piece, such as rows of a stream, is handed over by `<name>_push`. If networks share an arena,
states and pushed data lie in the network's own arrays, reached by pointers in the driver.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tvm_cascade.emit.c_interface import CInterface
from tvm_cascade.emit.names import c_comment
from tvm_cascade.emit.network import C_TYPES, Interface, NetworkMemory, PlacedState
from tvm_cascade.emit.template import fill_template, template


def state_bytes(states: Sequence[PlacedState]) -> int:
    """Count the bytes of all states, one behind another as saved."""
    return sum(state.spec.bytes for state in states)


def kept_bytes(interface: Interface) -> int:
    """Count the bytes beside a shared arena: the states between runs, and pushed data."""
    c = CInterface(interface)
    return sum(m.kept_bytes for m in interface.arrays) + (interface.inputs[0].bytes if c.takes_pushed else 0)


def definitions(c: CInterface) -> list[str]:
    """Write the C functions for a network's states; no lines without states."""
    if not c.interface.states:
        return []
    lines: dict[str, list[str]] = {key: [] for key in ("tables", "resets", "saves", "loads")}
    at = 0
    for k, state in enumerate(c.interface.states):
        size, held = state.spec.bytes, f"&{c.place(state.spec.offset or 0)}"
        table, value = f"{c.name}_state{k}_initial", _only_value(state)
        if value is None:
            lines["tables"] += _table(table, state.initial)
        source = f"memset({held}, {value}, {size}u);" if value is not None else f"memcpy({held}, {table}, {size}u);"
        lines["resets"].append(f"    {source}")
        lines["saves"].append(f"    memcpy((uint8_t *)to + {at}u, {held}, {size}u);")
        lines["loads"].append(f"    memcpy({held}, (const uint8_t *)from + {at}u, {size}u);")
        at += size
    values = {key: "".join(f"{line}\n" for line in some) for key, some in lines.items()}
    forget = f"    {c.name}_pushed = 0u;\n" if c.takes_pushed else ""
    text = fill_template(template("states.c.in"), {"name": c.name, "NAME": c.upper, "forget": forget, **values})
    if c.takes_pushed:
        spec = c.interface.inputs[0]
        given = {"type": C_TYPES[spec.dtype], "place": c.place(spec.offset or 0), "bytes": str(spec.bytes)}
        text += "\n" + fill_template(template("push.c.in"), {"name": c.name, "NAME": c.upper, **given})
    return text.removesuffix("\n").split("\n")


def part_definitions(c: CInterface) -> list[str]:
    """Return C that names the memories' parts with states, and defines arrays for states if networks share memories."""
    shared, own = list[str](), list[str]()
    for memory in c.memories:
        for part in c.parts(memory) if memory.kept_bytes else ():
            own.append(f"#define {part.name} (&{c.array(memory)}[{part.start - memory.start}])")
            array = f"static {c.upper}_ALIGNED({c.upper}_ARENA_ALIGN) uint8_t {part.name}[{part.bytes}];"
            shared.append(array if part.kept else f"#define {part.name} {c.array(memory)}")
    if c.takes_pushed:
        shared.append(f"static {c.upper}_ALIGNED(8) uint8_t {c.name}_kept_input[{c.interface.inputs[0].bytes}];")
    return ["#if defined(TVM_CASCADE_SHARED_ARENA)", *shared, "#else", *own, "#endif"] if shared else []


def marks(c: CInterface) -> list[str]:
    """Define the bytes that tell whether states hold values, and whether something was pushed."""
    if not c.interface.states:
        return []
    pushed = [f"static uint8_t {c.name}_pushed; /* whether the input holds what a run has not taken */"]
    has = f"static uint8_t {c.name}_has_state; /* whether the states hold anything */"
    return [has, *(pushed if c.takes_pushed else []), ""]


def restored(c: CInterface) -> list[str]:
    """Return C statements for the start of a run, which set the states if they hold nothing."""
    if not c.interface.states:
        return []
    first = [f"    if ({c.name}_has_state == 0u) {{", f"        {c.name}_set_states();", "    }"]
    return first


def only_shared(lines: Sequence[str]) -> list[str]:
    """Wrap `lines` to compile only if networks share an arena."""
    return ["#if defined(TVM_CASCADE_SHARED_ARENA)", *lines, "#endif"]


def taken(c: CInterface) -> list[str]:
    """Write C statements for the start of a run without inputs, which takes the pushed data."""
    if not c.takes_pushed:
        return []
    spec = c.interface.inputs[0]
    kept = f"        pushed.{spec.c_name} = (const {C_TYPES[spec.dtype]} *)(const void *){c.name}_kept_input;"
    return [
        f"    struct {c.name}_inputs pushed;",
        f"    if (inputs == NULL && {c.name}_pushed != 0u) {{",
        f"        (void){c.name}_map_inputs(&pushed);",
        *only_shared([kept]),
        "        inputs = &pushed;",
        "    }",
        f"    {c.name}_pushed = 0u;",
    ]


def declarations(c: CInterface) -> list[str]:
    """Declare these functions in the header, with the list of states."""
    states = c.interface.states
    if not states:
        return []
    listed = "\n".join(f" *   {c_comment(s.spec.name)}: {s.spec.type_text}, {s.spec.bytes} bytes" for s in states)
    values = {"name": c.name, "NAME": c.upper, "states": listed, "state_bytes": str(state_bytes(states))}
    text = fill_template(template("states.h.in"), values)
    if c.takes_pushed:
        spec = c.interface.inputs[0]
        own = {"type": C_TYPES[spec.dtype], "input": spec.c_name, "about": f"{spec.type_text}, {spec.bytes} bytes"}
        text = (
            text.removesuffix("\n")
            + "\n"
            + fill_template(template("push.h.in"), {"name": c.name, "NAME": c.upper, **own})
        )
    return text.removesuffix("\n").split("\n")


def free_ranges(memory: NetworkMemory, states: Sequence[PlacedState]) -> Iterator[tuple[int, int]]:
    """Find the ranges (start, bytes) in a memory's array without a state."""
    taken = sorted((s.spec.offset or 0, s.spec.bytes) for s in states)
    at, end = memory.start, memory.start + memory.bytes
    for start, size in (t for t in taken if at <= t[0] < end):
        if start > at:
            yield at - memory.start, start - at
        at = start + size
    if at < end:
        yield at - memory.start, end - at


def _only_value(state: PlacedState) -> int | None:
    """Return the value shared by all initial bytes of a state; None if they differ."""
    values = set(state.initial) or {0}
    return values.pop() if len(values) == 1 else None


def _table(name: str, data: bytes) -> list[str]:
    rows = [", ".join(str(b) for b in data[k : k + 24]) for k in range(0, len(data), 24)]
    return [f"static const uint8_t {name}[{len(data)}] = {{", *(f"    {row}," for row in rows), "};"]
