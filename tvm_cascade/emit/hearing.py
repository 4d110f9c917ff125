"""A front end in a package: its C lies beside the network's, and the example goes from a microphone's samples to outputs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path

from tvm_cascade.emit.network import Network
from tvm_cascade.emit.template import fill_template, template
from tvm_cascade.errors import UsageError

_CHANNELS = r"^#define {}_CHANNELS (\d+)$"


@dataclass(frozen=True, slots=True)
class Hearing:
    """A front end written by `front-end`, as files for a package."""

    name: str
    channels: int
    microphone: str = field(repr=False)  # template of the C with the example's `listen`
    texts: Mapping[str, str] = field(repr=False)  # of the source and the header, by name


def read_hearing(folder: Path, microphone: str) -> Hearing:
    """Read the front end in a folder, for examples that listen by the template `microphone`.

    Raises `UsageError` if there is none.
    """
    headers = sorted(folder.glob("*.h"))
    name = headers[0].stem if len(headers) == 1 else ""
    files = [folder / f"{name}{end}" for end in (".c", ".h")]
    if not name or not all(file.is_file() for file in files):
        raise UsageError(f"--front-end {folder} holds no front end: write one by `tvm-cascade front-end -o {folder}`")
    texts = {file.name: file.read_text(encoding="utf-8") for file in files}
    channels = re.search(_CHANNELS.format(name.upper()), texts[f"{name}.h"], re.M)
    if channels is None:
        raise UsageError(f"--front-end {folder}: {name}.h says no {name.upper()}_CHANNELS")
    return Hearing(name, int(channels[1]), template(microphone), texts)


def example_call(network: Network, hearing: Hearing, about_outputs: str) -> str:
    """Write the C function `call_<name>` of an example that listens; raise `UsageError` unless the input is rows of
    features.
    """
    spec, *others = network.inputs
    count = prod(spec.shape)
    apart = spec.window_axis > 1 and spec.shape[spec.window_axis] > 1
    if others or spec.streamed or spec.dtype != "int8" or count % hearing.channels or apart:
        told = ", ".join(s.type_text for s in network.inputs)
        raise UsageError(
            f"--front-end: {network.name} takes {told}, not rows of {hearing.channels} int8 features alone"
        )
    values = {"name": network.name, "NAME": network.name.upper(), "fe": hearing.name, "FE": hearing.name.upper()}
    values |= {"input": spec.c_name, "INPUT": spec.c_name.upper(), "about_outputs": about_outputs}
    values["every"] = str(count // hearing.channels if spec.window else 1)
    values["listen"] = fill_template(hearing.microphone, values)
    return fill_template(template("hears.c.in"), values)
