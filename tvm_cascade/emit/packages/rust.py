"""Two Rust crates without `std`: `<name>_network_sys` compiles and declares the C, `<name>_network` wraps it safely.

The place of every input and output in the arena becomes a borrowed array; a streamed input becomes a closure.
"""

from __future__ import annotations

import json
import re
from math import prod
from pathlib import Path

from tvm_cascade.emit.network import Network
from tvm_cascade.emit.package import Package, PackageKind, section_text, write_sources
from tvm_cascade.errors import UsageError
from tvm_cascade.tensor_spec import TensorSpec

_TYPES = {"bool": "u8", "float32": "f32", "float64": "f64"}
_TYPES |= {f"{sign}int{bits}": f"{short}{bits}" for sign, short in (("", "i"), ("u", "u")) for bits in (8, 16, 32, 64)}
_KEYWORDS = frozenset(
    re.findall(
        r"\w+",
        """as async await break const continue dyn else enum extern false fn for if impl in let loop match mod move mut pub
        ref return static struct trait true type unsafe use where while abstract become box do final gen macro override
        priv try typeof unsized virtual yield""",
    )
)
_TAKEN = {
    "self",
    "super",
    "crate",
    "Self",
    "_",
    "run",
    "new",
    "reset",
}  # r# makes no identifier of it, or a method has the name
_HOOK = re.compile(r"int32_t \(\*hook\)\(")  # in the header of a network that calls back after every step


class _Rust(PackageKind):
    templates = "rust"
    title = "a Rust crate"

    def refuse(self, package: Package, out: Path) -> None:
        if package.hearing is not None:
            raise UsageError(
                "--front-end goes with examples in C, and a crate's is Rust: compile the front end beside it"
            )
        for network in package.networks:
            if network.interface.weights is not None and network.interface.weights.in_file:
                raise UsageError(
                    f"the crate has no way to bind {network.interface.weights.file}: compile {network.name} with "
                    "--weights linked or section"
                )
        super().refuse(package, out)

    def write(self, package: Package, folder: Path) -> dict[str, str]:
        place = folder / f"{package.name}_network_sys" / "c"
        write_sources(package, place, place, section_text(package, self.sections))
        headers = dict(package.headers())
        hooked = {n.name: _HOOK.search(headers[f"{n.name}.h"]) is not None for n in package.networks}
        return {
            "source_list": ", ".join(json.dumps(source) for source, _ in package.sources()),
            "flag_list": ", ".join(json.dumps(flag) for flag in package.flags),
            "uses_math": str(package.uses_math).lower(),
            "sys_modules": "\n".join(_declarations(network, hooked[network.name]) for network in package.networks),
            "getters": "".join(_getter(package, network) for network in package.networks),
            "modules": "\n".join(_module(package, network) for network in package.networks),
            "example": "".join(_example(network) for network in package.networks),
        }


def identifier(name: str) -> str:
    """Convert a C name to a Rust identifier."""
    return f"r#{name}" if name in _KEYWORDS else f"{name}_" if name in _TAKEN else name


def _array(spec: TensorSpec) -> str:
    return f"[{_TYPES[spec.dtype]}; {prod(spec.shape)}]"


def _about(spec: TensorSpec) -> str:
    real = "" if spec.scale is None else f"; real = {spec.scale!r} * (q - {spec.zero_point or 0})"
    return f"`{spec.type_text}`{real}"


def _declarations(network: Network, hooked: bool) -> str:
    """Declare a network's module in the sys crate: structs and functions."""
    inputs = "".join(_input_fields(spec) for spec in network.inputs)
    if hooked:
        inputs += '        pub hook: Option<unsafe extern "C" fn(*mut c_void, i32) -> i32>,\n'
        inputs += "        pub hook_context: *mut c_void,\n"
    outputs = "".join(f"        pub {identifier(s.c_name)}: *mut {_TYPES[s.dtype]},\n" for s in network.outputs)
    name = network.name
    reset = f'        #[link_name = "{name}_reset"]\n        pub fn reset() -> i32;\n' if _keeps(network) else ""
    return f"""pub mod {identifier(name)} {{
    #[allow(unused_imports)]
    use core::ffi::c_void;

    #[repr(C)]
    #[derive(Clone, Copy)]
    pub struct Inputs {{
{inputs}    }}

    #[repr(C)]
    #[derive(Clone, Copy)]
    pub struct Outputs {{
{outputs}    }}

    extern "C" {{
        #[link_name = "{name}_run"]
        pub fn run(inputs: *const Inputs, outputs: *const Outputs) -> i32;
        #[link_name = "{name}_map_inputs"]
        pub fn map_inputs(inputs: *mut Inputs) -> i32;
        #[link_name = "{name}_map_outputs"]
        pub fn map_outputs(outputs: *mut Outputs) -> i32;
{reset}    }}
}}
"""


def _keeps(network: Network) -> bool:
    """Return True if the network keeps states between runs."""
    return "reset" in network.functions


def _input_fields(spec: TensorSpec) -> str:
    name, kind = identifier(spec.c_name), _TYPES[spec.dtype]
    if not spec.streamed:
        return f"        pub {name}: *const {kind},\n"
    row = f'Option<unsafe extern "C" fn(*mut c_void, i32, *mut {kind}) -> i32>'
    return f"        pub {name}: {row},\n        pub {spec.c_name}_context: *mut c_void,\n"


def _getter(package: Package, network: Network) -> str:
    name = identifier(network.name)
    return f"""
    /// The network `{network.name}`, its inputs to be filled.
    pub fn {name}(&mut self) -> {name}::Network<'_> {{
        {name}::Network::new(self)
    }}
"""


def _module(package: Package, network: Network) -> str:
    """Write a network's module in the safe crate."""
    name = identifier(network.name)
    whole = [spec for spec in network.inputs if not spec.streamed]
    streamed = [spec for spec in network.inputs if spec.streamed]
    generics = "".join(f", F{k}" for k in range(len(streamed)))
    bounds = "".join(f"    F{k}: FnMut(usize, &mut [{_TYPES[s.dtype]}]) -> i32,\n" for k, s in enumerate(streamed))
    rows = "".join(f", mut {identifier(s.c_name)}: F{k}" for k, s in enumerate(streamed))
    fields = "".join(
        f"    /// {_about(spec)}\n    pub {identifier(spec.c_name)}: &'a {_array(spec)},\n" for spec in network.outputs
    )
    places = "".join(
        f"            {identifier(s.c_name)}: unsafe {{ &*(self.outputs.{identifier(s.c_name)} as *const {_array(s)}) }},\n"
        for s in network.outputs
    )
    head = f"<{generics.removeprefix(', ')}>" if generics else ""
    where = f"\n        where\n{_indented(_indented(bounds))}       " if bounds else ""
    results = _indented(places)
    rows_set = "".join(_set_row(spec, k) for k, spec in enumerate(streamed))
    return f"""/// The network `{network.name}`.
pub mod {name} {{
    use super::{{Error, Networks, PhantomData}};
    use {package.name}_network_sys::{name} as sys;

    pub struct Network<'a> {{
        inputs: sys::Inputs,
        outputs: sys::Outputs,
        arena: PhantomData<&'a mut Networks>,
    }}

    /// The outputs, until the network is used again.
    pub struct Outputs<'a> {{
{_indented(fields)}    }}

    impl<'a> Network<'a> {{
        pub(super) fn new(_networks: &'a mut Networks) -> Self {{
            // all members are pointers or optional functions: zeros are null and None
            let mut network: Self = unsafe {{ core::mem::zeroed() }};
            unsafe {{
                sys::map_inputs(&mut network.inputs);
                sys::map_outputs(&mut network.outputs);
            }}
            network
        }}
{"".join(_place(spec) for spec in whole)}{_RESET if _keeps(network) else ""}
        /// One inference: fill all inputs before, for it may overwrite them.{_told(streamed)}
        pub fn run{head}(&mut self{rows}) -> Result<Outputs<'_>, Error>{where} {{
{rows_set}            let status = unsafe {{ sys::run(&self.inputs, &self.outputs) }};
            if status != 0 {{
                return Err(Error(status));
            }}
            Ok(Outputs {{
{results}            }})
        }}
    }}
{"".join(_trampoline(spec, k) for k, spec in enumerate(streamed))}}}
"""


_RESET = """
        /// Sets what the network keeps between runs to its first values.
        pub fn reset(&mut self) -> Result<(), Error> {
            match unsafe { sys::reset() } {
                0 => Ok(()),
                status => Err(Error(status)),
            }
        }
"""


def _indented(text: str) -> str:
    return "".join(f"    {line}\n" for line in text.splitlines())


def _place(spec: TensorSpec) -> str:
    name = identifier(spec.c_name)
    return f"""
        /// Input {_about(spec)}
        pub fn {name}(&mut self) -> &mut {_array(spec)} {{
            unsafe {{ &mut *(self.inputs.{name} as *mut {_array(spec)}) }}
        }}
"""


def _told(streamed: list[TensorSpec]) -> str:
    if not streamed:
        return ""
    rest = "that writes the row of that number and returns 0; anything else ends the run."
    return f" A streamed input is a function\n        /// {rest}"


def _set_row(spec: TensorSpec, k: int) -> str:
    name = identifier(spec.c_name)
    return (
        f"            self.inputs.{name} = Some(row{k}::<F{k}>);\n"
        f"            self.inputs.{spec.c_name}_context = &mut {name} as *mut F{k} as *mut core::ffi::c_void;\n"
    )


def _trampoline(spec: TensorSpec, k: int) -> str:
    """Write the C function that calls the closure for a streamed input."""
    kind = _TYPES[spec.dtype]
    elements = prod(spec.row_shape) // spec.row_shape[spec.stream_axis or 0]
    return f"""
    unsafe extern "C" fn row{k}<F: FnMut(usize, &mut [{kind}]) -> i32>(
        context: *mut core::ffi::c_void,
        row: i32,
        to: *mut {kind},
    ) -> i32 {{
        (*(context as *mut F))(row as usize, core::slice::from_raw_parts_mut(to, {elements}))
    }}
"""


def _example(network: Network) -> str:
    """Write the example's lines: zeros in, outputs printed."""
    name = identifier(network.name)
    zero = {spec.c_name: "0.0" if spec.dtype.startswith("float") else "0" for spec in network.inputs}
    rows = ", ".join(f"|_row, to| {{ to.fill({zero[s.c_name]}); 0 }}" for s in network.inputs if s.streamed)
    fills = "".join(
        f"    network.{identifier(s.c_name)}().fill({zero[s.c_name]});\n" for s in network.inputs if not s.streamed
    )
    prints = "".join(
        f'    println!("{network.name} {s.c_name} {{:?}}", outputs.{identifier(s.c_name)});\n' for s in network.outputs
    )
    return (
        f"    let mut network = networks.{name}();\n{fills}"
        f'    let outputs = network.run({rows}).expect("a run");\n{prints}'
    )


KIND = _Rust()
