"""Options of all commands and functions, as frozen records that are checked on construction.

The command line, `tvm_cascade.plan` and `compile`, the passes and the Relax pipeline all build these records, so
defaults are the same everywhere. Properties of a machine and back end are no options: they follow from the target.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from functools import cache
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypedDict, TypeVar, get_origin, get_type_hints

from tvm_cascade import checks
from tvm_cascade.checks import Check
from tvm_cascade.errors import UsageError
from tvm_cascade.fixed_inputs import FixedInput
from tvm_cascade.machine import Ram

if TYPE_CHECKING:
    from typing_extensions import Self


OptionalPath = Annotated[Path | None, checks.optional(checks.path)]
OptionalPicture = Annotated[Path | None, checks.optional(checks.picture)]
OptionalBoard = Annotated[str | None, checks.optional(checks.name_or_path)]
OptionalCount = Annotated[int | None, checks.optional(checks.whole(0))]
LEAST_BESIDE = (
    256  # bytes of RAM that every image takes beside its arena: an exception's frame and those of a few calls
)
_NO_CAP_TIME = 1.2  # `PlanOptions.max_time` by default
TimeLimit = Annotated[float | None, checks.optional(checks.seconds)]  # seconds of searching; None: to its end


@dataclass(frozen=True, slots=True)
class Asked:
    """Base of option records: every value is checked, and converted to its type, on construction.

    Raises `UsageError` for a value not allowed for an option.
    """

    def __post_init__(self) -> None:
        for name, check in checks_of(type(self)).items():
            object.__setattr__(self, name, check(name, getattr(self, name)))

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Self:
        """Build a record from the field names in `options`; ignore the rest."""
        return cls(**{f.name: options[f.name] for f in fields(cls) if f.name in options})

    @classmethod
    def of_all(cls, options: Mapping[str, Any]) -> Self:
        """Build a record from `options`; raise `UsageError` for an option that is not a field."""
        refuse_unknown(options, tuple(f.name for f in fields(cls)))
        return cls(**options)


@cache
def checks_of(record: type[Asked]) -> Mapping[str, Check]:
    """Return the checks of a record's fields by name, from the `Annotated` types."""
    types = get_type_hints(record, include_extras=True)
    return {name: kind.__metadata__[0] for name, kind in types.items() if get_origin(kind) is Annotated}


@dataclass(frozen=True, slots=True)
class LoadRequest(Asked):
    """How a model file is read."""

    input_shapes: Annotated[Mapping[str, tuple[int, ...]] | None, checks.shapes] = None  # of inputs with symbolic sizes
    stored_io: Annotated[bool, checks.flag] = False  # float inputs and outputs as the integers that the network stores
    until: Annotated[tuple[str, ...], checks.names] = ()  # tensors of the file that become the outputs
    from_: Annotated[tuple[str, ...], checks.names] = ()  # tensors of the file that become inputs
    state: Annotated[Mapping[str, str] | None, checks.pairs] = None  # inputs that take what outputs returned before
    input_value: Annotated[tuple[FixedInput, ...], checks.input_values] = ()  # inputs that always have one value
    stateless: Annotated[bool, checks.flag] = False  # recurrent layers of .tflite files begin anew in every call
    like: Annotated[str | None, checks.optional(checks.choice("tflm"))] = (
        None  # whose rounding a .tflite file gets; None: LiteRT's
    )
    shrink: Annotated[bool, checks.flag] = True  # leave out channels of quantized layers that are dead, bit for bit
    hop: Annotated[int | None, checks.optional(checks.whole(1))] = None  # new rows a frame; None: whole windows
    axis: Annotated[str | int, checks.time_axis] = 1  # that the window slides along; "time": the first after the batch
    hop_state: Annotated[int | None, checks.optional(checks.size)] = None  # bytes kept between frames at most


@dataclass(frozen=True, slots=True)
class PlanRequest(Asked):
    """Options of planning; the defaults give the smallest arena at no extra multiply-accumulates."""

    sram: Annotated[int | str | None, checks.cap] = (
        None  # bytes of arena, or of all memories together, at most; None: as few as possible
    )
    ram: Annotated[int | str | None, checks.optional(checks.size)] = (
        None  # bytes of RAM of the linked image at most, in all
    )
    flash: Annotated[int | str | None, checks.optional(checks.size)] = (
        None  # bytes of flash of the linked image at most
    )
    max_macs: Annotated[float, checks.factor(1.0, 1e6)] = 1.0  # multiply-accumulates, as a factor of the network's
    max_time: Annotated[float | None, checks.optional(checks.factor(1.0))] = (
        None  # without a cap: instructions, as a factor of the fastest plan; None: 1.2, or the board's RAM is a cap
    )
    stream_input: Annotated[bool, checks.flag] = False  # inputs arrive row by row through a callback
    layerwise: Annotated[bool, checks.flag] = False  # the plain network, one operator after the other
    overlap: Annotated[bool, checks.flag] = True  # outputs may be written into the space of dying inputs
    granularity: Annotated[str, checks.choice("row", "pixel", "auto")] = "auto"  # of rolling buffers
    rewrite: Annotated[bool | None, checks.optional(checks.flag)] = None  # None: quantized networks, bit for bit
    time_limit: TimeLimit = None  # the best plan that is found in this time
    memory: Annotated[tuple[Ram, ...], checks.memories] = ()  # that the blocks lie in, fastest first; none: one arena
    objective: Annotated[str, checks.choice("time", "bytes")] = "time"  # what is least, in several memories
    ram_weights: Annotated[int | str, checks.size] = 0  # bytes of weights at most that are copied into RAM
    prefetch: Annotated[int | str, checks.size] = (
        0  # bytes at most of two buffers that weights are copied into by layers
    )
    flash_wait: Annotated[float | None, checks.optional(checks.number(float, 0.0, 1e6, "cycles"))] = (
        None  # cycles of a byte that is read from flash, beside the arithmetic; None: the board's file, or none
    )
    weights: Annotated[str, checks.choice("linked", "section", "file", "stream")] = (
        "linked"  # where they are stored: in the image, in a section of it, in a file bound by pointer or read by segments
    )

    def require_storable(self) -> Self:
        """Return the request; raise `UsageError` for copies of weights that contradict where these are stored."""
        if self.weights in ("file", "stream") and self.prefetch:
            raise UsageError(
                "--prefetch copies linked weights; --weights stream does the same with a file: leave one out"
            )
        if self.weights == "stream" and self.ram_weights:
            raise UsageError("--weights stream reads all weights into buffers of its own: leave --ram-weights out")
        return self

    def __post_init__(self) -> None:
        """Check every value; `sram="min"` is the smallest arena on a named board too, whose RAM is then no cap."""
        if self.sram == "min" and self.max_time is None:
            object.__setattr__(self, "max_time", _NO_CAP_TIME)
        Asked.__post_init__(self)

    def within_ram(self, beside: int = LEAST_BESIDE) -> Self:
        """Return the request with a cap on the arena that leaves `beside` bytes of `ram` to the rest of the image."""
        if self.ram is None:
            return self
        cap = max(0, int(self.ram) - beside)
        return replace(self, sram=cap if self.sram is None else min(cap, int(self.sram)))

    def within_board(self, usable: int) -> Self:
        """Return the request with a cap of `usable` bytes, a board's RAM, unless the request has a limit already."""
        asked = self.sram, self.ram, self.max_time, *self.memory
        own = any(one is not None for one in asked) or self.layerwise or self.ram_weights or self.prefetch
        return self if own else replace(self, sram=usable)


@dataclass(frozen=True, slots=True)
class TimeRequest(Asked):
    """Options for reporting a plan's time; no plan depends on them."""

    clock: Annotated[int | str | None, checks.optional(checks.frequency)] = (
        None  # of the core, in Hz; None: that of the board's file, or cycles only
    )
    watts: Annotated[float | None, checks.optional(checks.number(float, 0.0, 1e6, "watts", above=True))] = (
        None  # that the core draws at the clock; None: the board's file at its own clock, or not known
    )


@dataclass(frozen=True, slots=True)
class KernelRequest(Asked):
    """How the kernels of operators are chosen."""

    database: OptionalPath = None  # counts on top of those of the package
    tune: Annotated[bool, checks.flag] = False  # count kernels of unknown shapes in the emulator
    metaschedule: OptionalPath = None  # folder of records, for the host
    trials: Annotated[int, checks.whole(0)] = 32  # candidates that MetaSchedule measures for a kernel without records
    code_weights: Annotated[float, checks.number(float, 0.0, 1e9, "instructions")] = 0.0  # that a byte of weights may
    # cost which a code saves; 0: no weights are coded


_hertz = checks.number(float, 0.0, 1e6, "Hz", above=True)
_share = checks.number(float, 0.0, 1.0, "a part of 1")


@dataclass(frozen=True, slots=True)
class FrontEndRequest(Asked):
    """An audio front end in integers; the defaults are those of TensorFlow Lite Micro's micro_speech."""

    name: Annotated[str, checks.text] = "audio"  # a C identifier, the prefix of every symbol
    sample_rate: Annotated[int, checks.whole(1000, 96000)] = 16000  # of the sound, in Hz
    window_ms: Annotated[int, checks.whole(1, 200)] = 30  # that a row of features looks at
    step_ms: Annotated[int, checks.whole(1, 200)] = 20  # from one row to the next
    channels: Annotated[int, checks.whole(1, 256)] = 40  # features of a row
    low_hz: Annotated[float, _hertz] = 125.0  # where the first filter begins
    high_hz: Annotated[float, _hertz] = 7500.0  # where the last one ends
    smoothing_bits: Annotated[int, checks.whole(0, 14)] = 10  # more bits of the noise estimate
    even_smoothing: Annotated[float, _share] = 0.025  # what a row adds to the noise estimate of even channels
    odd_smoothing: Annotated[float, _share] = 0.06  # and of odd ones
    least_signal: Annotated[float, _share] = 0.05  # of a channel that is left when its noise is taken off
    gain: Annotated[bool, checks.flag] = True  # divide channels by a power of their noise (PCAN)
    gain_strength: Annotated[float, _share] = 0.95  # that power
    gain_offset: Annotated[float, checks.number(float, 1.0, 1e6)] = 80.0  # added to the noise
    gain_bits: Annotated[int, checks.whole(16, 30)] = 21  # fraction bits of the gain
    log: Annotated[bool, checks.flag] = True  # logarithms
    log_shift: Annotated[int, checks.whole(0, 8)] = 6  # their fraction bits
    span: Annotated[int, checks.whole(1, 65535)] = 666  # features from 0 to here become -128 to 127


@dataclass(frozen=True, slots=True)
class EmitRequest(Asked):
    """Options for the project written for a plan."""

    board: OptionalBoard = None  # by name or .json; None: the target's own
    emit: Annotated[str | None, checks.optional(checks.choice("c", "obj"))] = None  # None: the better for the target
    optimise: Annotated[str, checks.choice("size", "speed", "balanced")] = "balanced"
    name: Annotated[str | None, checks.optional(checks.text)] = None  # of the network; None: that of the model's file
    require: Annotated[tuple[str, ...], checks.several("optimized", "no-heap", "no-float")] = ()  # refuse generic
    # kernels of layers with multiply-accumulates; functions of a heap; computing on floats, in software or hardware
    hook: Annotated[bool, checks.flag] = False  # a function of the application's is called after every step
    report: Annotated[Path | None, checks.optional(checks.page_or_folder)] = None  # an .html file or a folder
    link: Annotated[bool, checks.flag] = True  # the image; False: write the project alone
    cache: Annotated[bool, checks.flag] = (
        True  # take what was compiled before from the user's cache folder, and keep it there
    )


@dataclass(frozen=True, slots=True)
class Request(Asked):
    """All options of a compilation."""

    target: Annotated[str, checks.text] = "cortex-m4"
    load: LoadRequest = LoadRequest()
    plan: PlanRequest = PlanRequest()
    kernels: KernelRequest = KernelRequest()
    emit: EmitRequest = EmitRequest()
    time: TimeRequest = TimeRequest()


@dataclass(frozen=True, slots=True)
class SearchRequest(Asked):
    """Common options of `stages` and `optimize`."""

    target: Annotated[str, checks.text] = "cuda"
    device: Annotated[str | None, checks.optional(checks.text)] = None  # description; None: the target's generic one
    output: OptionalPath = None  # save what was found here
    picture: OptionalPicture = None  # draw it here
    details: Annotated[bool, checks.flag] = False  # the text has every stage or substitution, not a screen of them
    database: OptionalPath = None  # keeps measurements; None: in memory
    time_limit: TimeLimit = None  # the best result that is found in this time
    emit: OptionalPath = None  # write a folder that runs with TVM alone here
    precision: Annotated[str, checks.choice("fp32", "fp16", "bf16", "tf32")] = (
        "fp32"  # of tensors between kernels, and of products
    )
    arch: Annotated[tuple[str, ...], checks.names] = ()  # GPU architectures of the folder's machine code, such as sm_90
    fast_math: Annotated[bool, checks.flag] = False  # less exact arithmetic of that code
    threads: Annotated[int | None, checks.optional(checks.whole(1))] = (
        None  # of a processor; None: the device's, or TVM's
    )
    streams: Annotated[int | None, checks.optional(checks.whole(1))] = (
        None  # of a GPU; None: as many as groups in a stage
    )
    gpu: Annotated[int, checks.whole(0)] = 0  # number of the GPU that measures, and that runs the folder
    winograd: Annotated[int | None, checks.optional(checks.whole(0, 4))] = (
        None  # of a processor: largest tiles of 3x3 convolutions in Winograd's form; 0: none has it; None: 4
    )
    tracker: Annotated[str | None, checks.optional(checks.address)] = None  # HOST:PORT; measure on its servers
    key: Annotated[str | None, checks.optional(checks.text)] = None  # of those servers
    parallel: Annotated[int, checks.whole(1, 1 << 10)] = 1  # servers that are used at the same time
    cost: Annotated[str, checks.text] = "latency"  # what is minimized; `stages` has names of its own

    @property
    def measures(self) -> bool:
        """Return True if costs are measured."""
        return self.cost.partition(",")[0].strip() in ("measured", "learned")


@dataclass(frozen=True, slots=True)
class StagesRequest(SearchRequest):
    """Options for `stages`, the search for a stage schedule (`measured.search`)."""

    batch: Annotated[int | None, checks.optional(checks.whole(1, 1 << 16))] = None
    unit: Annotated[str, checks.choice("op", "fused", "sepconv", "cell")] = "fused"  # what is scheduled as one
    variant: Annotated[str, checks.choice("sequential", "greedy", "merge", "parallel", "both")] = "both"
    r: OptionalCount = 3  # operators in a group at most; 0 or None: any number
    s: OptionalCount = 8  # groups in a stage at most; 0 or None: any number
    cost: Annotated[str, checks.choice("analytic", "measured", "learned")] = "analytic"
    load: OptionalPath = None  # price this schedule instead of searching
    metaschedule: OptionalPath = None  # folder with records of tuned kernels
    batches: Annotated[tuple[int, ...] | None, checks.optional(checks.batches)] = (
        None  # that the folder takes, ascending; None: the network's own
    )
    lengths: Annotated[tuple[int, ...] | None, checks.optional(checks.batches)] = (
        None  # of the sizes that the file leaves open behind the batch, ascending: a program in the folder for each
    )
    cudnn: Annotated[bool, checks.flag] = False  # measure cuDNN's kernels too; the records tell where they are faster
    trials: Annotated[int, checks.whole(0)] = 32  # candidates measured for a kernel without records


@dataclass(frozen=True, slots=True)
class OptimizeRequest(SearchRequest):
    """Options of `optimize`, the search for an equivalent graph (`optimizing.module`)."""

    cost: Annotated[str, checks.text] = "latency"
    alpha: Annotated[float, checks.factor(1.0)] = 1.05  # how much worse a graph may get on the way
    budget: Annotated[int, checks.whole(1)] = 2000  # graphs priced, at most, per part
    rules: OptionalPath = None  # a file of TASO's substitutions, searched beside ours


@dataclass(frozen=True, slots=True)
class RunRequest(Asked):
    """How a compiled project is run."""

    board: OptionalBoard = None  # None: the board it was compiled for
    port: Annotated[str | None, checks.optional(checks.text)] = None  # a serial port, with the real board behind it
    timeout: Annotated[float | None, checks.optional(checks.seconds)] = None  # seconds
    outputs: OptionalPath = None  # an .npz to write
    check: OptionalPath = None  # a model file whose reference kernels run too
    frames: OptionalPath = None  # an .npz with the inputs of a sequence of calls
    by_layer: Annotated[bool, checks.flag] = False  # compare every tensor with the reference, too


@dataclass(frozen=True, slots=True)
class ValidateRequest(Asked):
    """How a network is validated on a data set."""

    target: Annotated[str | None, checks.optional(checks.text)] = None  # None: host, or that of `board`
    board: OptionalBoard = None  # None: this machine
    port: Annotated[str | None, checks.optional(checks.text)] = None  # a serial port, with the real `board` behind it
    range_: Annotated[checks.Spans | None, checks.optional(checks.spans)] = (
        None  # of images (one, or by channel) and sounds
    )
    timeout: Annotated[float, checks.seconds] = 60.0  # seconds, of a sample on a board
    by_layer: OptionalPath = None  # the float file that a quantized one was made from


@dataclass(frozen=True, slots=True)
class QuantizeRequest(Asked):
    """How a float network is quantized."""

    output: Annotated[Path, checks.path]
    calibration: Annotated[str, checks.choice("minmax", "entropy", "percentile", "histogram")] = "minmax"  # of ranges
    percentile: Annotated[float, checks.percent] = 99.999  # of the values of an activation that its range holds
    float_first: Annotated[int, checks.whole(0)] = 0  # of the layers with weights, from the first on: stay float
    float_last: Annotated[int, checks.whole(0)] = 0  # the same from the last on
    weight_bits: Annotated[int, checks.whole(4, 8)] = 8  # 4: in the layers that bear it on the data; 8: everywhere
    max_drop: Annotated[float, checks.percent] = 1.0  # of accuracy or agreement by four bits, in percentage points
    range_: Annotated[checks.Spans | None, checks.optional(checks.spans)] = (
        None  # of images (one, or by channel) and sounds
    )


@dataclass(frozen=True, slots=True)
class OrderRequest(Asked):
    """Options for `order`, the search for an operator order."""

    rewrite: Annotated[bool, checks.flag] = False  # convolutions read the parts of concats where they lie
    on_chip: Annotated[int | str | None, checks.optional(checks.size)] = None  # bytes; also count what moves off chip
    time_limit: TimeLimit = None  # the best order that is found in this time


@dataclass(frozen=True, slots=True)
class AllocateRequest(Asked):
    """Options for `allocate`, the search for buffer offsets."""

    capacity: Annotated[int | str | None, checks.optional(checks.size)] = None  # bytes; stop at the first layout within
    time_limit: TimeLimit = None  # the best layout that is found in this time


_PLANNING = (LoadRequest, PlanRequest, TimeRequest)
PLAN_OPTIONS: tuple[str, ...] = (*(f.name for part in _PLANNING for f in fields(part)), "code_weights", "database")
COMPILE_OPTIONS: tuple[str, ...] = tuple(
    f.name for part in (*_PLANNING, KernelRequest, EmitRequest) for f in fields(part)
)


def request_of(target: str, options: Mapping[str, Any], known: Collection[str] = COMPILE_OPTIONS) -> Request:
    """Build a `Request` from options by name.

    Raises `UsageError` for an option not in `known`, and for a value not allowed for an option.
    """
    refuse_unknown(options, known)
    return Request(
        target,
        LoadRequest.of(options),
        PlanRequest.of(options).require_storable(),
        KernelRequest.of(options),
        EmitRequest.of(options),
        TimeRequest.of(options),
    )


def refuse_unknown(options: Collection[str], known: Collection[str]) -> None:
    """Raise `UsageError` for an option not in `known`."""
    for name in options:
        if name not in known:
            close = get_close_matches(name, known, 1)
            hint = f"did you mean {close[0]}?" if close else f"known: {', '.join(known)}"
            raise UsageError(f"unknown option {name}: {hint}")


PathOrText = str | PathLike[str]
Function = TypeVar("Function", bound=Callable[..., Any])


class PlanningKeywords(TypedDict, total=False):
    """Keywords of planning, which `plan`, `compile` and `validate` take."""

    sram: int | str | None
    ram: int | str | None
    flash: int | str | None
    max_macs: float
    max_time: float | None
    stream_input: bool
    layerwise: bool
    overlap: bool
    granularity: str
    rewrite: bool | None
    time_limit: float | None
    memory: str | Ram | Sequence[str | Ram]
    objective: str
    ram_weights: int | str
    prefetch: int | str
    flash_wait: float | None
    weights: str
    input_shapes: Mapping[str, tuple[int, ...]] | None
    stored_io: bool
    until: str | Sequence[str]
    from_: str | Sequence[str]
    state: Mapping[str, str] | None
    input_value: Mapping[str, Any] | None
    stateless: bool
    like: str | None
    shrink: bool
    hop: int | None
    axis: str | int
    hop_state: int | str | None
    code_weights: float
    database: PathOrText | None


class ValidateKeywords(PlanningKeywords, total=False):
    """Keywords of `validate` other than the model, the data, the target and the board."""

    port: str | None
    range_: tuple[float, float] | Sequence[tuple[float, float]] | None
    timeout: float
    by_layer: str | Path | None


class PlanKeywords(PlanningKeywords, total=False):
    """Keywords for `plan` besides the model and the target."""

    clock: int | str | None
    watts: float | None


class CompileKeywords(PlanKeywords, total=False):
    """Keywords for `compile` besides the model, the target and the output."""

    board: str | None
    emit: str | None
    optimise: str
    require: str | Sequence[str] | None
    name: str | None
    hook: bool
    link: bool
    tune: bool
    metaschedule: PathOrText | None
    trials: int
    report: PathOrText | None
    cache: bool


class SearchKeywords(TypedDict, total=False):
    """Keywords common to `stages` and `optimize`, besides the model and the shapes."""

    target: str
    cost: str
    device: str | None
    output: PathOrText | None
    picture: PathOrText | None
    details: bool
    database: PathOrText | None
    tracker: str | None
    key: str | None
    parallel: int
    time_limit: float | None
    emit: PathOrText | None
    precision: str
    arch: str | Sequence[str]
    fast_math: bool
    threads: int | None
    streams: int | None
    gpu: int
    winograd: int | None


class StagesKeywords(SearchKeywords, total=False):
    """Keywords of `stages`."""

    batch: int | None
    unit: str
    variant: str
    r: int | None
    s: int | None
    load: PathOrText | None
    metaschedule: PathOrText | None
    trials: int
    batches: str | Sequence[int] | None
    lengths: str | Sequence[int] | None
    cudnn: bool


class OptimizeKeywords(SearchKeywords, total=False):
    """Keywords of `optimize`."""

    alpha: float
    budget: int
    rules: PathOrText | None


class QuantizeKeywords(TypedDict, total=False):
    """Keywords of `quantize` other than the model, the data, the output and the shapes."""

    calibration: str
    percentile: float
    float_first: int
    float_last: int
    weight_bits: int
    max_drop: float
    range_: tuple[float, float] | Sequence[tuple[float, float]] | None


class RunKeywords(TypedDict, total=False):
    """Keywords for `run` besides the folder and the inputs."""

    board: str | None
    frames: PathOrText | None
    outputs: PathOrText | None
    check: PathOrText | None
    port: str | None
    timeout: float | None
    by_layer: bool


class FrontEndKeywords(TypedDict, total=False):
    """Keywords for `front_end` besides the folder."""

    name: str
    sample_rate: int
    window_ms: int
    step_ms: int
    channels: int
    low_hz: float
    high_hz: float
    smoothing_bits: int
    even_smoothing: float
    odd_smoothing: float
    least_signal: float
    gain: bool
    gain_strength: float
    gain_offset: float
    gain_bits: int
    log: bool
    log_shift: int
    span: int


def takes(keywords: type, *records: type[Asked]) -> Callable[[Function], Function]:
    """List `keywords`, with the records' defaults, in the decorated function's signature in place of `**options`."""
    defaults = {f.name: f.default for record in records for f in fields(record)}
    types = get_type_hints(keywords)
    spelled = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=defaults[name], annotation=types[name])
        for name in types
    ]

    def decorate(function: Function) -> Function:
        signature = inspect.signature(function)
        own = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
        function.__signature__ = signature.replace(parameters=[*own, *spelled])  # type: ignore[attr-defined]
        return function

    return decorate
