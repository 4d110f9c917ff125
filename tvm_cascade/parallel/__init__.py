"""Inter-operator scheduling, IOS (MLSys 2021): which operators run concurrently, or merged into one.

`search` is the dynamic program (Algorithm 1) for one block, over the states and endings of `lattice`. `scheduler` cuts
a network into `units` and `blocks` and joins the schedules of the blocks. `merging` decides which operators a stage may
merge; `substitution.rules_conv` merges convolutions as a rewrite of the graph instead.
"""

from __future__ import annotations

from tvm_cascade.parallel.authors_file import load_authors_file
from tvm_cascade.parallel.batch import with_batch
from tvm_cascade.parallel.problem import CONCURRENT, MERGE, UNITS, VARIANTS, Block, Options, Schedule, Stage
from tvm_cascade.parallel.report import run_stages, stages_report
from tvm_cascade.parallel.schedule_file import load_schedule, save_schedule
from tvm_cascade.parallel.scheduler import NetworkSchedule, schedule
from tvm_cascade.parallel.validate import validate_schedule

__all__ = [
    "CONCURRENT",
    "MERGE",
    "UNITS",
    "VARIANTS",
    "Block",
    "NetworkSchedule",
    "Options",
    "Schedule",
    "Stage",
    "load_authors_file",
    "load_schedule",
    "run_stages",
    "save_schedule",
    "schedule",
    "stages_report",
    "validate_schedule",
    "with_batch",
]
