"""Fuzz the loaders: `python fuzz/run.py --seconds 300` (`make fuzz`, which takes FUZZ_SECONDS). Exit status 1 where
something was found.

Seeds are random networks of every door (`tvm_cascade/testing/random_models`), the shapes network, single operators, models of
ONNX's backend suite, and archives of torch.export where torch is installed. libFuzzer (through atheris) bounds time and memory
of every input, and saves what crashes, hangs, or raises anything other than the project's own errors in `fuzz/found/`.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from tvm_cascade.errors import MissingToolError
from tvm_cascade.frontend import load
from tvm_cascade.testing import activation_cases, choice_cases, move_cases, weighted_cases
from tvm_cascade.testing.operator_cases import Generator
from tvm_cascade.testing.random_models.draw import draw
from tvm_cascade.testing.random_models.model import FORMS
from tvm_cascade.testing.random_models.references import file_bytes
from tvm_cascade.testing.tflite import ModelWriter

HERE = Path(__file__).parent
KINDS = ("tflite", "onnx", "pt2")
INPUT_SECONDS = 60  # longer is a hang
MEMORY_MB = 4096


_CHOICES = (("top_k", "int8"), ("gather_nd", "int8"), ("select", "int8"), ("concat_constants", "float32"))
_CASES = frozenset(  # of ONNX's suite
    (
        *("lstm_with_peepholes", "gru_defaults", "simple_rnn_with_initial_bias", "scan9_sum", "scan9_multi_state"),
        *("onehot_with_axis", "nonmaxsuppression_two_classes", "triu_pos", "convinteger_with_padding", "if"),
        *("linear_attention_decode_step", "attention_4d", "rotary_embedding", "layer_normalization_2d_axis0", "stft"),
        *("resize_upsample_scales_cubic", "reversesequence_batch", "compress_0", "qlinearmatmul_2D_uint8_float32"),
    )
)


def _operators() -> list[tuple[str, Generator, str]]:
    """Operators with converters of this project's own."""
    moved = ("gather", "mirror_pad", "space_to_batch", "batch_to_space", "split_v", "arg_max", "resize_bilinear")
    return [
        *((name, move_cases.OPERATORS[name], "int8") for name in moved),
        *((name, weighted_cases.OPERATORS[name], "int8") for name in ("transpose_conv", "prelu", "batch_matmul")),
        *((name, activation_cases.OPERATORS[name], "int8") for name in ("elu", "l2_normalization", "log_softmax")),
        *((f"{name}-{dtype}", choice_cases.OPERATORS[name], dtype) for name, dtype in _CHOICES),
        *((f"lstm-{dtype}", weighted_cases.lstm, dtype) for dtype in ("float32", "int8")),
        *((f"svdf-{dtype}", weighted_cases.svdf, dtype) for dtype in ("float32", "int8")),
    ]


def _onnx_of_the_suite() -> Iterator[tuple[str, Any]]:
    """Small models of operators with converters of their own, of ONNX's backend suite, with all inputs but the first as
    constants: steps, widths and indices have to be."""
    from onnx import numpy_helper

    from tvm_cascade.importers.onnx.folding import copied
    from tvm_cascade.testing.onnx_suite import suite

    for case in suite():
        if case.name.removeprefix("node/test_") in _CASES:
            model = copied(case.model)
            given = zip(list(model.graph.input)[1:], case.inputs[1:], strict=True)
            model.graph.initializer.extend(numpy_helper.from_array(a, v.name) for v, a in given)
            del model.graph.input[1:]
            yield case.name.removeprefix("node/test_"), model


def _random_seeds(kind: str, corpus: Path) -> None:
    """Write random networks of one to five operators in every number format."""
    for seed in range(16):
        form = FORMS[kind][seed % len(FORMS[kind])]
        model = draw(seed, kind, form, steps=1 + seed % 5)
        (corpus / f"random{seed}").write_bytes(file_bytes(model))


def _open_torch_seed(corpus: Path) -> None:
    """Write an archive of torch.export with an open size."""
    torch: Any = importlib.import_module("torch")
    free = ({0: torch.export.Dim("n"), 2: torch.export.Dim("h", min=8, max=64)},)
    exported = torch.export.export(torch.nn.Conv2d(2, 2, 3).eval(), (torch.zeros(2, 2, 8, 8),), dynamic_shapes=free)
    torch.export.save(exported, corpus / "open.pt2")


def _without_torch() -> str:
    """What the loader says of an archive where torch is not installed: one line."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "net.pt2"
        path.write_bytes(b"PK\3\4")
        try:
            load(path)
        except MissingToolError as error:
            return str(error)
    raise AssertionError("a .pt2 file was read without torch")


def write_seeds(kind: str, corpus: Path) -> None:
    """Write small files of `kind` that load."""
    _random_seeds(kind, corpus)
    if kind == "tflite":
        model = files("tvm_cascade.testing") / "data" / "shapes.tflite"
        (corpus / "shapes").write_bytes(model.read_bytes())
        for name, generate, dtype in _operators():
            writer = ModelWriter()
            generate(np.random.default_rng(0), dtype, writer)
            (corpus / name).write_bytes(writer.finish())
        return
    if kind == "pt2":
        _open_torch_seed(corpus)
        return
    for name, model in _onnx_of_the_suite():
        (corpus / name).write_bytes(model.SerializeToString())


def fuzz(kind: str, seconds: int, seed: int, found: Path) -> int:
    """Fuzz one loader; returns the number of inputs tried. Raises `subprocess.CalledProcessError` for a finding."""
    with tempfile.TemporaryDirectory() as folder:
        corpus = Path(folder) / "corpus"
        corpus.mkdir()
        write_seeds(kind, corpus)
        options = (
            f"-max_total_time={seconds}",
            f"-timeout={INPUT_SECONDS}",
            f"-rss_limit_mb={MEMORY_MB}",
            f"-seed={seed}",
            f"-artifact_prefix={found}/{kind}-",
        )
        command = (sys.executable, str(HERE / "target.py"), kind, str(corpus), *options)
        log = found / f"{kind}.log"
        with log.open("wb") as out:
            environment = {
                **os.environ,
                "PYTHONPATH": os.pathsep.join([str(HERE.parent), *sys.path[1:]]),
                "TVM_NUM_THREADS": "1",
            }
            done = subprocess.run(command, stdout=out, stderr=out, env=environment, check=False)
        text = log.read_text(errors="replace")
        counts = re.findall(r"^#(\d+)\s", text, flags=re.M) + re.findall(r"Done (\d+) (?:runs|in)", text)
        tried = max((int(n) for n in counts), default=0)
        if done.returncode:
            print("\n".join(text.splitlines()[-25:]), file=sys.stderr)
            raise subprocess.CalledProcessError(done.returncode, command)
        return tried


def main() -> int:
    """Fuzz every loader for the same time."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=300, help="altogether")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kind", choices=KINDS)
    args = parser.parse_args()
    if importlib.util.find_spec("atheris") is None:
        print("fuzzing needs atheris (pip install atheris), whose wheels are for CPython on Linux", file=sys.stderr)
        return 2
    found = HERE / "found"
    found.mkdir(exist_ok=True)
    kinds = [args.kind] if args.kind else list(KINDS)
    failed = 0
    if "pt2" in kinds and importlib.util.find_spec("torch") is None:
        kinds.remove("pt2")
        print(f"pt2: not fuzzed, {_without_torch()}", flush=True)
    for kind in kinds:
        try:
            tried = fuzz(kind, args.seconds // len(kinds), args.seed, found)
            print(f"{kind}: {tried} inputs, nothing found", flush=True)
        except subprocess.CalledProcessError:
            print(f"{kind}: see {found}/{kind}.log, of the input {found}/{kind}-last.{kind}", flush=True)
            failed = 1
    return failed


if __name__ == "__main__":
    sys.exit(main())
