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
from tvm_cascade.emit.template import render
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
# r# makes no identifier of it, or a method has the name
_TAKEN = {"self", "super", "crate", "Self", "_", "run", "new", "reset"}
_GETTER = """
    /// The network `{1}`, its inputs to be filled.
    pub fn {0}(&mut self) -> {0}::Network<'_> {{
        {0}::Network::new(self)
    }}
"""
_HOOK = "int32_t (*hook)("  # in the header of a network that calls back after every step


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
        nets = package.networks

        def made(template: str, network: Network, **values: bool) -> str:
            streamed = [spec for spec in network.inputs if spec.streamed]
            known = {"net": network, "streamed": streamed, "package": package.name}
            return render(f"rust_{template}.rs.j2", _FILTERS, **known, **values)

        return {
            "source_list": ", ".join(json.dumps(source) for source, _ in package.sources()),
            "flag_list": ", ".join(json.dumps(flag) for flag in package.flags),
            "uses_math": str(package.uses_math).lower(),
            "sys_modules": "\n".join(made("declarations", n, hooked=_HOOK in headers[f"{n.name}.h"]) for n in nets),
            "getters": "".join(_GETTER.format(identifier(n.name), n.name) for n in nets),
            "modules": "\n".join(made("module", n) for n in nets),
            "example": "".join(made("example", n) for n in nets),
        }


def identifier(name: str) -> str:
    """Convert a C name to a Rust identifier."""
    return f"r#{name}" if name in _KEYWORDS else f"{name}_" if name in _TAKEN else name


def _type(spec: TensorSpec) -> str:
    return _TYPES[spec.dtype]


def _array(spec: TensorSpec) -> str:
    return f"[{_type(spec)}; {prod(spec.shape)}]"


def _row(spec: TensorSpec) -> int:
    """Count the elements in a streamed input's row."""
    return prod(spec.row_shape) // spec.row_shape[spec.stream_axis or 0]


def _zero(spec: TensorSpec) -> str:
    return "0.0" if spec.dtype.startswith("float") else "0"


def _about(spec: TensorSpec) -> str:
    real = "" if spec.scale is None else f"; real = {spec.scale!r} * (q - {spec.zero_point or 0})"
    return f"`{spec.type_text}`{real}"


_FILTERS = {"id": identifier, "type": _type, "array": _array, "about": _about, "zero": _zero, "row": _row}
KIND = _Rust()
