"""One fuzzing process: `python fuzz/target.py tflite|onnx|pt2 CORPUS [libFuzzer options]`. Started by `run.py`.

Whatever the bytes are, reading them as a model must give a module or a `CascadeError` of one line. What loads goes on
through the integer lowering and the reading of the graph.
"""

from __future__ import annotations

import io
import logging
import random
import re
import sys
import warnings
import zipfile
from pathlib import Path
from typing import Any

import atheris as _atheris

atheris: Any = _atheris  # its functions are found at run time

with atheris.instrument_imports(include=["tvm_cascade.frontend", "tvm_cascade.importers"]):
    from tvm_cascade import frontend

from tvm_cascade.errors import CascadeError  # noqa: E402
from tvm_cascade.passes.extract_graph import extract_graph  # noqa: E402
from tvm_cascade.passes.lower_quantized import LowerQuantized  # noqa: E402

KIND = sys.argv[1]
LARGEST = 1 << 16  # bytes of a mutated file
FOUND = next((a.partition("=")[2] for a in sys.argv if a.startswith("-artifact_prefix=")), "./")  # libFuzzer's option
logging.disable(logging.CRITICAL)
lower: Any = LowerQuantized()


def test_one_input(data: bytes) -> None:
    """Load, lower and read the graph of `data`, which stays in a file of its own: libFuzzer's copy is lost where a library
    ends the process before it is written."""
    path = Path(f"{FOUND}last.{KIND}")
    path.write_bytes(data)
    try:
        mod = frontend.load(path)
        extract_graph(lower(mod))
    except CascadeError as error:
        text = str(error)
        assert text and "\n" not in text, f"not one line: {text!r}"
        assert all(c.isprintable() for c in text), f"not printable: {text!r}"


def mutate_onnx(data: bytes, size: int, seed: int) -> bytes:
    """A change that leaves a protobuf: of a dimension, a type, an attribute, an edge or an operator."""
    import onnx

    draw = random.Random(seed)
    try:
        model = onnx.load_from_string(data)
        if draw.random() < 0.3 or not model.graph.node:
            raise ValueError
        node = draw.choice(model.graph.node)
        odd = draw.choice([0, 1, -1, 2, 7, 255, -128, 1 << 31, 1 << 40, -(1 << 62)])
        match draw.randrange(7):
            case 0 if node.attribute:
                attribute = draw.choice(node.attribute)
                attribute.i = odd
                if attribute.ints:
                    attribute.ints[draw.randrange(len(attribute.ints))] = odd
            case 1 if node.input:
                node.input[draw.randrange(len(node.input))] = draw.choice(draw.choice(model.graph.node).output)
            case 2:
                node.op_type = draw.choice(["Conv", "Add", "Reshape", "Concat", "Gather", "Resize", "Pad", "Foo"])
            case 3 if model.graph.initializer:
                tensor = draw.choice(model.graph.initializer)
                tensor.dims.append(odd) if not tensor.dims else tensor.dims.__setitem__(0, odd)
            case 4 if model.graph.initializer:
                tensor = draw.choice(model.graph.initializer)
                tensor.data_type = draw.randrange(20)
            case 5:
                del node.input[draw.randrange(len(node.input) + 1) :]
            case _:
                dims = model.graph.input[0].type.tensor_type.shape.dim
                if dims:
                    draw.choice(dims).dim_value = odd
        return model.SerializeToString()[:size]
    except Exception:  # no model any more: any change of bytes will do
        return atheris.Mutate(data, size)


def mutate_pt2(data: bytes, size: int, seed: int) -> bytes:
    """A change that leaves an archive: of a member's bytes, its numbers, its name or its presence; or a truncated file."""
    draw = random.Random(seed)
    if draw.random() < 0.2:
        return data[: draw.randrange(len(data) + 1)]
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = [(name, archive.read(name)) for name in archive.namelist()]
        k = draw.randrange(len(members))
        name, content = members[k]
        match draw.randrange(6):
            case 0:
                del members[k]
            case 1:
                members[k] = (draw.choice(members)[0], content)
            case 2:
                members[k] = (name, content[: draw.randrange(len(content) + 1)])
            case 3:
                members[k] = (name, atheris.Mutate(content, len(content) + 64))
            case _:  # the graph is JSON: one of its numbers or words becomes another
                k = next(i for i, (n, _) in enumerate(members) if n.endswith("model.json") or i == len(members) - 1)
                name, content = members[k]
                places = list(re.finditer(rb"-?\b\d+\b|\"[\w.:]+\"", content))
                place = draw.choice(places)
                odd = [b"0", b"-1", b"7", b"255", b"1099511627776", b"null", b"[]", b"{}", b'""', b"1e400"]
                new = draw.choice([*odd, draw.choice(places)[0]])
                members[k] = (name, content[: place.start()] + new + content[place.end() :])
        made = io.BytesIO()
        how = draw.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
        with warnings.catch_warnings(), zipfile.ZipFile(made, "w", how) as archive:
            warnings.simplefilter("ignore")  # two members of one name
            for name, content in members:
                archive.writestr(name, content)
        return made.getvalue()[:size]
    except Exception:  # no archive any more: any change of bytes will do
        return atheris.Mutate(data, size)


def main() -> None:
    """Fuzz until libFuzzer's options say stop."""
    mutators = {"onnx": mutate_onnx, "pt2": mutate_pt2}
    mutator = {"custom_mutator": mutators[KIND]} if KIND in mutators else {}
    atheris.Setup([sys.argv[0], *sys.argv[2:], f"-max_len={LARGEST}"], test_one_input, **mutator)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
