"""The functions of `api` on compiled projects, on boards and on this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tvm_cascade import checks
from tvm_cascade.api_searches import Progress, silent
from tvm_cascade.keywords import FrontEndKeywords, RunKeywords, takes
from tvm_cascade.request import FrontEndRequest, RunRequest

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from tvm_cascade.checking.doctor import Doctor
    from tvm_cascade.emit.bundle import BundleResult
    from tvm_cascade.emit.front_end import FrontEnd
    from tvm_cascade.runs.flash import FlashResult
    from tvm_cascade.runs.run_report import RunReport
    from tvm_cascade.schema.targets import Target


@takes(RunKeywords, RunRequest)
def run(
    directory: str | Path,
    *,
    inputs: str | Path | Mapping[str, np.ndarray] | None = None,
    progress: Progress = silent,
    **options: Unpack[RunKeywords],
) -> RunReport:
    """Run a compiled project or bundle on its emulated board, a real one or this machine, and measure it.

    Parameters
    ----------
    directory : path
        A folder that `compile` or `bundle` wrote.
    board : str, optional
        Name or .json of another board than the folder was compiled for; "host" runs the network in this process.
    inputs : path of an .npz, or arrays by name, optional
        In the model's own types and layouts; None draws random ones from a fixed seed.
    frames : path of an .npz, optional
        Inputs of a sequence of calls from a clear state: the first axis counts the calls, a batch of one may be left out.
    outputs : path, optional
        An .npz file to write the outputs to.
    check : path, optional
        A model file; the outputs are compared with those of its reference kernels on the same inputs.
    port : str, optional
        Serial port of a real board to run on, to which `flash` has written the project; "auto" is the one that is plugged in.
    timeout : float, optional
        Seconds: limit on the emulation, 600 by default, or on the wait for an answer of the board at `port`, 60 by default.
    progress : function
        Called with a line of text at every step of long work.

    Returns
    -------
    RunReport
        The outputs by name, what was measured, and whether the outputs are the expected ones (`ok`).

    Raises
    ------
    UsageError
        A value that an option cannot have, or an array of another shape or type than the network's input.
    LoadError, MissingToolError, ToolError
        The folder or a file cannot be read; the emulator is not installed, or fails.
    """
    from tvm_cascade.runs.run_image import run_image

    return run_image(checks.path("directory", directory), RunRequest.of_all(options), inputs, progress)


def export(
    directory: str | Path, *, kind: str, output: str | Path, front_end: str | Path | None = None
) -> tuple[str, ...]:
    """Write the compiled project or bundle in `directory` as a package for another build system.

    Parameters
    ----------
    directory : path
        A folder that `compile` or `bundle` wrote.
    kind : str
        "arduino" or "platformio" for a library, "cmsis-pack", "esp-idf" for a component, "rust" for two crates without
        std, "stm32cube" for a folder of STM32CubeIDE projects, "zephyr" for a module.
    output : path
        A new folder.
    front_end : path, optional
        A folder that `front-end` wrote: its C goes with the network's, and the example from sound to outputs.

    Returns
    -------
    tuple of str
        The files of the package, relative to `output`.

    Raises
    ------
    UsageError, LoadError, MissingToolError
        An unknown `kind`, an `output` that is not empty, or a project that the package cannot hold; `directory` is no
        compiled project; the target's binutils are not installed.
    """
    from tvm_cascade.emit.export import export_folder
    from tvm_cascade.emit.packages import KINDS

    checks.choice(*KINDS)("as", kind)
    heard = checks.optional(checks.path)("front_end", front_end)
    return export_folder(checks.path("directory", directory), kind, checks.path("output", output), heard)


def bundle(
    directories: Sequence[str | Path], *, output: str | Path, board: str | None = None, keep_states: bool = False
) -> BundleResult:
    """Write and build one image of several compiled networks, which share one arena, in the new folder `output`.

    Parameters
    ----------
    directories : paths
        At least two folders that `compile` wrote, for one target and with different names.
    output : path
        A new folder.
    board : str, optional
        Name or .json; None takes that of the first network.
    keep_states : bool
        Give states memory beside the arena, where they survive runs of the others; without it networks with states are refused.

    Returns
    -------
    BundleResult
        The bytes of the shared arena, of RAM and of flash, and the path of the image.

    Raises
    ------
    UsageError, LoadError, MissingToolError, ToolError
        The networks cannot share an image, `output` is not empty, a folder is no project; the compiler is missing, or it fails.
    """
    folders, folder = [checks.path("directories", d) for d in directories], checks.path("output", output)
    on, kept = checks.optional(checks.name_or_path)("board", board), checks.flag("keep_states", keep_states)
    from tvm_cascade.emit.bundle import make_bundle

    return make_bundle(folders, folder, on, kept)


def flash(
    directory: str | Path,
    *,
    board: str | None = None,
    kind: str = "serial",
    tool: str | None = None,
    probe: str | None = None,
) -> FlashResult:
    """Write the project in `directory` to the board that is plugged in.

    Parameters
    ----------
    directory : path
        A folder that `compile` or `bundle` wrote.
    board : str, optional
        Name or .json; None takes the board that it was compiled for.
    kind : str
        The program to write: "serial", which answers `run` with `port`, or "application", main.c as you have written it.
    tool : str, optional
        "pyocd", "openocd" or "st-flash"; None takes the first of them that knows the board and is installed.
    probe : str, optional
        Serial number of the debug probe, where several are plugged in.

    Returns
    -------
    FlashResult
        The image that was written, the tool and its command line.

    Raises
    ------
    UsageError, LoadError, MissingToolError, ToolError
        No tool writes this board, or a value that an option cannot have; `directory` is no project; no such tool, or no
        cross compiler, is installed; the tool fails, as where no board is plugged in.
    """
    on = checks.optional(checks.name_or_path)("board", board)
    from tvm_cascade.runs.flash import flash_folder

    return flash_folder(checks.path("directory", directory), on, kind, tool, probe)


@takes(FrontEndKeywords, FrontEndRequest)
def front_end(*, output: str | Path, **options: Unpack[FrontEndKeywords]) -> FrontEnd:
    """Write an audio front end as C: int16 sound in, rows of log-mel features out, all in integers.

    The arithmetic is that of TensorFlow Lite Micro's front end, bit for bit; the defaults are those of its micro_speech.

    Parameters
    ----------
    output : path
        A new folder.
    name : str
        Of the C files, and what their symbols begin with.
    sample_rate, window_ms, step_ms, channels : int
        Samples of the sound in a second; milliseconds of sound that a row of features looks at, and from one row to the
        next; features of a row.
    low_hz, high_hz : float
        Where the first filter begins, and where the last one ends.
    smoothing_bits, even_smoothing, odd_smoothing : int, float and float
        The noise estimate: its additional bits, and the share of a row that it takes in, of even and of odd channels.
    least_signal : float
        Share of a channel that is left when its noise is taken off.
    gain, gain_strength, gain_offset, gain_bits : bool, float, float and int
        Whether channels are divided by a power of their noise (PCAN); that power; what is added to the noise before; the
        fraction bits of the quotient.
    log, log_shift, span : bool, int and int
        Whether logarithms are taken, with how many fraction bits; features from 0 to `span` are spread over int8.

    Returns
    -------
    FrontEnd
        The texts of the files, and the bytes of RAM and of tables that they take.

    Raises
    ------
    UsageError
        A value that an option cannot have, values that make no front end, or an `output` that is not empty.
    """
    from tvm_cascade.emit.front_end import write_front_end

    return write_front_end(FrontEndRequest.of_all(options), checks.path("output", output))


def targets() -> list[Target]:
    """What `target` takes by name: cores, then microcontrollers and boards.

    Returns
    -------
    list of dict
        Of each its name, core, clock in Hz, memories in bytes, and the documents that these figures come from: the JSON
        object of `tvm-cascade targets`.
    """
    from tvm_cascade.boards.target_table import targets as known

    return known()


def doctor(model: str | Path | None = None) -> Doctor:
    """Check what is installed, and name the operators of `model` that cannot be compiled or stay float.

    Parameters
    ----------
    model : path, optional
        A `.tflite`, `.onnx` or `.pt2` file.

    Returns
    -------
    Doctor
        Every check with what it found; `ok` says whether nothing that is required is missing, `to_text()` prints it.

    Raises
    ------
    LoadError, GraphError
        The model cannot be read (unknown operators are no error); it cannot be planned.
    """
    from tvm_cascade.checking.doctor import diagnose

    return diagnose(model)
