"""The Python API: one function for each command of the command line, with the same options and defaults.

`progress`, which most take, is called with a line of text at every step of long work.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from tvm_cascade import checks
from tvm_cascade.api_projects import bundle, doctor, export, flash, front_end, run, targets
from tvm_cascade.api_searches import Model, Progress, allocate, optimize, order, silent, stages
from tvm_cascade.comparison import compare
from tvm_cascade.frontend import load
from tvm_cascade.keywords import (
    CompileKeywords,
    PlanKeywords,
    QuantizeKeywords,
    ValidateKeywords,
    takes,
)
from tvm_cascade.planning import plan_model
from tvm_cascade.report.commands import commands_of
from tvm_cascade.request import (
    COMPILE_OPTIONS,
    PLAN_OPTIONS,
    EmitRequest,
    KernelRequest,
    LoadRequest,
    PlanRequest,
    QuantizeRequest,
    Request,
    TimeRequest,
    ValidateRequest,
    request_of,
)
from tvm_cascade.results import CompileResult, PlanResult

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from tvm_cascade.emit.bundle import BundleResult
    from tvm_cascade.quantization.result import QuantizeResult
    from tvm_cascade.runs.run_report import RunReport
    from tvm_cascade.samples.sample_set import Data
    from tvm_cascade.validation.report import ValidationReport

__all__ = [
    "BundleResult", "CompileResult", "PlanResult", "QuantizeResult", "RunReport", "ValidationReport", "allocate", "bundle",
    "compare", "compile", "doctor", "export", "flash", "front_end", "load", "optimize", "order", "plan", "quantize", "run",
    "stages", "targets", "validate",
]  # fmt: skip

_RESULTS = {"BundleResult": "tvm_cascade.emit.bundle", "RunReport": "tvm_cascade.runs.run_report",
            "QuantizeResult": "tvm_cascade.quantization.result", "ValidationReport": "tvm_cascade.validation.report"}  # fmt: skip


def __getattr__(name: str) -> object:
    """What planning does without, and imports `micro`, is imported when it is asked for."""
    if name in _RESULTS:
        return getattr(import_module(_RESULTS[name]), name)
    raise AttributeError(f"module 'tvm_cascade.api' has no attribute '{name}'")


@takes(PlanKeywords, LoadRequest, PlanRequest, TimeRequest, KernelRequest)
def plan(
    model: Model, *, target: str = "cortex-m4", progress: Progress = silent, **options: Unpack[PlanKeywords]
) -> PlanResult:
    """Plan `model` (a file or a Relax module) without writing anything.

    Parameters
    ----------
    model : path or IRModule
        A `.tflite`, `.onnx` or `.pt2` file, or a module as `load` returns it.
    target : str
        The core whose alignment and kernels (their scratch) are planned for, as in `compile` for the same target; or a
        microcontroller or board by name, with its core, memories and clock (`tvm-cascade targets`).
    sram : int or str, optional
        Cap on the arena, in bytes or as "64KiB"; None: the smallest arena without recomputation, within `max_time`.
    ram : int or str, optional
        Cap on all RAM of the linked image: arena, stack, data and bss. `plan` takes 256 bytes for what is not the arena.
    max_macs, max_time : float
        Limits on the plan: its multiply-accumulates, as a factor of the network's; without a cap its estimated instructions,
        as a factor of those of the fastest plan.
    stream_input, layerwise, overlap : bool
        Inputs arrive row by row; operators run one after the other; outputs may share bytes with dying inputs.
    granularity : str
        What rolling buffers count: "row", "pixel" or "auto".
    input_shapes, state : mappings, optional
        Shapes by the inputs that the file leaves open; outputs by the inputs that take, in every call, what they returned last.
    until, from_ : name or names, optional
        Tensors of the file at which the network ends, and at which it begins: operators outside are not looked at.
    hop, axis, hop_state : int, str or int, and int or str, optional
        The window slides by `hop` rows along "time", axis 1, or another by its number; a frame keeps at most `hop_state` bytes.
    stored_io, stateless : bool
        Inputs and outputs are stored integers, where the file has floats; recurrent layers of `.tflite` begin every call anew.
    database : path, optional
        File with instruction counts of kernels (`compile` with `tune` writes one), beside those that come with the package.
    rewrite : bool, optional
        Search for an equivalent network whose arena is smaller (substitutions for memory). None searches quantized networks,
        where every bit stays as it is; True float networks too, whose sums are then added in another order; False none.
    time_limit, progress : float, optional, and function
        Seconds after which searches end with the best plan so far (`limited`), None: results do not depend on the machine;
        called with a line of text at every step of long work.
    memory, objective : str or Ram, or several, optional, and str
        Memories that blocks may lie in, fastest first ("NAME=SIZE[:CYCLES_PER_BYTE]", or "NAME" of the machine's); the
        least of "time" or "bytes". None, and no cap: those of the machine that `target` names, where it has several.
    clock, watts : int or str, optional, and float, optional
        Hz of the core, or "168MHz", and what it draws then: time and energy are told too. None: those of the machine.
    ram_weights, prefetch : int or str
        Bytes of weights at most that are copied into RAM: by the first run; layer by layer, while the layer before computes.
    flash_wait : float, optional
        Cycles of a byte that is read from flash, beside the arithmetic. None: those of the machine, or none.

    Returns
    -------
    PlanResult
        The arena's bytes, its lower bound, every block in it, and the other plans; `to_text()` prints it.

    Raises
    ------
    InfeasibleError, LoadError, UnsupportedOperatorError, UsageError
        No plan fits the cap; the model cannot be read; an unknown option, or a value that an option cannot have.
    """
    return plan_model(model, request_of(target, options, PLAN_OPTIONS), progress)


@takes(CompileKeywords, LoadRequest, PlanRequest, TimeRequest, KernelRequest, EmitRequest)
def compile(
    model: Model, *, target: str, output: str | Path, progress: Progress = silent, **options: Unpack[CompileKeywords]
) -> CompileResult:
    """Plan `model` and write a project for `target` into the folder `output`, complete or not at all.

    Parameters
    ----------
    model, target : path or IRModule, and str
        As in `plan`; the target "host" makes a program for this machine.
    output : path
        The folder of the project. In one that was compiled before, files that the user edited or added are kept.
    board : str, optional
        Name of a board, or path of a board's .json; None takes the board of the target.
    emit, optimise : str, optional, and str
        Kernels as C99 ("c") or as an LLVM object ("obj"), None: the better for the target; made for "size", "speed" or
        "balanced".
    name : str, optional
        Of the network in files and functions; None takes that of the model's file.
    hook : bool
        The network calls a function of the application after every step (declared in its header).
    tune : bool
        Count the instructions of kernels without counts in the board's emulator, and add them to `database`.
    metaschedule, trials : path, optional, and int
        For the host: folder with MetaSchedule's records, and how many candidates it measures for a row kernel without one.
    report : path, optional
        An .html file, or a folder, for a report of the plan with its whole frontier.
    cache : bool
        What was compiled before is taken from `cache.cache_folder()`, what is compiled is kept there.
    progress, options
        As in `plan`.

    Returns
    -------
    CompileResult
        What `plan` returns, the files written, and the bytes of RAM and flash of the linked image.

    Raises
    ------
    InfeasibleError, MissingToolError, and as in `plan`
        No plan fits the cap, or the linked image exceeds the memory of its board; the cross compiler is not installed.
    """
    from tvm_cascade import compilation
    from tvm_cascade.boards.machines import on_board, with_core

    started, folder = time.perf_counter(), checks.path("output", output)
    asked = request_of(target, options, COMPILE_OPTIONS)
    compilation.require_free(folder)
    request = with_core(asked)[0]
    build = compilation.build_options(request)
    request = on_board(request, build.board)
    made, written = compilation.project(model, folder, request, build, progress)
    build.cache.trim()
    result = compilation.describe_project(made.told, request, folder, build, written, time.perf_counter() - started)
    if request.emit.report is not None:
        _write_report(result, model, asked)
    return result


def _write_report(result: CompileResult, model: Model, request: Request) -> None:
    """The report of a project that was written, with the commands that get its frontier's other plans."""
    assert request.emit.report is not None
    commands = commands_of(model, request, result.frontier, result.peak_bytes, result.folder)
    replace(result, commands=commands).write_report(request.emit.report)


@takes(ValidateKeywords, ValidateRequest, LoadRequest, PlanRequest, KernelRequest)
def validate(
    model: str | Path,
    *,
    data: Data,
    target: str | None = None,
    board: str | None = None,
    progress: Progress = silent,
    **options: Unpack[ValidateKeywords],
) -> ValidationReport:
    """Compile `model` and run every sample of `data` through the program and through the model's reference.

    Parameters
    ----------
    model : path
        A `.tflite`, `.onnx` or `.pt2` file.
    data : path, or arrays by name
        An .npz or arrays: one per input under the input's name, samples along the first axis and the input's shape without
        its batch of 1 behind; `labels`, optional, are the numbers of the samples' classes. Arrays in the type that the
        input stores are taken as they are, others are real values, which the input's scale quantizes. Or a folder of
        images or .wav files in folders by class (`samples.files`).
    target : str, optional
        The target to compile for; None takes the host, or with `board` that of its core.
    board : str, optional
        An emulated board to run on, by name or .json; None runs in this process.
    port : str, optional
        A serial port with the real `board` behind it, to which the project that `compile` makes with the same options has
        been flashed; "auto" is the one that is plugged in.
    range_ : pair of float, optional
        For images and sounds: the real values of black and white, of all channels or a sequence of pairs with those of each, or
        of the least and the greatest amplitude.
    timeout : float
        Seconds that a board has for a sample; 60 by default.
    progress, options
        As in `plan`, but for `clock` and `watts`.

    Returns
    -------
    ValidationReport
        Accuracy of the program and of the reference, differences of their outputs, and the confusion matrix.

    Raises
    ------
    UsageError
        Data that does not fit the network or itself, and as in `compile`.
    InfeasibleError, LoadError, MissingToolError, ToolError, UnsupportedOperatorError
        As in `compile` and `run`; the reference or Pillow is not installed.
    """
    own = ("port", "range_", "timeout")
    planning = {key: value for key, value in options.items() if key not in own}
    asked = ValidateRequest.of({**options, "target": target, "board": board})
    from tvm_cascade.validation.validate_model import validate_model

    return validate_model(checks.path("model", model), data, asked, planning, compile, progress)


@takes(QuantizeKeywords, QuantizeRequest)
def quantize(
    model: str | Path,
    *,
    data: Data,
    output: str | Path,
    input_shapes: Mapping[str, tuple[int, ...]] | None = None,
    progress: Progress = silent,
    **options: Unpack[QuantizeKeywords],
) -> QuantizeResult:
    """Write an int8 network for a float `.onnx` (ONNX Runtime's static quantizer, QDQ) or `.pt2` (torchao's PT2E).

    Activations are int8 with a zero point, weights int8 without, by channel. Sizes that the file leaves open are fixed.

    Parameters
    ----------
    model : path
        A float `.onnx` or `.pt2` file.
    data : path, or arrays by name
        Samples to calibrate on, a few hundred of every kind that occurs, as in `validate`; labels are not read.
    output : path
        The file to write, of the same suffix.
    input_shapes, progress
        As in `plan`.
    calibration : str
        How the range of an activation follows from its values: "minmax" takes all of them, "percentile" leaves out the
        most extreme, "entropy" leaves out what costs the distribution least; of `.pt2` files "minmax" or "histogram", which
        leaves out what makes the squared error least.
    percentile : float
        With "percentile": per cent of the values that a range holds.
    float_first, float_last : int
        Layers with weights that stay float, counted from the first and from the last on. Only for `.onnx`.
    range_ : pair of float, optional
        As in `validate`.

    Returns
    -------
    QuantizeResult
        The file written, how many layers became int8, and which operators stay float.

    Raises
    ------
    UsageError
        Data that does not fit the network or itself, or a network that is quantized already.
    LoadError, MissingToolError, UnsupportedOperatorError
        The model cannot be read or quantized; onnxruntime or torchao is not installed.
    """
    asked = QuantizeRequest.of_all({"output": output, **options})
    shapes = LoadRequest(input_shapes=input_shapes).input_shapes or {}
    from tvm_cascade.quantization.quantize_model import quantize_model

    return quantize_model(checks.path("model", model), data, asked, shapes, progress)
