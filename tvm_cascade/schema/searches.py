"""The output of `allocate`, `order`, `stages` and `optimize` under `--json`."""

from __future__ import annotations

from typing import Annotated, TypedDict

from tvm_cascade.schema.units import Bytes, Count, Milliseconds, Percent, Ratio, Seconds


class Layout(TypedDict):
    """The smallest arena found for buffers."""

    peak_bytes: Annotated[Bytes, "The smallest peak that was found"]
    bound_bytes: Annotated[Bytes, "Proven lower bound of it"]
    optimal: Annotated[bool, "Whether no smaller one is possible"]
    gap_percent: Annotated[Percent, "The peak above the bound"]
    limited: Annotated[bool, "Whether a limit ended the search"]
    seconds: Annotated[Seconds, "Time taken"]


class Order(Layout):
    """The order of a network's operators with the least peak memory. Sizes count whole tensors."""

    nodes: Annotated[Count, "Operators that were ordered"]
    partitions: Annotated[Count, "Parts that were solved one by one"]
    file_order_peak_bytes: Annotated[Bytes, "Peak in the order of the file"]
    rewritten: Annotated[bool, "Whether concats are read in parts"]
    order: Annotated[list[str] | list[Count], "Operators in the order found: names; of a plain graph, numbers"]
    file_order_step_bytes: Annotated[list[Bytes], "Live memory at each operator, in the order of the file"]
    step_bytes: Annotated[list[Bytes], "Live memory at each operator, in the order found"]
    traffic_bytes: Annotated[Bytes | None, "Moved between on-chip and off-chip memory; null without --on-chip"]
    compulsory_bytes: Annotated[Bytes | None, "Of these, what moves however large the on-chip memory is"]
    states: Annotated[Count, "States of the search"]


class Stage(TypedDict):
    """Operators that run at the same time, or merged into one."""

    strategy: Annotated[str, "How they run"]
    groups: Annotated[list[list[str]], "Operators of each group, which run one after the other"]


class Timed(TypedDict):
    """Candidates that ran in turn, on this machine or on a server of a farm."""

    kept: Annotated[str, "The fastest, which is the result"]
    milliseconds: Annotated[dict[str, Milliseconds], "Least time of each"]
    speedup: Annotated[dict[str, Ratio], "Of each, against the first"]


class Tuned(TypedDict):
    """MetaSchedule's results for the kernels in the stages."""

    kernels: Annotated[Count, "Different kernels"]
    tuned: Annotated[Count, "Of these, with a recorded schedule that is faster than the default"]
    measured: Annotated[Count, "Candidates measured now"]


class Library(TypedDict):
    """cuDNN kernels measured beside ours."""

    kernels: Annotated[Count, "Different kernels that cuDNN has too"]
    chosen: Annotated[Count, "Of these, those that take less time there"]
    measured: Annotated[Count, "Measured now"]


class Emitted(TypedDict):
    """A folder for running the network with TVM alone."""

    folder: Annotated[str, "Its path"]
    files: Annotated[list[str], "What is in it"]
    architectures: Annotated[list[str], "Of its machine code: GPUs, or the processor's model"]


class _Emitted(TypedDict, total=False):
    emitted: Annotated[Emitted, "What was written, with --emit"]


class _Measured(TypedDict, total=False):
    measured: Annotated[Timed, "Schedules that ran in turn, with --cost measured or learned"]
    tuned: Annotated[Tuned, "Tuning of kernels, with --metaschedule"]
    cudnn: Annotated[Library, "Kernels of cuDNN, with --cudnn"]


class Beside(TypedDict):
    """Prices of several networks' schedules, of which the cheapest is taken."""

    chosen: Annotated[str, "'joint', 'apart' or 'after'"]
    joint_ms: Annotated[Milliseconds, "Of stages that may hold operators of several networks"]
    apart_ms: Annotated[
        Milliseconds | None, "Of every network on a thread or stream of its own; null where not allowed"
    ]
    after_ms: Annotated[Milliseconds, "Of one network after the other, each by its own best schedule"]


class _Beside(TypedDict, total=False):
    beside: Annotated[Beside, "The prices of several networks, with --beside"]


class Schedule(_Measured, _Beside):
    """The schedule of stages with the lowest latency."""

    stages: Annotated[list[Stage], "In execution order"]
    cost_ms: Annotated[Milliseconds, "Latency by the cost model"]
    bound_ms: Annotated[Milliseconds, "Lower bound of it"]
    sequential_ms: Annotated[Milliseconds, "Of one operator after the other"]
    greedy_ms: Annotated[Milliseconds, "Of the greedy schedule"]
    transitions: Annotated[Count, "Pairs of state and ending that were looked at"]
    priced: Annotated[Count, "Stages that were priced"]
    optimal: Annotated[bool, "Whether no schedule of the search space costs less"]
    gap_percent: Annotated[Percent, "The cost above the bound"]
    blocks: Annotated[Count, "Blocks that were scheduled one by one"]
    units: Annotated[Count, "Units that were scheduled as one"]
    operators: Annotated[Count, "Operators of the network"]
    cost_model: Annotated[str, "Name of the cost model"]
    description: Annotated[
        str, "Of the device that priced, built-in or measured by doctor; empty where stages were measured themselves"
    ]
    seconds: Annotated[Seconds, "Time taken"]


class Stages(Schedule, _Emitted):
    """The schedule of stages with the lowest latency."""

    limited: Annotated[bool, "Whether a limit ended the search"]


class Substitution(TypedDict):
    """A substitution of the winning sequence."""

    rule: Annotated[str, "Its name"]
    operators: Annotated[list[str], "Kinds of the operators that it matched"]
    cost: Annotated[float, "Of the graph after it"]


class Figures(TypedDict):
    """Costs of a graph."""

    operators: Annotated[Count, "Number of operators"]
    flops: Annotated[Count, "Floating-point operations"]
    traffic_bytes: Annotated[Bytes, "Moved between kernels and memory"]
    launches: Annotated[Count, "Kernels"]
    peak_bytes: Annotated[Bytes, "Largest live activations"]


class Trial(Timed):
    """Graphs that ran in turn, on this machine or on a server of a farm."""

    measurements: Annotated[Count, "Kernels measured"]
    not_measured: Annotated[dict[str, str], "By kind of operator, why it could not be"]


class RulesRead(TypedDict):
    """The fate of the rules in a file."""

    verified: Annotated[Count, "Rules that hold on random tensors, and were searched"]
    refused: Annotated[dict[str, str], "By name, why others are not used"]
    taken: Annotated[list[str], "Those in the winning sequence"]


class _Ran(TypedDict, total=False):
    measured: Annotated[Trial, "Graphs that ran in turn, with --cost measured or learned"]
    rules: Annotated[RulesRead, "Rules of a file, with --rules"]


class Substituted(_Ran):
    """An equivalent graph at lower cost."""

    cost_before: Annotated[float, "In `cost_unit`"]
    cost_after: Annotated[float, "In `cost_unit`"]
    cost_unit: Annotated[str, "Such as 'ms', 'B' or 'FLOP'; empty for a sum"]
    steps: Annotated[list[Substitution], "The winning sequence"]
    graphs_explored: Annotated[Count, "Graphs that were priced"]
    seconds: Annotated[Seconds, "Time taken"]
    complete: Annotated[bool, "Whether no budget ended the search"]
    bound: Annotated[None, "No lower bound is known"]
    before: Annotated[Figures, "Of the graph in the file"]
    after: Annotated[Figures, "Of the graph found"]
    hash_before: Annotated[str, "Canonical hash of the graph in the file"]
    hash_after: Annotated[str, "Canonical hash of the graph found"]


class Optimization(Substituted, _Emitted):
    """An equivalent graph at lower cost."""

    limited: Annotated[bool, "Whether a limit ended the search"]
