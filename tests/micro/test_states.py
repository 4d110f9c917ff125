"""States in the emitted C: kept from run to run, reset, saved and loaded, on this machine and in the emulator."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import tvm_cascade
from tvm_cascade.boards.board import load_board
from tvm_cascade.emit.host import HostProgram, run_host
from tvm_cascade.emit.image import Image, host_records, read_image
from tvm_cascade.emit.toolchain import build_image
from tvm_cascade.errors import UsageError
from tvm_cascade.runs import emulator
from tvm_cascade.testing.streaming import wake_word

pytestmark = pytest.mark.usefixtures("quick_host", "emulator")
BOARD = load_board("mps2-an386")
STATE_BYTES = 36 + 40 + 32  # of the rows that windows read, the new one with them
WARNINGS = ("-std=c99", "-O1", "-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-pedantic", "-Werror", "-Wcast-align")

MAIN = """
#include "wake.h"
#include <string.h>
#if defined(EMULATED)
#include "port.h"
static void tell(const int8_t *labels) { port_write(labels, WAKE_LABELS_SIZE); }
#else
#include <stdio.h>
static void port_open(void) {}
static void port_exit(int status) { (void)status; }
static void tell(const int8_t *labels) { printf("%d %d %d\\n", labels[0], labels[1], labels[2]); }
#endif
#if defined(TVM_CASCADE_ARENA_POINTER)
static uint64_t memory[WAKE_ARENA_SIZE / 8 + 1], other[WAKE_ARENA_SIZE / 8 + 1];
#endif
static uint8_t saved[WAKE_STATE_BYTES];

static void calls(int32_t from, int32_t count)
{
    for (int32_t k = from; k < from + count; ++k) {
        struct wake_inputs inputs;
        struct wake_outputs outputs;
        wake_map_inputs(&inputs);
        wake_map_outputs(&outputs);
        for (int32_t i = 0; i < WAKE_ROW_SIZE; ++i) {
            ((int8_t *)(uintptr_t)inputs.row)[i] = (int8_t)(i * 37 + k * 11);
        }
        if (wake_run(&inputs, &outputs) == WAKE_OK) {
            tell(outputs.labels);
        }
    }
}

int main(void)
{
    port_open();
#if defined(TVM_CASCADE_ARENA_POINTER)
    if (wake_reset() != WAKE_NULL_POINTER || wake_state_save(saved) != WAKE_NULL_POINTER) {
        return 1;
    }
    wake_set_arena(memory, sizeof memory);
#endif
    if (wake_state_save(NULL) != WAKE_NULL_POINTER || wake_state_load(NULL) != WAKE_NULL_POINTER) {
        return 1;
    }
    calls(0, 8); /* by itself from a clear state */
    wake_state_save(saved);
    calls(8, 4);
    wake_reset();
    calls(0, 8); /* again */
    wake_state_load(saved);
    calls(8, 4); /* on from where it was saved */
#if defined(TVM_CASCADE_ARENA_POINTER)
    memset(other, 77, sizeof other);
    wake_set_arena(other, sizeof other);
#else
    wake_reset();
#endif
    calls(0, 8); /* in other memory from a clear state */
    port_exit(0);
    return 0;
}
"""


@pytest.fixture(scope="module")
def wake(tmp_path_factory: pytest.TempPathFactory, emulator: None, quick_host: None) -> Image:
    folder = tmp_path_factory.mktemp("states")
    (folder / "wake.tflite").write_bytes(wake_word())
    tvm_cascade.compile(folder / "wake.tflite", target="cortex-m4", output=folder / "p")
    return read_image(folder / "p")


@pytest.mark.parametrize("arena", ["-DOWN", "-DTVM_CASCADE_ARENA_POINTER"])
def test_states_are_kept_reset_saved_and_loaded(wake: Image, tmp_path: Path, arena: str) -> None:
    (tmp_path / "main.c").write_text(MAIN)
    sources = [str(wake.folder / name) for name in ("wake.c", "wake_weights.c")]
    program = str(tmp_path / "program")
    if wake.networks[0].objects or shutil.which("gcc") is None:
        pytest.skip("gcc is not installed")
    flags = (*WARNINGS, arena, f"-I{wake.folder}")
    subprocess.run(("gcc", *flags, str(tmp_path / "main.c"), *sources, "-o", program), check=True)
    done = subprocess.run((program,), capture_output=True, text=True, check=True)
    follows(wake, [[int(n) for n in line.split()] for line in done.stdout.splitlines()])


def test_states_are_saved_and_loaded_in_the_emulator(wake: Image, tmp_path: Path) -> None:
    folder = shutil.copytree(wake.folder, tmp_path / "p")
    (folder / "main.c").write_text("#define EMULATED\n" + MAIN)
    status, written = emulator.run_without_inputs(build_image(read_image(folder), BOARD).elf, BOARD, 60.0)
    assert status == 0
    follows(wake, np.frombuffer(written, "int8").reshape(-1, 3).tolist())


def follows(wake: Image, lines: list[list[int]]) -> None:
    """Whether `MAIN` said what the network says in this process: in 12 calls, on from those that were saved as without."""
    first, on, again, loaded, fresh = (lines[a:b] for a, b in ((0, 8), (8, 12), (12, 20), (20, 24), (24, 32)))
    assert len(lines) == 32 and len(set(map(tuple, first))) > 4 and first == again == fresh and on == loaded
    made = host(wake, [np.int64(np.arange(12) * 37 + k * 11).astype("int8") for k in range(12)])
    assert [labels.ravel().tolist() for labels in made] == first + on


def host(image: Image, rows: list[np.ndarray]) -> list[np.ndarray]:
    record = next(iter(host_records(image).values()))
    program = HostProgram.load(record.folder, record.data)
    done = run_host(program, [{"row": row.reshape(1, 1, 1, 12)} for row in rows])
    return [outputs["labels"] for outputs in done.outputs]


def test_a_sequence_in_the_emulator_is_that_of_the_host(wake: Image) -> None:
    rng = np.random.default_rng(0)
    rows = [rng.integers(-128, 128, 12, "int8") for _ in range(40)]
    elf = build_image(wake, BOARD).elf
    done = emulator.run(elf, BOARD, wake, [[row.reshape(1, 1, 1, 12)] for row in rows], 60.0)
    np.testing.assert_array_equal([o[0] for o in done.outputs], host(wake, rows))
    assert done.memory_high_water_bytes == (wake.arena_bytes,)


def test_the_plan_lists_the_states(wake: Image) -> None:
    result = tvm_cascade.plan(wake.folder.parent / "wake.tflite", target="cortex-m4")
    states = result.to_dict().get("states", [])
    assert sum(s["bytes"] for s in states) <= result.to_dict()["bound_bytes"] <= result.peak_bytes
    assert [(s["name"], s["bytes"]) for s in states] == [("ring0", 36), ("ring1", 40), ("ring2", 32)]
    assert f"states    {STATE_BYTES} bytes of the arena are kept from call to call" in result.to_text()
    assert f"#define WAKE_STATE_BYTES {STATE_BYTES}" in (wake.folder / "wake.h").read_text()


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory, emulator: None, quick_host: None) -> Image:
    """Another network with states."""
    folder = tmp_path_factory.mktemp("other")
    (folder / "wake.tflite").write_bytes(wake_word(seed=1))
    tvm_cascade.compile(folder / "wake.tflite", target="cortex-m4", name="other", output=folder / "p")
    return read_image(folder / "p")


def test_states_in_a_shared_arena_have_to_be_asked_for(wake: Image, other: Image, tmp_path: Path) -> None:
    message = r"wake keeps states in its arena.*--keep-states gives states 240 bytes of their own"
    with pytest.raises(UsageError, match=message):
        tvm_cascade.bundle([wake.folder, other.folder], output=tmp_path / "b")
    (tmp_path / "main.c").write_text('#include "wake.h"\n')
    words = ("gcc", "-DTVM_CASCADE_SHARED_ARENA", f"-I{wake.folder}", "-fsyntax-only", str(tmp_path / "main.c"))
    failed = subprocess.run(words, capture_output=True, text=True, check=False)
    assert failed.returncode and "define TVM_CASCADE_KEEP_STATES too" in failed.stderr


SHARED = """
#include "wake.h"
#include "other.h"
#include <stdio.h>
#include <string.h>
#define MOST (WAKE_ARENA_SIZE > OTHER_ARENA_SIZE ? WAKE_ARENA_SIZE : OTHER_ARENA_SIZE)
WAKE_ALIGNED(16) uint8_t tvm_cascade_arena[MOST];
volatile uint8_t tvm_cascade_arena_busy;
static uint8_t saved[WAKE_STATE_BYTES];

#define CALLS(NAME, name)                                                   \
    static void name##_call(int32_t k)                                      \
    {                                                                       \
        struct name##_outputs outputs;                                      \
        int8_t row[NAME##_ROW_SIZE];                                        \
        for (int32_t i = 0; i < NAME##_ROW_SIZE; ++i) {                     \
            row[i] = (int8_t)(i * 37 + k * 11);                             \
        }                                                                   \
        if (name##_push(row) != NAME##_OK) {                                \
            printf("no push\\n");                                           \
        }                                                                   \
        memset(tvm_cascade_arena, 91, sizeof tvm_cascade_arena);            \
        name##_map_outputs(&outputs);                                       \
        if (name##_run(NULL, &outputs) != NAME##_OK) {                      \
            printf("no run\\n");                                            \
        }                                                                   \
        printf(#name " %d %d %d\\n", outputs.labels[0], outputs.labels[1], outputs.labels[2]); \
    }
CALLS(WAKE, wake)
CALLS(OTHER, other)

int main(void)
{
    for (int32_t k = 0; k < 12; ++k) {
        wake_call(k);
        other_call(k);
        if (k == 7) {
            wake_state_save(saved);
        }
    }
    wake_reset();
    for (int32_t k = 0; k < 3; ++k) {
        wake_call(k);
    }
    wake_state_load(saved);
    for (int32_t k = 8; k < 12; ++k) {
        other_call(k + 4);
        wake_call(k);
    }
    return 0;
}
"""


def test_states_survive_networks_that_share_the_arena(wake: Image, other: Image, tmp_path: Path) -> None:
    """Two networks turn about, over an arena that is overwritten before every run: each computes what it does alone."""
    (tmp_path / "main.c").write_text(SHARED)
    program = str(tmp_path / "program")
    if wake.networks[0].objects or shutil.which("gcc") is None:
        pytest.skip("gcc is not installed")
    sources = [str(i.folder / f"{i.name}{end}.c") for i in (wake, other) for end in ("", "_weights")]
    flags = (*WARNINGS, "-DTVM_CASCADE_SHARED_ARENA", "-DTVM_CASCADE_KEEP_STATES")
    flags += (f"-I{wake.folder}", f"-I{other.folder}")
    subprocess.run(("gcc", *flags, str(tmp_path / "main.c"), *sources, "-o", program), check=True)
    lines = subprocess.run((program,), capture_output=True, text=True, check=True).stdout.splitlines()
    for image, count in ((wake, 12), (other, 16)):
        made = host(image, [np.int64(np.arange(12) * 37 + k * 11).astype("int8") for k in range(count)])
        alone = [" ".join((image.name, *map(str, labels.ravel()))) for labels in made]
        calls = [line for line in lines if line.startswith(image.name)]
        assert calls == ([*alone, *alone[:3], *alone[8:]] if image is wake else alone)


def test_a_bundle_keeps_states_in_the_emulator(wake: Image, other: Image, tmp_path: Path) -> None:
    """The firmware paints all of the arena before every call."""
    made = tvm_cascade.bundle([wake.folder, other.folder], output=tmp_path / "b", keep_states=True)
    assert made.kept_bytes == 2 * (STATE_BYTES + 12) and f"{made.kept_bytes} bytes beside it" in made.to_text()
    most = max(wake.arena_bytes, other.arena_bytes) - STATE_BYTES  # no place for states in what is shared
    assert made.arena_bytes == most and made.kept_bytes + most <= made.ram_bytes <= made.kept_bytes + most + 32
    assert f"| `wake.h`, `wake.c`, ... | {wake.arena_bytes - STATE_BYTES} |" in (made.folder / "README.md").read_text()
    rows = np.random.default_rng(0).integers(-128, 128, (2, 30, 1, 1, 12), "int8")
    np.savez(tmp_path / "f.npz", **{"wake/row": rows[0], "other/row": rows[1]})
    done = tvm_cascade.run(made.folder, frames=tmp_path / "f.npz")
    assert done.equals_host and (done.frames, done.executed_macs) == (30, 30 * done.frame_macs)
    for image, given in zip((wake, other), rows, strict=True):
        np.testing.assert_array_equal(done.outputs[f"{image.name}/labels"], host(image, list(given)))
    np.savez(tmp_path / "f.npz", **{"wake/row": rows[0], "other/row": rows[1][:4]})
    with pytest.raises(UsageError, match="holds 4 and 30 calls of the inputs: give as many of each"):
        tvm_cascade.run(made.folder, frames=tmp_path / "f.npz")
    files = tvm_cascade.export(made.folder, kind="zephyr", output=tmp_path / "z")
    header = next((tmp_path / "z" / f).read_text() for f in files if f.endswith("wake.h"))
    assert "#define TVM_CASCADE_KEEP_STATES\n" in header


def frames(folder: Path, count: int) -> Path:
    rows = np.random.default_rng(2).integers(-128, 128, (count, 1, 1, 12), "int8")  # without the batch
    np.savez(folder / "f.npz", row=rows)
    return folder / "f.npz"


@pytest.mark.parametrize("board", [None, "host"])
def test_a_sequence_of_calls_equals_the_reference(wake: Image, tmp_path: Path, board: str | None) -> None:
    model, given = wake.folder.parent / "wake.tflite", frames(tmp_path, 25)
    done = tvm_cascade.run(wake.folder, board=board, frames=given, outputs=tmp_path / "o.npz", check=model)
    assert done.ok and done.match and done.max_abs_diff == 0
    assert (done.frames, done.executed_macs) == (25, 25 * done.frame_macs)
    labels = np.load(tmp_path / "o.npz")["labels"]
    assert labels.shape == (25, 1, 3) and len(np.unique(labels, axis=0)) > 10
    first = tvm_cascade.run(wake.folder, board="host", inputs={"row": np.load(given)["row"][:1]}, check=model)
    assert first.ok and first.match and "frames" not in first.to_dict()
    np.testing.assert_array_equal(first.outputs["labels"], labels[0])


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"row": np.zeros((3, 1, 1, 11), "int8")}, r"'row' is int8\[3, 1, 1, 11\], .* wants int8\[frames, 1, 1, 12\]"),
        ({"row": np.zeros((3, 1, 1, 12), "float32")}, "wants int8"),
        ({"row": np.zeros((0, 1, 1, 12), "int8")}, "holds 0 calls"),
        ({"a": np.zeros((3, 1, 1, 12), "int8"), "b": np.zeros(3)}, "no input 'row' among a, b"),
    ],
)
def test_sequences_of_other_shapes_are_refused(wake: Image, tmp_path: Path, arrays: dict, message: str) -> None:
    np.savez(tmp_path / "f.npz", **arrays)
    with pytest.raises(UsageError, match=message):
        tvm_cascade.run(wake.folder, board="host", frames=tmp_path / "f.npz")


def test_a_sequence_takes_no_other_inputs(wake: Image, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="leave --inputs out"):
        tvm_cascade.run(wake.folder, frames=frames(tmp_path, 2), inputs=tmp_path / "i.npz")
