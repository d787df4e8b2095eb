# Made by scripts/generate_docs.py from the analyses; `make docs` writes it anew.

from typing import Literal

import polars as pl

from stepscope.core.trace import Run, Trace

class AnalysisMethods:
    """The analyses of a trace, or of all traces of a run, as methods that return frames."""

    def __init__(self, source: Trace | Run) -> None: ...
    def __dir__(self) -> list[str]: ...
    def steps(self) -> pl.DataFrame:
        """Where each step's time went, a row per step and rank."""
    def cycles(
        self,
        *,
        anchor: str = 'auto',
    ) -> pl.DataFrame:
        """The cycles of the program's main loop: marked steps, or what repeats in the events."""
    def attribution(
        self,
        *,
        anchor: str = 'auto',
    ) -> pl.DataFrame:
        """What each function took of each cycle, and how each resource was used meanwhile."""
    def step_breakdown(
        self,
        *,
        by: Literal['step', 'part'] = 'step',
        communication: str = 'any',
    ) -> pl.DataFrame:
        """How each step divides: kernels, copies, communication, runtime calls, data loading, operators, the rest."""
    def timeline(
        self,
        *,
        by: Literal['rank', 'device', 'stream', 'step', 'time', 'stream-time'] = 'rank',
        linked_only: bool = False,
        communication: str = 'any',
        bucket_ns: int | None = None,
    ) -> pl.DataFrame:
        """How the device's time divides: computation, exposed communication and copies, idle."""
    def operators(
        self,
        *,
        by: Literal['name', 'shape', 'stack'] = 'name',
    ) -> pl.DataFrame:
        """What each framework operator cost, on the host and on the device."""
    def modules(
        self,
        *,
        by: Literal['module', 'class', 'lightning'] = 'module',
    ) -> pl.DataFrame:
        """What each nn.Module cost on host and device, forward and backward, as a tree."""
    def call_stacks(
        self,
        *,
        of: Literal['host', 'device'] | None = None,
        step: int | None = None,
        begin_ns: int | None = None,
        end_ns: int | None = None,
        inverted: bool = False,
    ) -> pl.DataFrame:
        """Where time went by call stack, of the host or of the device, for a flame graph."""
    def kernels(
        self,
        *,
        by: Literal['name', 'type', 'op', 'module', 'launch', 'stream'] = 'name',
        include: Literal['kernel', 'device'] = 'kernel',
        linked_only: bool = False,
        communication: str = 'any',
    ) -> pl.DataFrame:
        """What each device kernel cost, how it was launched and by which operator."""
    def device_utilisation(
        self,
        *,
        by: Literal['device', 'step', 'time'] = 'device',
        bucket_ns: int | None = None,
    ) -> pl.DataFrame:
        """How well kernels use each device: busy, est. SM efficiency, est. occupancy, tensor cores; also over time."""
    def kernel_classes(
        self,
        *,
        by: Literal['class', 'rule', 'name', 'gemm'] = 'class',
    ) -> pl.DataFrame:
        """What kinds of work kernels do, by which part of their names, and how well they use the device."""
    def kernel_mix(
        self,
        *,
        top: int = 30,
        merge_gemm: bool = True,
    ) -> pl.DataFrame:
        """Each kernel's share of time, with all matrix products as one row: how few names make up most of it."""
    def amdahl(
        self,
        *,
        by: Literal['name', 'class', 'op'] = 'name',
        top: int = 10,
        merge_gemm: bool = False,
    ) -> pl.DataFrame:
        """What the program would gain if the most expensive kernels were twice or ten times as fast."""
    def utilisation(
        self,
        *,
        by: Literal['all', 'class', 'name', 'curve', 'time'] = 'all',
        low: float = 0.1,
        stretches: int = 200,
    ) -> pl.DataFrame:
        """How busy kernels kept tensor cores, memory and multiprocessors, weighted by time."""
    def kernel_bins(
        self,
        *,
        states: Literal['auto', 'casio', 'tensor-dram'] = 'auto',
    ) -> pl.DataFrame:
        """Share of time in each state of threads, multiprocessors and memory."""
    def kernel_runs(
        self,
        *,
        by: Literal['all', 'state', 'run'] = 'all',
        states: Literal['auto', 'casio', 'tensor-dram'] = 'auto',
        window: int = 19,
    ) -> pl.DataFrame:
        """How many launches in succession are in the same state."""
    def kernel_similarity(
        self,
        *,
        method: Literal['fixed', 'casio'] = 'fixed',
        distance: float = 0.05,
    ) -> pl.DataFrame:
        """Which few launches stand for all others, by how they use the hardware."""
    def fusion(
        self,
        *,
        by: Literal['sequence', 'run', 'all'] = 'sequence',
        min_kernels: int = 2,
        max_gap_ns: int = 1000000,
        hardware: str | None = None,
        accelerator: str | None = None,
    ) -> pl.DataFrame:
        """Runs of memory-bound kernels that one kernel could replace, and what their memory traffic costs."""
    def roofline(
        self,
        *,
        by: Literal['auto', 'op', 'args', 'kernel'] = 'auto',
        hardware: str | None = None,
        accelerator: str | None = None,
    ) -> pl.DataFrame:
        """How close operators and kernels come to the device's peaks."""
    def mfu(
        self,
        *,
        by: Literal['step', 'all', 'precision'] = 'step',
        hardware: str | None = None,
        accelerator: str | None = None,
    ) -> pl.DataFrame:
        """How much of the device's peak FLOP/s each step's matrix products use."""
    def batches(
        self,
        *,
        by: Literal['batch', 'kind', 'law'] = 'batch',
        hardware: str | None = None,
        accelerator: str | None = None,
    ) -> pl.DataFrame:
        """Latency, tokens a second and use of the device of each batch of a server."""
    def requests(
        self,
        *,
        by: Literal['metric', 'scrape', 'request'] = 'metric',
    ) -> pl.DataFrame:
        """What requests to a server took, and why slow ones were slow."""
    def expert_load(
        self,
        *,
        by: Literal['phase', 'layer', 'rank', 'expert'] = 'layer',
    ) -> pl.DataFrame:
        """How evenly experts and their ranks are loaded, by the tokens that an engine counted."""
    def idle(
        self,
        *,
        by: Literal['device', 'stream', 'gap'] = 'device',
        min_gap_ns: int = 0,
        longest: int = 0,
        kernel_wait_ns: int = 30000,
    ) -> pl.DataFrame:
        """Why the device was idle: gaps by cause (blocking calls, first use, waits, data loading, Python, launching)."""
    def critical_path(
        self,
        *,
        by: Literal['kind', 'operator', 'kernel', 'launch', 'piece'] = 'kind',
        step: int | None = None,
        within: str | None = None,
        scale: str | None = None,
    ) -> pl.DataFrame:
        """What determined each step's length: the longest chain of operators, launches, kernels and waits; what-if."""
    def predictions(
        self,
        *,
        changes: str | None = None,
        measured_step: str | None = None,
    ) -> pl.DataFrame:
        """What a change is worth: how long a step would take."""
    def launches(
        self,
        *,
        by: Literal['name', 'op', 'queue'] = 'name',
        slow_call_ns: int = 50000,
        late_ns: int = 100000,
        full_queue: int = 1024,
    ) -> pl.DataFrame:
        """What it cost to queue device work: calls, delay until the work starts, queue length."""
    def transfers(
        self,
        *,
        by: Literal['kind', 'memory'] = 'kind',
    ) -> pl.DataFrame:
        """Copies and fills: how often, how much, how fast."""
    def overlap(
        self,
        *,
        by: Literal['rank', 'device', 'collective', 'name'] = 'rank',
        linked_only: bool = False,
        communication: str = 'any',
    ) -> pl.DataFrame:
        """How much of the communication is hidden behind computation."""
    def communication(
        self,
        *,
        by: Literal['collective', 'step', 'link'] = 'collective',
        communication: str = 'any',
    ) -> pl.DataFrame:
        """Collectives: how often, how much, how long, how fast, how much of it hidden."""
    def memory(
        self,
        *,
        by: Literal['device', 'operator', 'module', 'stack', 'time'] = 'device',
    ) -> pl.DataFrame:
        """Memory held by tensors: per device, per operator, or over time."""
    def memory_peak(self) -> pl.DataFrame:
        """Peaks of memory in use and of memory reserved, of a memory snapshot."""
    def memory_holders(
        self,
        *,
        by: Literal['stack', 'line', 'category'] = 'stack',
    ) -> pl.DataFrame:
        """What held the memory at its peak, by stack, line or category, of a memory snapshot."""
    def memory_leaks(self) -> pl.DataFrame:
        """Memory that was allocated and never freed, by stack, of a memory snapshot."""
    def memory_fragmentation(self) -> pl.DataFrame:
        """Free memory that is cached or unusable, by pool, of a memory snapshot."""
    def memory_timeline(self) -> pl.DataFrame:
        """Memory in use and reserved after each event of a memory snapshot."""
    def memory_oom(
        self,
        *,
        by: Literal['device', 'stack'] = 'device',
    ) -> pl.DataFrame:
        """why a device ran out of memory, and who held it (memory snapshots)"""
    def memory_savings(self) -> pl.DataFrame:
        """what changes would save when memory ran out (memory snapshots)"""
    def sequences(
        self,
        *,
        operator: str = 'aten::',
        min_kernels: int = 3,
    ) -> pl.DataFrame:
        """Frequent sequences of device work of an operator."""
    def user_ranges(self) -> pl.DataFrame:
        """What named ranges took."""
    def scheduling(
        self,
        *,
        by: Literal['thread', 'process', 'step'] = 'thread',
    ) -> pl.DataFrame:
        """How long threads had a core or waited for one, and which thread had it meanwhile."""
    def counters(self) -> pl.DataFrame:
        """Sampled resources (utilisation, power, memory, …): mean over time and distribution."""
    def python_stacks(
        self,
        *,
        by: Literal['stack', 'function'] = 'stack',
        step: int | None = None,
        gil: bool = False,
        idle: bool = False,
    ) -> pl.DataFrame:
        """Where Python's threads were, seen from outside (stepscope record --stacks): by stack or function."""
    def python_functions(
        self,
        *,
        step: int | None = None,
        gil: bool = False,
        idle: bool = False,
    ) -> pl.DataFrame:
        """Functions that Python's threads were in, seen from outside: own and total shares."""
    def recommendations(self) -> pl.DataFrame:
        """What to change, by the rules of the TensorBoard profiler plugin and by ours."""
    def hang(self) -> pl.DataFrame:
        """Why a job hangs or crashed: the ranks to blame, the reason, how sure, since when."""
    def hang_matrix(self) -> pl.DataFrame:
        """How far each rank came in each of its process groups, and where it called last."""
    def hang_graph(self) -> pl.DataFrame:
        """Who waits for whom in a job that hangs, by the shortest chain to a culprit."""
    def collectives(
        self,
        *,
        by: Literal['exchange', 'rank', 'step', 'group', 'call'] = 'exchange',
    ) -> pl.DataFrame:
        """Collectives matched across ranks: size, bandwidth, transfer, waits, who arrived last, what does not match."""
    def message_sizes(self) -> pl.DataFrame:
        """How many collectives there are of each size, in bins that double, and how fast they are."""
    def experts(
        self,
        *,
        by: Literal['layer', 'rank'] = 'layer',
    ) -> pl.DataFrame:
        """How evenly experts load the ranks, by the all-to-alls that bring them tokens, and what unevenness costs."""
    def parallel_groups(self) -> pl.DataFrame:
        """Process groups and what they are for: tensor, data, pipeline, expert parallelism."""
    def clock_offsets(self) -> pl.DataFrame:
        """How far each rank's clock is off, solved from the collectives: offset, drift, error."""
    def stragglers(
        self,
        *,
        min_share: float = 0.001,
    ) -> pl.DataFrame:
        """Which rank makes the others wait, or which link is slow: since when, why, at what cost, how certain."""
    def pipeline_bubbles(self) -> pl.DataFrame:
        """How long stages of a pipeline wait for each other, and how long those of an even pipeline would."""
