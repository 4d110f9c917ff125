"""The output of `plan` and `compile` under `--json`."""

from __future__ import annotations

from typing import Annotated, TypedDict

from tvm_cascade.schema.units import Bytes, Count, Millijoules, Milliseconds, Percent, Ratio, Seconds


class Bound(TypedDict):
    """A proven lower bound of the arena."""

    bytes: Annotated[Bytes, "No plan of this search space has a smaller arena"]
    gap_percent: Annotated[Percent | None, "The arena above it; null where work is done twice"]


class Bounds(TypedDict):
    """Lower bounds of the search spaces at 1.00x multiply-accumulates."""

    rows: Annotated[Bound, "Steps of whole rows"]
    pixels: Annotated[Bound, "Steps of pixels"]


class Estimated(TypedDict, total=False):
    """Estimated costs of an inference."""

    estimated_instructions: Annotated[Count, "Instructions of one inference"]
    estimated_traffic_bytes: Annotated[Bytes, "Read and written by kernels"]
    estimated_weight_bytes: Annotated[Bytes, "Of weights, read from flash"]
    kernel_calls: Annotated[Count, "Calls of kernels, exact"]


class Point(Estimated):
    """A plan no other beats in arena, work and instructions at once."""

    peak_bytes: Annotated[Bytes, "Its arena"]
    mac_factor: Annotated[Ratio, "Its multiply-accumulates, as a factor of the network's"]
    channel_groups: Annotated[bool, "Whether it makes channels in groups"]


class FlashPoint(TypedDict):
    """The network planned with an `--optimise` and `--code-weights`."""

    optimise: Annotated[str, "Its value: size, balanced or speed"]
    code_weights: Annotated[
        float, "Instructions at most that a byte costs which coded weights save; 0 without such weights"
    ]
    flash_bytes: Annotated[Bytes, "Weights, tables and estimated code"]
    weight_bytes: Annotated[Bytes, "Weights and tables"]
    estimated_code_bytes: Annotated[Bytes, "Estimated code"]
    peak_bytes: Annotated[Bytes, "Arena"]
    instructions: Annotated[Count, "Estimated instructions of one inference"]
    cycles: Annotated[Count, "Estimated cycles of one inference, where memory answers at once"]


class Layer(TypedDict):
    """An operator with a kernel call in the plan."""

    name: Annotated[str, "Name, as in `steps`: that of a tensor of the model's file which it computes"]
    origin: Annotated[
        list[str], "Tensors of the file whose operators it computes; empty for what the file does not have"
    ]
    cycles: Annotated[Count, "Estimated, of one inference"]
    access_cycles: Annotated[
        dict[str, Count], "Of these, by named memory, the accesses of blocks that lie there; empty without `--memory`"
    ]
    macs: Annotated[Count, "Multiply-accumulates, those that are done twice counted twice"]
    weight_bytes: Annotated[Bytes, "Weights and tables in flash"]
    storage: Annotated[str, "Form of weights in fewer bytes than int8 or float32: such as '4 bits'; empty otherwise"]
    saved_bytes: Annotated[Bytes, "Bytes that this form saves; 0 without one"]


class Region(TypedDict):
    """Operators that can cascade with each other."""

    operators: Annotated[list[str], "Names"]
    segments: Annotated[list[Count], "Indices of the segments that it was cut into"]
    live_bytes: Annotated[Bytes, "Largest live memory of these"]


class Ring(TypedDict):
    """A tensor never stored whole."""

    tensor: Annotated[str, "Name"]
    bytes: Annotated[Bytes, "Of the ring, or of the most rows that are live at once at addresses of their own"]
    whole_bytes: Annotated[Bytes, "Of the tensor"]
    rows: Annotated[Count, "Kept at a time"]
    pixels: Annotated[Count, "Kept at a time; 0 for a ring of rows"]
    columns: Annotated[Count, "Of a stripe; 0 where rows are whole"]


class Step(TypedDict):
    """An operator as the plan runs it, or the source of a streamed input."""

    segment: Annotated[Count, "Index of its segment"]
    region: Annotated[Count | None, "Index of its region; null without one"]
    live_bytes: Annotated[Bytes, "Occupied while its segment runs"]
    operator: Annotated[str, "Name"]
    kind: Annotated[str, "Kind of operator, or 'source'"]
    steps: Annotated[Count, "Number of steps"]
    by: Annotated[str, "What a step makes, such as '1 row'"]
    output: Annotated[str, "How its outputs are stored"]
    rings: Annotated[list[Ring], "Outputs that never exist whole"]


class _SometimesOfMemory(TypedDict, total=False):
    address: Annotated[Count, "Where it begins on the board; only where a board is known"]


class Memory(_SometimesOfMemory):
    """A memory named by `--memory`."""

    name: Annotated[str, "Its name"]
    capacity_bytes: Annotated[Bytes, "What the network may take of it"]
    peak_bytes: Annotated[Bytes, "What the network takes of it"]
    read_bytes: Annotated[Bytes, "Of activations, read by the kernels in one inference"]
    written_bytes: Annotated[Bytes, "The same, written"]


class PlacementBound(TypedDict):
    """How far a plan in named memories is from a bound of its placement."""

    objective: Annotated[str, "'time': cycles; 'bytes': bytes of all memories together"]
    plans: Annotated[Count, "Plans that were placed, of which the best was taken"]
    reached: Annotated[Count, "Cycles or bytes of the plan"]
    bound: Annotated[
        Count | None,
        "Proven: no placement of any of these plans takes less; null where no integer program was solved. Other plans may",
    ]
    gap_percent: Annotated[Percent | None, "What was reached, above the bound"]
    search_bound: Annotated[
        Count | None,
        "Proven: no plan of the search over cuts, steps of rows, rings and placements takes fewer cycles by the model; "
        "null by 'bytes', or where a limit struck",
    ]


class FastPoint(TypedDict):
    """A plan in named memories no other plan beats in both cycles and bytes of the fastest memory."""

    fast_bytes: Annotated[Bytes, "What it takes of the fastest memory"]
    cycles: Annotated[Count, "Estimated, of one inference"]
    milliseconds: Annotated[Milliseconds | None, "Of these cycles; null without a clock"]


class _SometimesOfBlock(TypedDict, total=False):
    memory: Annotated[str, "The memory that it lies in, where memories were named"]


class Placed(_SometimesOfBlock):
    """A block in the arena, or in a memory."""

    name: Annotated[str, "Its name"]
    offset: Annotated[Bytes, "From the start of the arena, or of its memory"]
    bytes: Annotated[Bytes, "Its size, which the arena counts"]


class Block(Placed):
    """A block in the arena, or in a memory."""

    kind: Annotated[
        str,
        "'tensor', 'kept' (columns), 'rows' (at addresses of their own), 'accumulator', 'state' (counters), 'scratch'",
    ]
    lower: Annotated[Count, "First segment of its life"]
    upper: Annotated[Count, "The segment behind its life"]
    ring: Annotated[bool, "Whether it holds a tensor in parts"]


class Rewritten(TypedDict):
    """Substitutions in the planned network."""

    steps: Annotated[list[str], "Names of the substitutions; empty where the network is unchanged"]
    before: Annotated[Ratio, "Cost before"]
    after: Annotated[Ratio, "Cost after"]
    unit: Annotated[str, "Of the costs: 'B' or 'ms'"]
    reason: Annotated[str, "Why they were made, or none"]


class Removed(TypedDict):
    """A layer planned with fewer channels than the file has: the missing channels were constant or unread."""

    layer: Annotated[str, "The tensor of the file that it computes"]
    channels: Annotated[Count, "Outputs left out; 0 where it only reads fewer inputs"]
    of: Annotated[Count, "Outputs that the file has"]
    weight_bytes: Annotated[Bytes, "Weights and biases left out"]


class FramePoint(TypedDict):
    """The bytes a frame may keep, against the work then needed."""

    state_bytes: Annotated[Bytes, "Kept from frame to frame"]
    macs: Annotated[Count, "Multiply-accumulates of a frame"]
    additions: Annotated[Count, "Additions and subtractions of a frame in means and sums of integers over all rows"]


class _SometimesOfFrame(TypedDict, total=False):
    whole_estimated_instructions: Annotated[Count, "Of the network of the whole window, planned alike; only of `plan`"]


class Frame(_SometimesOfFrame):
    """A network with a sliding window, `--hop`: a frame's work beside the whole window's."""

    hop: Annotated[Count, "New rows of a frame"]
    window_rows: Annotated[Count, "Rows of the window"]
    macs: Annotated[Count, "Multiply-accumulates of a frame, where each row that is needed is computed once"]
    least_macs: Annotated[Count, "A bound: rows that no earlier frame had, and operators that read all rows"]
    whole_macs: Annotated[Count, "Multiply-accumulates of the whole window"]
    state_bytes: Annotated[Bytes, "Kept from frame to frame"]
    additions: Annotated[Count, "Additions and subtractions of a frame in means and sums of integers over all rows"]
    running_sums: Annotated[
        dict[str, Bytes], "By mean or sum over all rows, what is kept of its int32 sum, of `state_bytes`"
    ]
    border_rows: Annotated[dict[str, Count], "By operator, rows with padding, which every frame computes anew"]
    border_macs: Annotated[Count, "Multiply-accumulates of these rows, a part of `macs`"]
    frontier: Annotated[list[FramePoint], "Fewer states for more work, by descending bytes"]


class _Sometimes(TypedDict, total=False):
    frame: Annotated[Frame, "What a frame does, under `--hop`"]
    weight_bytes: Annotated[Bytes, "Weights and tables in flash"]
    estimated_code_bytes: Annotated[Bytes, "Estimated code in flash"]
    flash_frontier: Annotated[
        list[FlashPoint],
        "Flash against cycles, by ascending flash; only of `plan --details`, for cores that images are linked for",
    ]
    rewritten: Annotated[Rewritten, "Substitutions, where they were searched"]
    states: Annotated[list[Placed], "What a network with states keeps from one call to the next"]
    memories: Annotated[list[Memory], "Memories that were named by `--memory`, in that order"]
    placement: Annotated[PlacementBound, "With these memories: a bound of the placement"]
    fast_frontier: Annotated[
        list[FastPoint], "With these memories: bytes of the first against cycles, by ascending bytes; only of `plan`"
    ]


class Plan(_Sometimes):
    """The memory plan of a network. Sizes are in bytes and count all RAM but the stack."""

    model: Annotated[str, "Name of the model's file, without its ending"]
    baseline_peak_bytes: Annotated[Bytes, "Arena of the network planned layer by layer"]
    peak_bytes: Annotated[Bytes, "Arena of the plan"]
    macs: Annotated[Count, "Multiply-accumulates that the plan executes"]
    baseline_macs: Annotated[Count, "Multiply-accumulates of the network"]
    removed: Annotated[list[Removed], "Dead channels that are left out, by layer; empty where there are none"]
    file_macs: Annotated[Count, "Multiply-accumulates of the file's network, dead channels included"]
    file_weight_bytes: Annotated[
        Bytes, "Weights, biases and other constants of the file's network, as the file has them"
    ]
    bound_bytes: Annotated[
        Bytes,
        "Proven: no schedule that makes every pixel once needs less; where work is done twice, `search_bound_bytes`",
    ]
    search_bound_bytes: Annotated[
        Bytes, "Proven: no plan of the search space has a smaller arena; where work is done twice, the least searched"
    ]
    optimal: Annotated[
        bool | None, "Whether no plan of the search space has a smaller arena; null where work is done twice"
    ]
    gap_percent: Annotated[Percent | None, "The arena above `bound_bytes`; null where work is done twice"]
    limited: Annotated[bool, "Whether a limit of time or size narrowed a search: there may be a smaller arena"]
    not_searched: Annotated[str, "What the search leaves out because of the network's size; empty where nothing"]
    bounds: Annotated[Bounds | None, "Bounds by what a step makes; null where a limit struck before"]
    estimated: Annotated[Estimated, "Estimated costs of the plan"]
    cycles: Annotated[
        Count,
        "Estimated cycles of one inference; memory answers at once, unless `--memory` or the machine says what it costs",
    ]
    milliseconds: Annotated[
        Milliseconds | None, "Of these cycles at `--clock`, or that of the machine; null without one"
    ]
    millijoules: Annotated[Millijoules | None, "Of them at `--watts`, or what the machine draws; null where unknown"]
    layers: Annotated[
        list[Layer], "Operators in execution order: their cycles add up to `cycles`, their work to `macs`"
    ]
    frontier: Annotated[list[Point], "Plans by ascending arena and descending work"]
    regions: Annotated[list[Region], "Regions of the network"]
    left_out: Annotated[dict[str, str], "By operator that is in no cascade, why"]
    steps: Annotated[list[Step], "Operators in execution order"]
    buffers: Annotated[list[Block], "Blocks of the arena"]
    concats: Annotated[str, "What reading concats in parts saves, or why it does not; empty without concats"]
    candidates: Annotated[dict[str, str], "Changes of the network that were kept, with how exact they are"]
    channel_groups: Annotated[dict[str, Count], "By projection, the number of groups that its channels are made in"]
    segments: Annotated[list[list[str]], "Names of the operators of each segment, in execution order"]
    fits: Annotated[
        bool | None,
        "Whether the board holds the network; null without a board, and where only the estimate of code exceeds its flash",
    ]
    smallest_boards: Annotated[
        list[str], "Without a board that holds the network: names of boards with this core that do, the smallest first"
    ]
    suggestions: Annotated[list[str], "Options that would save RAM, and how much"]
    ram_weight_bytes: Annotated[Bytes, "Of weights that are copied to RAM, or read into it, beside the arena"]
    seconds: Annotated[Seconds, "Time taken"]


class _SometimesOfWeights(TypedDict, total=False):
    file: Annotated[str, "The file that holds them, relative to the folder: weights.bin, or a C source"]


class StoredWeights(_SometimesOfWeights):
    """Where a network's weights are stored."""

    storage: Annotated[str, "As `--weights` says: linked, section, file or stream"]
    bytes: Annotated[Bytes, "Of the file weights.bin, or of weights and tables in the image"]
    sha256: Annotated[str, "Of weights.bin, or of weights and tables in the image"]


class Compilation(Plan):
    """The plan of a network, and the project written from the plan."""

    target: Annotated[str, "The core"]
    board: Annotated[str, "The board, or 'host'"]
    arena_bytes: Annotated[Bytes, "The arena in the image, which is `peak_bytes`"]
    ram_bytes: Annotated[
        Bytes | None, "Arena, data and bss of the image, without the stack; null where nothing is linked"
    ]
    flash_bytes: Annotated[Bytes | None, "Code, weights and tables of the image; null where nothing is linked"]
    stack_bytes: Annotated[
        Bytes | None, "Reserve for the stack, the bound of its calls, under `--ram`; null without it"
    ]
    weights: Annotated[StoredWeights, "Where the weights are stored"]
    elf: Annotated[str | None, "The image, relative to the folder; null where nothing is linked"]
    files: Annotated[list[str], "Files of the project, relative to the folder"]
