"""Analytic latency model for operators and stages, from a `Device` description: a roofline with occupancy and
contention.

Symbols, per operator: C and M are the milliseconds of arithmetic and traffic on the whole device; u is the part of the
device the operator's threads can keep busy, `threads / (units * saturating_threads)`, at most 1.

* alone: `launch + t`, with `t = max(C, M) / u`. A kernel with few threads leaves the rest of the device idle,
  which IOS (section 1) sets out to use.
* a stage on a GPU: a fluid model. Running kernels demand `C / t` of the arithmetic and `M / t` of the bandwidth; while
  the demands fit, each runs at full pace, and otherwise all slow down by the same factor. Every further kernel costs
  bandwidth (`Device.contention`). Groups of several kernels fork and join once: `sync`.
* arithmetic on a CPU: of a 3x3 convolution in Winograd's form the work of that form (`cost.winograd`).
* a kernel alone on a CPU: on one thread if its work is small (`device.PARALLEL_WORK`), else on all threads between a
  fork and a join, with the share of their arithmetic that divided kernels reach (`Device.split`). A thread alone has
  rates of its own. u follows from that time.
* a stage on a CPU: a single group runs its kernels in turn; several groups run one per thread with single-threaded
  kernels, packed longest first, between a fork and a join. The stage takes the longest thread's time, or the sum of C
  or of M where the threads together reach the limit of the device. Traffic goes to memory if the largest footprints of
  the threads do not fit into the shared cache together.

A fluid model accounts neither for waves of thread blocks nor for cache reuse between kernels. The lower bounds hold by
construction: demands never sum above 1, so no stage is faster than the sum of C or of M.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from statistics import median
from types import MappingProxyType
from typing import NamedTuple

from tvm_cascade.cost.device import LEAST_ON_TENSOR_CORES, PARALLEL_WORK, Device
from tvm_cascade.cost.interface import Groups, OpBound, OpFeatures
from tvm_cascade.cost.packing import pack
from tvm_cascade.cost.precision import find_precision
from tvm_cascade.cost.tiles import best_microseconds, extents_of
from tvm_cascade.cost.winograd import least_share, share
from tvm_cascade.operators.table import PRODUCTS, REDUCTIONS, SPLIT_REDUCTIONS, VIEWS, efficiency

# Least values of a product's reduction for each thread: libraries split it among threads, so that a matrix-vector product
# streams its matrix with the whole device. Convolutions have enough output pixels to do without.
_SPLIT = 16
_LEAST_MS = 1e-5  # of a measured kernel without its launch


class _OnAThread(NamedTuple):
    """A kernel on one thread of a CPU, beside kernels of other threads."""

    milliseconds: float  # while footprints fit into the shared cache
    compute: float  # C
    memory: float  # M
    bytes: int  # footprint
    uncached: float  # milliseconds where they do not
    uncached_memory: float  # M there


def _ratio(whole: float, thread: float) -> float:
    """Return the ratio of the rates of all threads and of one; a thread's rate of 0 is the whole's."""
    return max(1.0, whole / thread) if thread else 1.0


class AnalyticCost:
    """Costs of operators and stages on a `Device`, in milliseconds.

    With a precision supported by the device's tensor cores, products with a reduction that fills a tensor-core step run
    at peak (`cost.precision`; bf16 as fp16, tf32 at half).

    On a `tiled` device, the time of a product follows from its tiles (`cost.tiles`).

    `measured`: milliseconds of kernels measured alone, launch included, which replace the estimates. Unmeasured kernels
    of the same kind are scaled by the median ratio between measured and expected time (by tiles for products, else by
    roofline). The fluid model stays unchanged, so unmeasured stages can be priced.
    """

    def __init__(
        self, device: Device, precision: str = "fp32", measured: Mapping[OpFeatures, float] = MappingProxyType({})
    ) -> None:
        self.device = device
        asked = find_precision(precision)
        self._multiplied = asked.multiplied
        self._product_macs_per_s = (
            device.tensor_macs_per_s * asked.rate if asked.on_tensor_cores(device.arch or "sm_90") else 0.0
        )
        self.name = f"analytic:{device.name}" + ("" if precision == "fp32" else f":{precision}")
        self.fork_ms = device.sync_us / 1e3
        self._phases: dict[OpFeatures, tuple[float, float, float]] = {}
        self._kernels: dict[int, tuple[OpFeatures, tuple[float, float, float] | None]] = {}
        self._threads: dict[OpFeatures, _OnAThread] = {}
        alone = device.thread_macs_per_s
        self._threads_at_peak = _ratio(device.macs_per_s, alone) if alone else float(device.units)
        self._measured = {op: max(t - device.launch_us / 1e3, _LEAST_MS) for op, t in measured.items()}
        if measured:
            self.name += ":kernels"
        self._as_they_run = bool(measured) or device.tiled
        self._ratios = self._ratios_of_kinds()

    @property
    def described(self) -> str:
        """Name the device's description, and say whether it is built-in or measured."""
        return f"{self.device.name}, {self.device.source}"

    def op_ms(self, op: OpFeatures) -> float:
        """Return the milliseconds of the operator alone on the device, launch included; 0 for a view."""
        if op.kind in VIEWS:
            return 0.0
        compute, memory, used = self._resources(op)
        return self.device.launch_us / 1e3 + max(compute, memory) / used

    def stage_ms(self, groups: Groups) -> float:
        """Return the milliseconds of a stage: groups at the same time, a group's operators in sequence."""
        if len(groups) == 1:
            launch = self.device.launch_us / 1e3
            kernels = (self._kernel(op) for op in groups[0])
            return sum(launch + kernel[0] for kernel in kernels if kernel is not None)
        if self.device.kind == "cpu":
            return self._cpu_stage(groups)
        return self._gpu_stage(groups)

    def merged_ms(self, merged: OpFeatures, parts: Sequence[OpFeatures]) -> float:
        """Return the milliseconds of the merged operator alone on the device."""
        return self.op_ms(merged)

    def bound(self, op: OpFeatures, mergeable: bool) -> OpBound:
        """Lower bounds from arithmetic, traffic and the time alone; the module's docstring says why they hold.

        A merged kernel reads the common input once and may use the device better, so for a mergeable operator the
        input's bytes, the launch and the occupancy on traffic are left out.
        """
        if op.kind in VIEWS:
            return OpBound((0.0, 0.0))
        compute, memory, used = self._resources(op)
        alone = self.op_ms(op)
        if mergeable and self._as_they_run:
            return OpBound((0.0, 0.0), 0.0, alone)  # of merged kernels nothing is proven
        if mergeable:
            memory = self._memory_ms(op.bytes_out + op.weight_bytes, op.bytes)
            compute *= least_share(op) / share(op) if self.device.kind == "cpu" else 1.0
            span = self._divided(op, compute, 0.0) if self.device.kind == "cpu" else compute / used
            return OpBound((compute, memory), max(span, memory), alone)
        return OpBound((compute, memory), self._span(op, compute, memory, used), alone)

    def _span(self, op: OpFeatures, compute: float, memory: float, used: float) -> float:
        if self.device.kind == "cpu":
            return max(compute, memory)
        return self.device.launch_us / 1e3 + max(compute, memory) / used

    def _resources(self, op: OpFeatures) -> tuple[float, float, float]:
        """Compute C and M in milliseconds on the whole device, and u."""
        resources = self._phases.get(op)
        if resources is None:
            roofline = self._roofline(op)
            if self._as_they_run:
                roofline = self._as_measured(op, *roofline)
            resources = self._phases[op] = roofline
        return resources

    def _roofline(self, op: OpFeatures) -> tuple[float, float, float]:
        work = op.work * share(op) if self.device.kind == "cpu" else op.work
        compute = work / (self._macs_per_s(op) * efficiency(op.kind)) * 1e3
        memory = self._memory_ms(op.bytes, op.bytes)
        used = self._used_cpu(op, compute, memory) if self.device.kind == "cpu" else self._used(op)
        return compute, memory, used

    def _as_measured(self, op: OpFeatures, compute: float, memory: float, used: float) -> tuple[float, float, float]:
        """Compute C, M and u that reproduce a kernel's measured time; reduce demands too large for a faster kernel."""
        whole = max(compute, memory)
        alone = self._measured.get(op, -1.0)
        if alone < 0.0:
            alone = self._expected(op) * self._ratios.get(op.kind, 1.0)
        fits = min(1.0, alone / whole) if whole > 0.0 else 1.0
        return compute * fits, memory * fits, whole * fits / alone if alone > 0.0 and whole > 0.0 else 1.0

    def _expected(self, op: OpFeatures) -> float:
        """Estimate the milliseconds of an unmeasured kernel, without the launch: a product's by its tiles."""
        extents = extents_of(op, self._multiplied) if self.device.kind == "gpu" else None
        if extents is not None:
            return best_microseconds(extents, self._multiplied) / 1e3
        compute, memory, used = self._roofline(op)
        return max(compute, memory) / used

    def _ratios_of_kinds(self) -> dict[str, float]:
        """Compute by kind the median ratio of measured to estimated milliseconds."""
        ratios: dict[str, list[float]] = {}
        for op, alone in self._measured.items():
            expected = self._expected(op)
            if expected > 0.0:
                ratios.setdefault(op.kind, []).append(alone / expected)
        return {kind: median(values) for kind, values in ratios.items()}

    def _macs_per_s(self, op: OpFeatures) -> float:
        tensor_cores = self._product_macs_per_s and op.kind in PRODUCTS and op.reduction >= LEAST_ON_TENSOR_CORES
        return self._product_macs_per_s if tensor_cores else self.device.macs_per_s

    def _memory_ms(self, moved: int, footprint: int) -> float:
        device = self.device
        cached = device.kind == "cpu" and footprint <= device.cache_bytes
        return moved / (device.cache_bytes_per_s if cached else device.bytes_per_s) * 1e3

    def _used(self, op: OpFeatures) -> float:
        device = self.device
        per_thread = device.outputs_per_thread if op.kind in REDUCTIONS else 1
        threads = max(32, -(-op.output_elements // per_thread))
        if op.kind in SPLIT_REDUCTIONS:
            threads *= max(1, op.reduction // _SPLIT)
        return min(1.0, threads / (device.units * device.saturating_threads))

    def _used_cpu(self, op: OpFeatures, compute: float, memory: float) -> float:
        """Compute u of a kernel alone: on one thread, or on all with a fork and a join."""
        device, whole = self.device, max(compute, memory)
        if whole <= 0.0:
            return 1.0
        if device.units == 1 or op.macs + 2 * op.bytes_in < PARALLEL_WORK:
            return whole / self._one_thread(op, compute, memory).milliseconds
        return whole / (self._divided(op, compute / device.split, memory) + device.sync_us / 1e3)

    def _divided(self, op: OpFeatures, compute: float, memory: float) -> float:
        """Return the milliseconds of a kernel divided by rows among a CPU's threads: the last round leaves some idle."""
        device, rows = self.device, max(1, op.parallel_rows)
        busy = rows / -(-rows // device.units)  # threads
        arithmetic = compute * max(1.0, self._threads_at_peak / busy)
        return max(arithmetic, memory * max(1.0, self._one_to_all(op) / busy))

    def _one_thread(self, op: OpFeatures, compute: float, memory: float) -> _OnAThread:
        """Describe a kernel on one thread of a CPU, from C and M."""
        device = self.device
        missed = max(1.0, device.cache_bytes_per_s / device.bytes_per_s) if op.bytes <= device.cache_bytes else 1.0
        arithmetic = compute * self._threads_at_peak
        alone = max(arithmetic, memory * self._one_to_all(op))
        uncached = max(alone, memory * missed * _ratio(device.bytes_per_s, device.thread_bytes_per_s))
        return _OnAThread(alone, compute, memory, op.bytes, uncached, memory * missed)

    def _one_to_all(self, op: OpFeatures) -> float:
        """Return how many times longer one thread of a CPU moves the operator's bytes than all threads."""
        device = self.device
        if op.bytes <= device.cache_bytes:
            return _ratio(device.cache_bytes_per_s, device.thread_cache_bytes_per_s)
        return _ratio(device.bytes_per_s, device.thread_bytes_per_s)

    def _cpu_stage(self, groups: Groups) -> float:
        """Price concurrent groups, one per thread, that share arithmetic, caches and memory."""
        device = self.device
        queues = [[self._on_a_thread(op) for op in group if op.kind not in VIEWS] for group in groups]
        lengths = [sum(k.milliseconds for k in queue) for queue in queues]
        lanes = pack(lengths, device.units)
        footprint = sum(max((k.bytes for g in lane for k in queues[g]), default=0) for lane in lanes)
        memory = sum(k.memory for queue in queues for k in queue)
        if footprint > device.cache_bytes:
            lengths = [sum(k.uncached for k in queue) for queue in queues]
            memory = sum(k.uncached_memory for queue in queues for k in queue)
        compute = sum(k.compute for queue in queues for k in queue)
        longest = max(sum(lengths[g] for g in lane) for lane in lanes)
        return max(longest, compute, memory) + device.sync_us / 1e3

    def _on_a_thread(self, op: OpFeatures) -> _OnAThread:
        kernel = self._threads.get(op)
        if kernel is None:
            compute, memory, _ = self._resources(op)
            kernel = self._threads[op] = self._one_thread(op, compute, memory)
        return kernel

    def _gpu_stage(self, groups: Groups) -> float:
        """Simulate the fluid model event by event: an event is the end of a launch or kernel."""
        known, queues = self._kernels, []  # by identity first: a search prices the same few operators again and again
        for group in groups:
            queue = []
            for op in group:
                held = known.get(id(op))
                kernel = held[1] if held is not None and held[0] is op else self._kernel(op)
                if kernel is not None:
                    queue.append(kernel)
            if queue:
                queues.append(queue)
        if not queues:
            return 0.0
        fork = self.fork_ms if len(queues) > 1 else 0.0
        launch, contention = self.device.launch_us / 1e3, self.device.contention
        # For each group still running: its kernels, index of the current one, milliseconds until that starts, milliseconds that
        # it has left at full speed, its demands. A search calls this hundreds of thousands of times: plain loops over lists.
        active = [[q, 0, launch, *q[0]] for q in queues]
        now = 0.0
        while active:
            arithmetic = bandwidth = 0.0
            running = 0
            for g in active:
                if g[2] <= 0.0:
                    running += 1
                    arithmetic += g[4]
                    bandwidth += g[5]
            if running > 1:
                bandwidth *= 1.0 + contention * (running - 1)
            slow = arithmetic if arithmetic > bandwidth else bandwidth
            slow = slow if slow > 1.0 else 1.0
            step = inf
            for g in active:
                until = g[2] if g[2] > 0.0 else g[3] * slow
                step = until if until < step else step
            now += step
            ended = False
            for g in active:
                if g[2] > 0.0:
                    g[2] = 0.0 if g[2] <= step else g[2] - step
                    continue
                ends = g[3] * slow <= step
                g[3] -= step / slow
                if not ends and g[3] > 1e-12:
                    continue
                g[1] += 1
                if g[1] == len(g[0]):
                    ended = True
                else:
                    g[2:] = (launch, *g[0][g[1]])
            if ended:
                active = [g for g in active if g[1] < len(g[0])]
        return now + fork

    def _kernel(self, op: OpFeatures) -> tuple[float, float, float] | None:
        """Return the milliseconds alone without launch, and the shares of arithmetic and bandwidth used; None for a
        view.
        """
        kernel = None
        if op.kind not in VIEWS:
            compute, memory, used = self._resources(op)
            alone = max(compute, memory) / used
            kernel = (alone, compute / alone, memory / alone) if alone > 0.0 else (0.0, 0.0, 0.0)
        self._kernels[id(op)] = op, kernel
        return kernel
