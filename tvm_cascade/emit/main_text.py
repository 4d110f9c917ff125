"""Emit an image's C programs: `main.c`, and the board's side of the serial protocol.

A single network and several networks have separate templates; the program for several runs them in turn over one arena.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm_cascade.emit.image import Image
from tvm_cascade.emit.network import C_TYPES, Network
from tvm_cascade.emit.states import free_ranges
from tvm_cascade.emit.template import fill_template, template
from tvm_cascade.tensor_spec import TensorSpec


def main_source(image: Image) -> str:
    """Write `main.c`: the application, completed by the user, and the program that measures in the emulator."""
    if not image.several:
        return fill_template(template("main.c.in"), _main_of_one(image.networks[0]))
    return fill_template(template("bundle_main.c.in"), _main_of_several(image))


def serial_sources(networks: Sequence[Network]) -> dict[str, str]:
    """Write the board's side of the serial protocol, by file name: one file per network, and for several a selecting
    file.
    """
    if len(networks) == 1:
        return {"serial_main.c": _serial_source(networks[0])}
    names = [f"serve_{network.name}" for network in networks]
    declarations = "\n".join(f"uint32_t {name}(int);" for name in names)
    values = {"declarations": declarations, "serve": ", ".join(names)}
    files = {serial_file(network): _serial_source(network) for network in networks}
    return {"serial_main.c": fill_template(template("bundle_serial_main.c.in"), values), **files}


def serial_file(network: Network) -> str:
    """Name the serial file of a network among several."""
    return f"serial_{network.name}.c"


def describe(side: str, specs: Sequence[TensorSpec], lead: str) -> str:
    """Describe each tensor in a single line, with the C names only: the model's own names may hold anything."""
    lines = []
    for spec in specs:
        quantized = "" if spec.scale is None else f", real = {spec.scale!r} * (q - {spec.zero_point or 0})"
        rows = f", asked for in rows of {spec.row_bytes} bytes" if spec.streamed else ""
        lines.append(f"{lead}{side}.{spec.c_name}: {spec.type_text}, {spec.bytes} bytes{rows}{quantized}")
    return "\n".join(lines)


def user_callback(spec: TensorSpec, name: str) -> str:
    """Write the callback completed by the user to deliver a single row of a streamed input."""
    return _callback(
        name,
        spec,
        f"    /* USER CODE: write the {spec.row_bytes} bytes of this row; other than 0 ends the run. */\n"
        "    (void)context;\n    (void)row;\n    (void)to;\n    return 0;\n",
    )


def _port_callback(spec: TensorSpec, name: str) -> str:
    """Write the callback that reads a row of a streamed input from the emulator's file."""
    size = f"{spec.row_bytes}u"
    return _callback(
        name,
        spec,
        f"    (void)context;\n    (void)row;\n    return port_read(to, {size}) == {size} ? 0 : -1;\n",
    )


def _serial_callback(spec: TensorSpec) -> str:
    """Write the callback that asks the host over the serial link for a row of a streamed input."""
    return _callback(
        spec.c_name,
        spec,
        f"    (void)row;\n    return want_row((struct session *)context, (uint8_t *)to, {spec.row_bytes}u);\n",
    )


def _callback(name: str, spec: TensorSpec, body: str) -> str:
    head = f"static int32_t read_{name}(void *context, int32_t row, {C_TYPES[spec.dtype]} *to)"
    return f"\n{head}\n{{\n{body}}}\n"


def _streamed(network: Network) -> list[TensorSpec]:
    return [spec for spec in network.inputs if spec.streamed]


def _main_of_one(network: Network) -> dict[str, str]:
    upper, streamed = network.name.upper(), _streamed(network)
    fill = [
        f"        inputs.{spec.c_name} = read_{spec.c_name};\n        inputs.{spec.c_name}_context = NULL;"
        if spec.streamed
        else f"        fill(inputs.{spec.c_name}, {upper}_INPUT{k}_SIZE);"
        for k, spec in enumerate(network.inputs)
    ]
    write = [
        f"        port_write(outputs.{spec.c_name}, {upper}_OUTPUT{k}_SIZE);" for k, spec in enumerate(network.outputs)
    ]
    return {
        "name": network.name,
        "NAME": upper,
        "fill_inputs": "\n".join(fill),
        "paint_memories": "\n".join(paint(network, "(uint8_t)pattern")),
        "report_memories": "\n".join(f"        report({m});" for m in measured(network, "(uint8_t)pattern")),
        "row_readers": "".join(_port_callback(spec, spec.c_name) for spec in streamed),
        "application_readers": "".join(user_callback(spec, spec.c_name) for spec in streamed),
        "application_inputs": "".join(f"        inputs.{spec.c_name} = read_{spec.c_name};\n" for spec in streamed),
        "write_outputs": "\n".join(write),
        **_weights(network),
        "describe_inputs": describe("inputs", network.inputs, "         * "),
        "describe_outputs": describe("outputs", network.outputs, "         * "),
    }


def _weights(network: Network) -> dict[str, str]:
    """Write the parts of `main.c` that bind a network's weights file; empty for linked weights."""
    keys = ("weights_port", "bind_measured", "application_port", "bind_weights")
    stored = network.interface.weights
    if stored is None or not stored.in_file:
        return {key: "" for key in keys} | {"measured_run": f"{network.name}_run(&inputs, &outputs)"}
    values = {"name": network.name, "NAME": network.name.upper()}
    parts = {key: fill_template(template(f"main_{stored.storage}_{key}.c.in"), values) for key in keys}
    return parts | {"measured_run": f"bound != 0 ? bound : {network.name}_run(&inputs, &outputs)"}


def _serial_weights(network: Network) -> tuple[str, str]:
    """Write the C by which the serial program binds its weights file: functions, and statements of `main`.

    Both are empty for linked weights.
    """
    stored = network.interface.weights
    if stored is None or not stored.in_file:
        return "", ""
    values = {"name": network.name, "NAME": network.name.upper()}
    port = fill_template(template(f"main_{stored.storage}_weights_port.c.in"), values)
    size = "(uint32_t)(__weights_end - __weights_start)"
    if stored.storage == "stream":
        return port, f"    weights_bytes = {size};\n    (void){network.name}_bind_weights();\n"
    return port, f"    (void){network.name}_bind_weights(__weights_start, {size});\n"


def paint(network: Network, pattern: str) -> list[str]:
    """Write C statements that paint every memory of a network before an inference, except states."""
    states = network.interface.states
    places = zip(network.interface.arrays, _arrays(network), strict=True)
    ranges = [
        (array, size) if not states else (f"{array} + {start}", f"{length}u")
        for memory, (array, size) in places
        if array != "NULL"
        for start, length in ([(0, 0)] if not states else free_ranges(memory, states))
    ]
    return [f"        measure_paint_arena({array}, {size}, {pattern});" for array, size in ranges]


def measured(network: Network, pattern: str) -> list[str]:
    """Return C expressions for the bytes touched in every memory, in the order of the network's memories."""
    return [
        f"measure_arena({array}, {size}, {pattern})" if array != "NULL" else "0u" for array, size in _arrays(network)
    ]


def _arrays(network: Network) -> list[tuple[str, str]]:
    """Return array and size macro for every memory of a network; "NULL" without an array."""
    return [
        (
            f"{network.name}_{m.label}" if m.bytes or not m.name else "NULL",
            f"{network.name.upper()}_{m.label.upper()}_SIZE",
        )
        for m in network.interface.arrays
    ]


def _main_of_several(image: Image) -> dict[str, str]:
    networks, pattern = image.networks, "(uint8_t)pattern"
    shared = [(f"tvm_cascade_{m.label}" if m.bytes or not m.name else "", m.bytes) for m in image.arrays]
    streamed = [(n.name, spec) for n in networks for spec in _streamed(n)]
    return {
        "includes": "\n".join(f'#include "{network.name}.h"' for network in networks),
        "arrays": "\n".join(f"extern uint8_t {array}[];" for array, _ in shared if array),
        "paint_memories": "\n".join(f"        measure_paint_arena({a}, {n}u, {pattern});" for a, n in shared if a),
        "report_memories": "\n".join(
            f"        report({f'measure_arena({array}, {size}u, {pattern})' if array else '0u'});"
            for array, size in shared
        ),
        "row_readers": "".join(_port_callback(spec, f"{name}_{spec.c_name}") for name, spec in streamed),
        "application_readers": "".join(user_callback(spec, f"{name}_{spec.c_name}") for name, spec in streamed),
        "measured_networks": "\n".join(_measured(network) for network in networks),
        "application_networks": "\n".join(_application(network) for network in networks),
    }


def _prepare(network: Network) -> list[str]:
    """Declare and map one of several networks, callbacks included."""
    name = network.name
    lines = [
        f"struct {name}_inputs inputs;",
        f"struct {name}_outputs outputs;",
        f"(void){name}_map_inputs(&inputs);",
        f"(void){name}_map_outputs(&outputs);",
    ]
    for spec in _streamed(network):
        lines.append(f"inputs.{spec.c_name} = read_{name}_{spec.c_name};")
        lines.append(f"inputs.{spec.c_name}_context = 0;")
    return lines


def _measured(network: Network) -> str:
    name, upper = network.name, network.name.upper()
    whole = [(k, spec) for k, spec in enumerate(network.inputs) if not spec.streamed]
    return _block(
        *_prepare(network),
        *(f"fill(inputs.{spec.c_name}, {upper}_INPUT{k}_SIZE);" for k, spec in whole),
        "const uint32_t coarse = counter_coarse();",
        "low = counter_low();",
        f"const int32_t result = {name}_run(&inputs, &outputs);",
        "ticks += counter_low() - low;",
        "coarse_ticks += counter_coarse() - coarse;",
        "status = status != 0 ? status : result;",
        *(f"port_write(outputs.{spec.c_name}, {upper}_OUTPUT{k}_SIZE);" for k, spec in enumerate(network.outputs)),
    )


def _application(network: Network) -> str:
    return _block(
        *_prepare(network),
        "/* USER CODE: write the inputs. */",
        f"if ({network.name}_run(&inputs, &outputs) != 0) {{",
        "    return 1;",
        "}",
        "/* USER CODE: read the outputs. */",
    )


def _block(*lines: str) -> str:
    """Wrap lines in a C block inside main's loop."""
    return "\n".join(("        {", *(f"            {line}" for line in lines), "        }"))


def _serial_source(network: Network) -> str:
    """Write the serial server of a network in C: addresses and sizes of whole tensors, callbacks for streamed
    tensors.
    """
    upper, streamed = network.name.upper(), _streamed(network)
    whole = [(k, spec) for k, spec in enumerate(network.inputs) if not spec.streamed]
    inputs = [
        f"    s.in[{n}].data = (uint8_t *)(uintptr_t)s.inputs.{spec.c_name};\n"
        f"    s.in[{n}].size = {upper}_INPUT{k}_SIZE;"
        for n, (k, spec) in enumerate(whole)
    ]
    outputs = [
        f"    s.out[{k}].data = (uint8_t *)s.outputs.{spec.c_name};\n    s.out[{k}].size = {upper}_OUTPUT{k}_SIZE;"
        for k, spec in enumerate(network.outputs)
    ]
    callbacks = [
        f"    s->inputs.{spec.c_name} = read_{spec.c_name};\n    s->inputs.{spec.c_name}_context = s;"
        for spec in streamed
    ]
    port, bind = _serial_weights(network)
    values = {
        "name": network.name,
        "NAME": upper,
        "weights_port": port,
        "bind_weights": bind,
        "digest": f"0x{network.interface.digest:08X}",
        "input_count": str(len(whole)),
        "output_count": str(len(network.outputs)),
        "input_ranges": "\n".join(inputs),
        "output_ranges": "\n".join(outputs),
        "serial_inputs": "\n".join(callbacks),
        "paint_memories": "\n".join(paint(network, "(uint8_t)s->pattern")),
        "reset_states": f"        (void){network.name}_reset();\n" if network.interface.states else "",
        "measure_memories": " + ".join(measured(network, "(uint8_t)s->pattern")),
        "row_server": (template("row_server.c.in") if streamed else "") + "".join(map(_serial_callback, streamed)),
    }
    return fill_template(template("serial_main.c.in"), values)
