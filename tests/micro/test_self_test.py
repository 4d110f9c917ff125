"""Self-tests of exported examples: built and run on this machine, where a wrong output has to be found."""

from __future__ import annotations

import subprocess
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

import tvm_cascade
from tvm_cascade.emit.golden import DIFFERS
from tvm_cascade.errors import LoadError, UsageError
from tvm_cascade.testing.builder import Net

SHAPES = Path(str(files("tvm_cascade.testing") / "data" / "shapes.tflite"))
MAIN = """
#include <stdio.h>
#include "{name}_golden.h"
int main(void)
{{
    struct {name}_inputs inputs;
    struct {name}_outputs outputs;
    printf("%d", (int){name}_self_test());
    {name}_map_inputs(&inputs);
    {name}_map_outputs(&outputs);
    {name}_run(&inputs, &outputs);
    {more}
    return 0;
}}
"""


def said(folder: Path, name: str, more: str = "") -> str:
    """Build the library in `folder` with a main function of the self-test; return what this prints."""
    main = folder / "main.c"
    main.write_text(MAIN.format(name=name, more=more))
    sources = [*map(str, (folder / "src").glob("*.c")), str(main)]
    flags = ("-O1", "-std=c99", "-fno-strict-aliasing", "-Wall", "-Wextra", "-Werror", "-Wno-unused-function")
    command = ["gcc", *flags, f"-I{folder / 'src'}", *sources, "-lm", "-o", str(folder / "test")]
    subprocess.run(command, check=True)
    return subprocess.run([str(folder / "test")], check=True, capture_output=True, text=True).stdout


@pytest.fixture(scope="module")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shapes") / "p"
    tvm_cascade.compile(SHAPES, target="host", output=folder)
    return folder


def test_a_wrong_output_is_found(shapes: Path, tmp_path: Path) -> None:
    labels = ["circle", 'tri"angle', "square", "d?", "e", "ü"]
    tvm_cascade.export(shapes, kind="arduino", output=tmp_path / "lib", labels=labels, check=SHAPES)
    told = said(tmp_path / "lib", "shapes", 'printf(" %s %s", shapes_labels[1], shapes_labels[5]);')
    assert told == '0 tri"angle ü'
    header = tmp_path / "lib" / "src" / "shapes_golden.h"
    text = header.read_text()
    assert "random inputs, which repeat; outputs by LiteRT" in text
    place = text.index("shapes_golden_scores[6] = {\n") + len("shapes_golden_scores[6] = {\n")
    header.write_text(text[:place] + "    1 + " + text[place:])
    assert said(tmp_path / "lib", "shapes") == str(DIFFERS)
    sketch = next((tmp_path / "lib").rglob("*.ino")).read_text()
    assert 'shapes_self_test() == 0 ? "passed" : "FAILED"' in sketch and "shapes_labels[class_shapes]" in sketch


def test_an_input_of_the_users_is_stored_whole(shapes: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    image = rng.integers(-128, 128, (1, 64, 64, 1), dtype=np.int8)
    np.savez(tmp_path / "x.npz", image=image)
    tvm_cascade.export(shapes, kind="arduino", output=tmp_path / "lib", inputs=tmp_path / "x.npz")
    text = (tmp_path / "lib" / "src" / "shapes_golden.h").read_text()
    assert "your inputs; outputs by this program on the host" in text
    stored = text.split("image[4096] = {")[1].split("}")[0]
    assert [int(number) for number in stored.split(",")] == image.reshape(-1).tolist()
    best = int(np.argmax(tvm_cascade.run(shapes, inputs=tmp_path / "x.npz").outputs["scores"]))
    assert said(tmp_path / "lib", "shapes", 'printf(" %u", (unsigned)shapes_class(&outputs));').startswith("0 ")
    assert 0 <= best < 6


def test_floats_within_the_tolerance_pass(tmp_path: Path) -> None:
    net = Net()
    mod = net.finish(net.softmax(net.dense(net.input((1, 2000), "x"), 5)))
    tvm_cascade.compile(mod, target="host", output=tmp_path / "p", name="dense")
    tvm_cascade.export(tmp_path / "p", kind="arduino", output=tmp_path / "lib")
    assert said(tmp_path / "lib", "dense") == "0"


def test_without_self_test_nothing_is_added(shapes: Path, tmp_path: Path) -> None:
    made = tvm_cascade.export(shapes, kind="zephyr", output=tmp_path / "lib", self_test=False)
    assert not [name for name in made if "golden" in name]
    rust = tvm_cascade.export(shapes, kind="rust", output=tmp_path / "crates")
    assert not [name for name in rust if "golden" in name]


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"labels": ["a", "b"]}, UsageError, "--labels has 2 names, and shapes has 6 scores"),
        ({"labels": "no.txt"}, LoadError, "no.txt"),
        ({"check": "no.tflite"}, LoadError, "no such file to check against"),
    ],
)
def test_wrong_options_are_refused(
    options: dict, error: type[Exception], text: str, shapes: Path, tmp_path: Path
) -> None:
    with pytest.raises(error, match=text):
        tvm_cascade.export(shapes, kind="zephyr", output=tmp_path / "lib", **options)
    assert not (tmp_path / "lib").exists()
