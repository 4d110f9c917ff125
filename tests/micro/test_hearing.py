"""Packages with an audio front end: their examples go from a microphone's samples to outputs, here on the emulator."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

import tvm_cascade
from tvm_cascade.boards.board import load_board
from tvm_cascade.emit.front_end import write_front_end
from tvm_cascade.emit.image import read_image
from tvm_cascade.emit.packages import KINDS
from tvm_cascade.emit.template import template
from tvm_cascade.emit.toolchain import build_image
from tvm_cascade.errors import UsageError
from tvm_cascade.request import FrontEndRequest
from tvm_cascade.runs.emulator import emulator_command
from tvm_cascade.testing.builder import Net
from tvm_cascade.testing.front_end import FrontEndOracle

pytestmark = pytest.mark.usefixtures("quick_host", "emulator")
BOARD, ROWS, FEATURES = load_board("mps2-an386"), 8, 40

# What Zephyr provides to the sample: a driver whose blocks come out of the slab, whose sound is the desk's, and which fails once
KERNEL = """
#include <errno.h>
#include <stdint.h>
#include <string.h>
#include "port.h"
#define BUILD_ASSERT(test, why) _Static_assert(test, why)
#define ROUND_UP(x, to) (((x) + (to) - 1) / (to) * (to))
#define k_msleep(time) ((void)(time))
struct k_mem_slab { uint8_t *bytes; uint32_t size, count, held; };
#define K_MEM_SLAB_DEFINE_STATIC(name, size, count, align) \\
    static uint8_t name##_bytes[(size) * (count)] __attribute__((aligned(align))); \\
    static struct k_mem_slab name = {name##_bytes, size, count, 0}
static inline void k_mem_slab_free(struct k_mem_slab *slab, void *block)
{
    if (block == 0 || slab->held == 0) port_exit(20);
    slab->held--;
}
"""
DMIC = """
struct device { int ready; };
static struct device pdm = {1};
#define DT_NODELABEL(label) label
#define DT_NODE_HAS_STATUS(node, status) BOARD_HAS(node)
#define BOARD_HAS(node) BOARD_##node
#define DEVICE_DT_GET(node) (&pdm)
#define device_is_ready(device) ((device)->ready)
enum dmic_trigger { DMIC_TRIGGER_STOP, DMIC_TRIGGER_START };
enum pdm_lr { PDM_CHAN_LEFT, PDM_CHAN_RIGHT };
struct pdm_io_cfg { uint32_t min_pdm_clk_freq, max_pdm_clk_freq; uint8_t min_pdm_clk_dc, max_pdm_clk_dc; };
struct pcm_stream_cfg { uint32_t pcm_rate; uint8_t pcm_width; uint16_t block_size; struct k_mem_slab *mem_slab; };
struct pdm_chan_cfg { uint32_t req_chan_map_lo, req_chan_map_hi; uint8_t req_num_chan, req_num_streams; };
struct dmic_cfg { struct pdm_io_cfg io; struct pcm_stream_cfg *streams; struct pdm_chan_cfg channel; };
static struct k_mem_slab *slab;
static uint32_t block, reads;
static int going;
static inline uint32_t dmic_build_channel_map(uint8_t channel, uint8_t unit, enum pdm_lr side)
{
    return ((unit * 2u) | side) << (channel * 4u);
}
static inline int dmic_configure(const struct device *device, struct dmic_cfg *config)
{
    const struct pcm_stream_cfg *stream = config->streams;
    if (device != &pdm || going || config->channel.req_num_chan != 1 || config->channel.req_num_streams != 1) return -EINVAL;
    if (stream->pcm_rate != 16000 || stream->pcm_width != 16 || stream->block_size > stream->mem_slab->size) return -EINVAL;
    if (config->io.min_pdm_clk_freq >= config->io.max_pdm_clk_freq || config->channel.req_chan_map_lo != 0) return -EINVAL;
    slab = stream->mem_slab;
    block = stream->block_size;
    return 0;
}
static inline int dmic_trigger(const struct device *device, enum dmic_trigger what)
{
    if (device != &pdm || slab == 0) return -EIO;
    going = what == DMIC_TRIGGER_START;
    return 0;
}
static inline int dmic_read(const struct device *device, uint8_t stream, void **buffer, size_t *bytes, int32_t wait)
{
    if (device != &pdm || stream != 0 || wait <= 0 || !going) return -EIO;
    if (++reads > 3000) port_exit(24);
    if (reads == 30) return -EAGAIN;
    if (slab->held == slab->count) return -ENOMEM;
    *buffer = slab->bytes + slab->held++ * slab->size;
    *bytes = block;
    if (port_read(*buffer, block) != block) port_exit(reads < 30 ? 21 : 0);
    return 0;
}
"""
ZEPHYR = {
    "zephyr/kernel.h": KERNEL,
    "zephyr/sys/printk.h": "#define printk(...) ((void)0)\n",
    "zephyr/audio/dmic.h": DMIC,
    "sound.h": "#define BOARD_dmic_dev 1\n#define main sample\n",
    "begin.h": "(void)sample();",
}
# What Arduino provides to the sketch, in C: interrupts bring 256 samples, as much as boards' libraries have by default
SKETCH_H = """
#include <stdint.h>
#include <stddef.h>
static void no_words(const char *text) { (void)text; }
static void no_rate(long rate) { (void)rate; }
static const struct { void (*begin)(long); void (*print)(const char *); void (*println)(const char *); } Serial
    = {no_rate, no_words, no_words};
static int masked;
#define noInterrupts() ((void)(masked = 1))
#define interrupts() ((void)(masked = 0))
"""
PDM_H = """
#include <string.h>
#include "port.h"
static uint8_t waiting[512];
static int taken, given;
static void (*interrupt)(void);
static int begin_pdm(int channels, int rate) { return channels == 1 && rate == 16000 && interrupt != 0; }
static void call_back(void (*function)(void)) { interrupt = function; }
static int left(void) { return given - taken; }
static int take(void *to, size_t bytes)
{
    const size_t some = bytes < (size_t)left() ? bytes : (size_t)left();
    memcpy(to, waiting + taken, some);
    taken += (int)some;
    return (int)some;
}
static const struct {
    int (*begin)(int, int);
    void (*onReceive)(void (*)(void));
    int (*available)(void);
    int (*read)(void *, size_t);
} PDM = {begin_pdm, call_back, left, take};
"""
SKETCH = {
    "PDM.h": PDM_H,
    "sound.h": SKETCH_H + "#define ARDUINO_ARCH_MBED 1\n",
    "begin.h": """
    setup();
    for (loop();; loop()) {
        for (int some = 0; some < 3; ++some) {
            given = (int)port_read(waiting, sizeof waiting);
            taken = 0;
            if (given == 0) port_exit(0);
            if (masked) port_exit(22);
            interrupt();
            if (left()) port_exit(23);
        }
    }
""",
}
STANDINS = {"zephyr": ZEPHYR, "arduino": SKETCH}
EXAMPLES = {"zephyr": "samples/slide/src/main.c", "arduino": "examples/slide/slide.ino"}
MAIN = """
#include "port.h"
#include "audio.c"
#include "sound.h"
#line 1 "example"
{sample}
#undef main
int main(void)
{{
    port_open();
#include "begin.h"
    port_exit(0);
    return 0;
}}
"""
# What the sketch of C++ is compiled with
ARDUINO = """
#include <stdint.h>
struct serial {
    void begin(long rate);
    void println(const char *text);
};
extern struct serial Serial;
void noInterrupts();
void interrupts();
"""
PDM = """
#include <stddef.h>
struct PDMClass {
    int begin(int channels, int rate);
    virtual int available();
    virtual int read(void *buffer, size_t size);
    void onReceive(void (*function)(void));
};
extern PDMClass PDM;
"""


@pytest.fixture
def front_end(tmp_path: Path) -> Path:
    write_front_end(FrontEndRequest(), tmp_path / "audio")
    return tmp_path / "audio"


def compiled(folder: Path, features: int = FEATURES, hop: int | None = 2) -> Path:
    """A network over a window of rows that takes `hop` new ones."""
    net = Net("int8")
    x = net.conv(net.input((1, ROWS, 1, features)), 8, (3, 1), padding="valid", activation="relu")
    mod = net.finish(net.dense(net.flatten(net.global_pool(net.conv(x, 8, 1))), 3))
    tvm_cascade.compile(mod, target="cortex-m4", output=folder, hop=hop, name="slide")
    return folder


@pytest.mark.parametrize(("kind", "hop"), [("zephyr", 2), ("zephyr", None), ("arduino", 2)])
def test_the_example_hears(kind: str, hop: int | None, tmp_path: Path, front_end: Path) -> None:
    """Every output from PCM on, through the driver: features by the oracle, outputs by the network in this process."""
    project = compiled(tmp_path / "p", hop=hop)
    files = tvm_cascade.export(project, kind=kind, output=tmp_path / kind, front_end=front_end)
    assert {"src/audio.c", EXAMPLES[kind]} < set(files)
    sample = (tmp_path / kind / EXAMPLES[kind]).read_text()
    assert sample.count("/* USER CODE: read the outputs.") == 1
    (output,) = re.findall(r"^ +\* outputs\.(\w+):", sample, re.M)
    told = f"port_write(outputs.{output}, SLIDE_{output.upper()}_SIZE); /* "
    sample = sample.replace("/* USER CODE: read the outputs.", told)
    (project / "main.c").write_text(MAIN.format(sample=sample))
    for place, text in {**STANDINS[kind], "audio.c": "", "audio.h": ""}.items():
        (project / place).parent.mkdir(parents=True, exist_ok=True)
        (project / place).write_text(text or (front_end / place).read_text())
    rng = np.random.default_rng(3)
    wave = (rng.normal(0, 900, 16000) * (1 + 9 * np.sin(np.arange(16000) / 900) ** 2)).clip(-32768, 32767)
    (tmp_path / "inputs.bin").write_bytes(wave.astype("<i2").tobytes())
    elf = build_image(read_image(project), BOARD).elf
    subprocess.run(emulator_command(BOARD, elf), cwd=tmp_path, stdin=subprocess.DEVNULL, timeout=300, check=True)
    made = np.frombuffer((tmp_path / "results.bin").read_bytes(), "int8").reshape(-1, 3)
    rows = np.array(list(FrontEndOracle().rows(wave.astype("int16"))))
    rows = np.minimum((rows * 256 + 333) // 666 - 128, 127).astype("int8")
    if hop is None:
        before = np.concatenate([np.zeros((ROWS - 1, FEATURES), "int8"), rows])
        calls = np.lib.stride_tricks.sliding_window_view(before, ROWS, axis=0).transpose(0, 2, 1)
    else:
        calls = rows[: len(rows) // hop * hop].reshape(-1, hop, FEATURES)
    np.savez(tmp_path / "f.npz", calls[:, :, None])
    told = tvm_cascade.run(project, frames=tmp_path / "f.npz", outputs=tmp_path / "o.npz", board="host")
    wanted = next(iter(np.load(tmp_path / "o.npz").values())).reshape(-1, 3)
    assert told.frames == len(made) and len(np.unique(wanted, axis=0)) > len(wanted) // 4
    np.testing.assert_array_equal(made, wanted)


def test_every_kind_with_examples_in_c_has_the_front_end(tmp_path: Path, front_end: Path) -> None:
    project = compiled(tmp_path / "p")
    for kind in KINDS:
        if kind == "rust":
            with pytest.raises(UsageError, match="a crate's is Rust"):
                tvm_cascade.export(project, kind=kind, output=tmp_path / kind, front_end=front_end)
            continue
        files = tvm_cascade.export(project, kind=kind, output=tmp_path / kind, front_end=front_end)
        assert {"audio.c", "audio.h"} <= {Path(f).name for f in files}, kind
        texts = [(tmp_path / kind / f).read_text() for f in files if Path(f).suffix in (".c", ".cpp", ".ino")]
        assert sum("audio_push(samples, features)" in text and "listen(" in text for text in texts) == 1, kind
    library = tmp_path / "arduino"
    sketch = library / "examples/slide/slide.ino"
    assert "delay(" not in sketch.read_text()
    (library / "Arduino.h").write_text(ARDUINO)
    (library / "PDM.h").write_text(PDM)
    options = ("-std=gnu++17", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-include", "Arduino.h", "-x", "c++")
    command = ["arm-none-eabi-g++", *options, f"-I{library}", f"-I{library / 'src'}", str(sketch)]
    subprocess.run([*command, "-DARDUINO_ARCH_MBED"], check=True)
    other = subprocess.run(command, capture_output=True, text=True, check=False)
    assert other.returncode != 0 and "no PDM library is known for this board: write listen()" in other.stderr
    assert "[env:nano33ble]" in (tmp_path / "platformio/examples/slide/platformio.ini").read_text()


def test_a_board_without_a_microphone_is_told(tmp_path: Path, front_end: Path) -> None:
    """The module's settings ask for Zephyr's driver, and a devicetree without one ends the build in a sentence."""
    module = tmp_path / "z"
    tvm_cascade.export(compiled(tmp_path / "p"), kind="zephyr", output=module, front_end=front_end)
    sample = module / "samples/slide"
    assert {"CONFIG_AUDIO=y", "CONFIG_AUDIO_DMIC=y"} < set((sample / "prj.conf").read_text().splitlines())
    assert '    filter: dt_nodelabel_enabled("dmic_dev")\n' in (sample / "sample.yaml").read_text()
    for place, text in {**ZEPHYR, "port.h": template("port.h")}.items():
        (tmp_path / "s" / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "s" / place).write_text(text)
    options = ["-fsyntax-only", "-Wall", "-Wextra", "-Werror", f"-I{tmp_path / 's'}", f"-I{module / 'include'}"]
    command = ["arm-none-eabi-gcc", *options, str(sample / "src/main.c")]
    subprocess.run([*command, "-DBOARD_dmic_dev=1"], check=True)
    other = subprocess.run([*command, "-DBOARD_dmic_dev=0"], capture_output=True, text=True, check=False)
    assert other.returncode != 0 and "no microphone: in an overlay, give it the label dmic_dev" in other.stderr


def test_what_does_not_hear_is_refused(tmp_path: Path, front_end: Path) -> None:
    with pytest.raises(UsageError, match="not rows of 40 int8 features alone"):
        project = compiled(tmp_path / "p", features=9, hop=None)
        tvm_cascade.export(project, kind="zephyr", output=tmp_path / "z", front_end=front_end)
    with pytest.raises(UsageError, match="holds no front end: write one by"):
        tvm_cascade.export(project, kind="zephyr", output=tmp_path / "z", front_end=tmp_path)
