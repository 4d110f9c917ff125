"""The output of `run`, `export`, `bundle`, `flash` and `doctor` under `--json`."""

from __future__ import annotations

from typing import Annotated, TypedDict

from tvm_cascade.schema.units import Bytes, Count, Millijoules, Milliseconds, Ratio


class Touched(TypedDict):
    """A memory used by the network."""

    name: Annotated[str, "Its name"]
    high_water_bytes: Annotated[Bytes, "What was touched of it"]


class LayerComparison(TypedDict):
    """Comparison of a tensor with the reference."""

    tensor: Annotated[str, "Name in the model's file"]
    operator: Annotated[str, "Kind of the operator that writes it"]
    match: Annotated[
        bool | None, "Whether it equals the reference's; null if roundings alone move it, or it exceeds the board"
    ]
    max_abs_diff: Annotated[float | None, "Largest difference; null if it was not compared"]
    differing: Annotated[Count, "Elements that differ"]
    elements: Annotated[Count, "Its elements"]


class _SometimesOfRun(TypedDict, total=False):
    layers: Annotated[list[LayerComparison], "With --by-layer: every tensor, in execution order"]
    first_difference: Annotated[str | None, "With --by-layer: the first tensor that differs; null without one"]
    memories: Annotated[list[Touched], "Memories that the network was placed in by `--memory`"]
    frames: Annotated[Count, "Calls of the sequence of `--frames`; work is that of all of them"]
    frame_macs: Annotated[Count, "The most multiply-accumulates of one of these calls"]


class Run(_SometimesOfRun):
    """Measurements during an inference, and the output comparison."""

    board: Annotated[str, "Where it ran: a board, a port or 'host'"]
    arena_bytes: Annotated[Bytes, "The arena"]
    arena_high_water_bytes: Annotated[Bytes, "Of the arena, what was touched"]
    stack_bytes: Annotated[Bytes | None, "Deepest stack; null on the host"]
    executed_macs: Annotated[Count, "Multiply-accumulates executed"]
    planned_macs: Annotated[Count, "Multiply-accumulates of the plan"]
    instructions: Annotated[Count | None, "Instructions of the inference; null without a counter"]
    cycles: Annotated[Count | None, "Estimated by the plan; null in a folder of an older version"]
    milliseconds: Annotated[Milliseconds | None, "Of these cycles; null where no clock was given"]
    millijoules: Annotated[Millijoules | None, "Of them; null where nobody knows what the core draws"]
    equals_host: Annotated[
        bool | None,
        "Whether the outputs are those of the run in this process; null where weights.bin was exchanged since `compile`",
    ]
    match: Annotated[
        bool | None,
        "Whether the outputs are those of the reference; null without --check, and where nothing can be told",
    ]
    verdict: Annotated[str, "How the outputs compare with the reference, in words; empty without --check"]
    max_abs_diff: Annotated[float | None, "Largest difference from the reference; null without --check"]
    tolerance: Annotated[
        float | None, "Difference that single roundings make, where outputs needed it; null where they did not"
    ]
    reference: Annotated[str, "What computed the reference; empty without --check"]
    reference_note: Annotated[
        str,
        "Why it is not the preferred one, which of its defects were stepped around, what to doubt; empty where nothing",
    ]


class Export(TypedDict):
    """A written package."""

    kind: Annotated[str, "Its kind, such as 'zephyr'"]
    output: Annotated[str, "Its folder"]
    files: Annotated[list[str], "Its files, relative to the folder"]


class FrontEnd(TypedDict):
    """A written audio front end."""

    name: Annotated[str, "What its symbols begin with"]
    output: Annotated[str, "Its folder"]
    files: Annotated[list[str], "Its files, relative to the folder"]
    ram_bytes: Annotated[Bytes, "State and scratch, without the stack"]
    table_bytes: Annotated[Bytes, "Tables in flash"]
    step_samples: Annotated[Count, "Samples of a push"]
    first_row: Annotated[Count, "Pushes until there is a row"]


class Bundle(TypedDict):
    """An image of several networks."""

    networks: Annotated[list[str], "Names"]
    board: Annotated[str, "The board"]
    arena_bytes: Annotated[Bytes, "The arena that they share"]
    separate_bytes: Annotated[Bytes, "Sum of the arenas, if each had its own"]
    ram_bytes: Annotated[Bytes, "Arena, data and bss of the image, without the stack"]
    flash_bytes: Annotated[Bytes, "Code, weights and tables of the image"]
    elf: Annotated[str, "The image, relative to the folder"]
    shared_weight_bytes: Annotated[Bytes, "Weights that several networks have in common, stored once"]
    saved_flash_bytes: Annotated[Bytes, "Flash saved by sharing them"]
    kept_bytes: Annotated[Bytes, "States of networks, and what is pushed, beside the arena, a part of `ram_bytes`"]


class Flashed(TypedDict):
    """An image written to a board."""

    elf: Annotated[str, "The image"]
    tool: Annotated[str, "The program that wrote it"]


class Installed(TypedDict):
    """A package, program or library."""

    name: Annotated[str, "Its name"]
    found: Annotated[bool, "Whether it is installed"]
    version: Annotated[str, "Its version; empty where unknown"]
    needed_for: Annotated[str, "What it is for"]
    required: Annotated[bool, "Whether nothing works without it"]
    remedy: Annotated[str, "How to get it; empty where nothing is to be done"]


class LeftFloat(TypedDict):
    """A float operator in a quantized network."""

    operator: Annotated[str, "Its name"]
    reason: Annotated[str, "Why it does"]
    bytes: Annotated[Bytes, "Of the floats that it writes"]
    macs: Annotated[Count, "Multiply-accumulates on floats"]
    flash_bytes: Annotated[Bytes, "Of float constants that it reads"]


class ProcessorJson(TypedDict):
    """The measured description of a machine's CPU. `thread_`: one thread, with all others idle."""

    model: Annotated[str, "As the operating system names it"]
    architecture: Annotated[str, "As LLVM names it"]
    threads: Annotated[Count, "Measured together: one per core"]
    vector_bits: Annotated[Count, "Of its vector registers"]
    thread_macs_per_s: Annotated[float, "Float32 multiply-accumulates per second at peak"]
    macs_per_s: Annotated[float, "Of all threads together"]
    split: Annotated[Ratio, "Share of these that a kernel divided among all threads reaches"]
    thread_bytes_per_s: Annotated[float, "From and to memory"]
    bytes_per_s: Annotated[float, "Of all threads together"]
    cache_bytes: Annotated[Bytes, "Of the shared cache; 0 where traffic gains from none"]
    thread_cache_bytes_per_s: Annotated[float, "From and to that cache"]
    cache_bytes_per_s: Annotated[float, "Of all threads together"]
    launch_us: Annotated[float, "Microseconds from the end of a kernel to the start of the next"]
    sync_us: Annotated[float, "Microseconds of a parallel region's fork and join"]
    measured: Annotated[str, "Date of the measurement"]


class Diagnosis(TypedDict):
    """The installation, and a model's supported operators."""

    ok: Annotated[bool, "Whether everything required is installed, and the model, if any, has no unsupported operator"]
    checks: Annotated[list[Installed], "Packages, programs and libraries"]
    model: Annotated[str | None, "The model's file; null without --model"]
    unread: Annotated[bool, "Whether the model was not read, because something required is missing"]
    unsupported_operators: Annotated[
        list[str] | None, "Operators that cannot be imported; null where the model was not read"
    ]
    remedy: Annotated[str, "What to do about unsupported operators; empty where nothing is to be done"]
    left_float: Annotated[list[LeftFloat] | None, "Operators that stay float; null where the model was not read"]
    float_network: Annotated[bool, "Whether the network is float throughout"]
    processor: Annotated[
        ProcessorJson | None, "This machine's CPU, as doctor --measure has kept it; null where it has not run"
    ]
