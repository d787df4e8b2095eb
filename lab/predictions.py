"""How right `stepscope predict` is: against simulated programs, and against recordings of known effect.

python predictions.py oracle [--programs 200] [--first N] [--without all | none | FIELD,…] [--worst 20] [--keep DIR]
python predictions.py pairs DATA       recordings before and after a change, in the collection of real traces
python predictions.py bounds DATA      recordings of other devices and batch sizes: whether they lie within the bounds
python predictions.py lags DATA        steps replayed with pooled lags, and with those that other steps have
python predictions.py ranks DATA       jobs of several ranks replayed together, against their recorded times
python predictions.py identity DATA    no change at all must give the recorded step, for every real trace

`oracle` asks ten questions about each random program; the truth is the program changed and simulated again. It
prints errors with all fields recorded and with each one left out, errors by kind of program, and the worst answers.
An answer with basis `bound` has no error of its own: it is right if its interval holds the truth.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from step_programs import random_case
from step_recordings import FIELDS, write
from step_simulator import simulate

import stepscope
from stepscope.analyses.critical_path.predictions import recorded_program, replayed_steps, tables_of
from stepscope.analyses.critical_path.scaling import on_device
from stepscope.analyses.ranks.replay import job_times
from stepscope.analyses.ranks.stragglers import straggler_evidence
from stepscope.api.verbs import load_run
from stepscope.core.errors import StepscopeError
from stepscope.core.files import labels_of
from stepscope.core.schema import DEVICE_WORK
from stepscope.query.map_files import calls_of_ranks

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from step_programs import Case

    from stepscope.analyses.critical_path.replay import Lags

#: Differences of the true step below this do not count as an order.
TIE = 0.003


@dataclass(frozen=True, slots=True)
class Answer:
    """One question about one program. Times in ns; the true ones are means of many steps."""

    seed: int
    kinds: frozenset[str]
    texts: tuple[str, ...]
    true_step_ns: float
    truth_ns: float
    step_ns: float = float("nan")
    predicted_ns: float = float("nan")
    low_ns: float = float("nan")
    high_ns: float = float("nan")
    basis: str = ""
    failure: str = ""

    @property
    def truth(self) -> float:
        """The changed step as a share of the step."""
        return self.truth_ns / self.true_step_ns

    @property
    def predicted(self) -> float:
        """The same, as predicted."""
        return self.predicted_ns / self.step_ns

    @property
    def error(self) -> float:
        """Of the predicted step, relative to the true one; infinite without an answer. Of a bound: how far it fails."""
        if self.failure:
            return float("inf")
        low, high = self.low_ns / self.step_ns, self.high_ns / self.step_ns
        nearest = min(max(self.truth, low), high) if self.basis == "bound" else self.predicted
        return nearest / self.truth - 1

    @property
    def covered(self) -> bool:
        """Whether the truth lies between the bounds, give or take 0.5 %."""
        low, high = self.low_ns / self.step_ns, self.high_ns / self.step_ns
        return low * 0.995 <= self.truth <= high * 1.005


def true_steps(case: Case) -> list[float]:
    """The step of each changed program, in ns."""
    return [simulate(change.apply(case.program)).step_ns for change in case.changes]


def ask(case: Case, truths: list[float], folder: Path, without: str | None = None) -> list[Answer]:
    """Record the case, ask all its questions."""
    paths = []
    for rank in case.run.ranks:
        paths.append(folder / f"seed{case.seed}-rank{rank.rank}{'-' + without if without else ''}.json")
        write(rank, case.program.first_step, paths[-1], without)
    source = stepscope.load(str(paths[0])) if len(paths) == 1 else [str(path) for path in paths]
    answers = []
    for change, truth in zip(case.changes, truths, strict=True):
        what = (case.seed, case.kinds, change.texts, case.run.step_ns, truth)
        try:
            row = stepscope.predict(source, list(change.texts)).row(0, named=True)
            low, high, said = row["low_ns"], row["high_ns"], row["predicted_ns"]
            middle = (low + high) / 2  # of a bound, which has no point
            answers.append(Answer(*what, row["step_ns"], middle if said is None else said, low, high, row["basis"]))
        except StepscopeError as error:
            answers.append(Answer(*what, failure=str(error)))
    return answers


def kendall(answers: Sequence[Answer]) -> float | None:
    """Agreement of the order of changes; pairs whose truths are about the same do not count."""
    score = pairs = 0
    for a, b in combinations(answers, 2):
        if abs(a.truth - b.truth) > TIE:
            pairs += 1
            agree = (a.truth - b.truth) * (a.predicted - b.predicted)
            score += (agree > 0) - (agree < 0)
    return score / pairs if pairs else None


def first_right(answers: Sequence[Answer]) -> bool | None:
    """Whether the change that is predicted to gain most does, or about as much; None if none gains anything."""
    best = min(a.truth for a in answers)
    if best > 1 - TIE:
        return None
    return min(answers, key=lambda a: a.predicted).truth <= best + TIE


def quantiles(answers: Iterable[Answer]) -> str:
    """Count, share of bounds, median and 95th percentile of errors, share up to 1 %, intervals that hold."""
    rows = list(answers)
    errors = np.abs([a.error for a in rows])
    median, high = np.quantile(errors, (0.5, 0.95), method="inverted_cdf")
    covered = np.mean([a.covered for a in rows])
    bounds = np.mean([a.basis == "bound" for a in rows])
    return (f"{len(rows):>6} | {bounds:7.1%} | {median:8.2%} | {high:8.2%} | {np.mean(errors <= 0.01):7.1%} | "
            f"{covered:7.1%}")  # fmt: skip


HEAD = "| {:20} |      n |  bounds |   median |     95 % |   ≤ 1 % | interval holds |\n|---|---|---|---|---|---|---|"


def oracle(args: argparse.Namespace) -> None:
    """Grade, and print."""
    fields = (
        [None, *FIELDS] if args.without == "all" else [f or None for f in args.without.replace("none", "").split(",")]
    )
    seeds = range(args.first, args.first + args.programs)
    answers: dict[str | None, list[Answer]] = {field: [] for field in fields}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(args.keep or temporary)
        for seed in seeds:
            case = random_case(seed)
            truths = true_steps(case)
            for field in fields:
                answers[field] += ask(case, truths, folder, field)
    print(HEAD.format("left out"))
    for field, rows in answers.items():
        print(f"| {field or 'nothing':20} | {quantiles(rows)} |")
    rows = answers[fields[0]]
    print("\n" + HEAD.format("kind of program"))
    for kind in sorted({kind for a in rows for kind in a.kinds}):
        print(f"| {kind:20} | {quantiles(a for a in rows if kind in a.kinds)} |")
    print("\n" + HEAD.format("question"))
    for kind in sorted({_question(a) for a in rows}):
        print(f"| {kind:20} | {quantiles(a for a in rows if _question(a) == kind)} |")
    programs = [[a for a in rows if a.seed == seed and not a.failure] for seed in seeds]
    taus = [tau for group in programs if group and (tau := kendall(group)) is not None]
    firsts = [right for group in programs if group and (right := first_right(group)) is not None]
    bound = [a for a in rows if {"queue full", "loader-bound"} & a.kinds and a.basis not in ("", "bound")]
    taken = [a for a in bound if a.predicted < min(1 - TIE, a.truth - 0.02)]  # a step may also become longer
    print(f"\nKendall τ: mean {np.mean(taus):.3f}; first right: {np.mean(firsts):.1%} of {len(firsts)} programs")
    print(
        f"gains that queue or loader takes back: {len(taken)} of {len(bound)}, seeds {sorted({a.seed for a in taken})}"
    )
    print(f"no answer: {sum(bool(a.failure) for a in rows)}", {a.failure for a in rows if a.failure})
    for a in sorted(rows, key=lambda a: -abs(a.error))[: args.worst]:
        print(f"{a.seed:4} {a.error:+8.1%} truth {1 - a.truth:6.1%} said {1 - a.predicted:6.1%} {a.basis} "
              f"{' + '.join(a.texts)[:70]:70} {', '.join(sorted(a.kinds))} {a.failure}")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Pair:
    """Recordings before and after a change; the truth is the median step of the second ones."""

    name: str
    before: str
    after: str  # a pattern; of several recordings the mean of their medians counts
    texts: tuple[str, ...]
    ranks: bool = False


GRAPHS, T4 = "traces/cuda-graph-pairs/", "traces/more/kineto-cudagraph/vit-infer-t4/"
PAIRS = (
    *(Pair(f"graphs, {title} {device}", f"{GRAPHS}{before.format(device)}", f"{GRAPHS}{after.format(device)}",
           ("launch: graphs",))
      for device in ("rtx3080", "v100")
      for title, before, after in (
          ("ViT", "ViT_{}_one_image_no_cuda_graph*", "ViT_{}_one_image_cuda_graph*"),
          ("TimeSformer", "timeSformer_{}_one_video_no_cuda_graph*", "timeSformer_{}_one_video_cuda_graph*"),
          ("CIFAR training", "Cifar10_{}_training_no_cudagraph_batch4.*", "Cifar10_{}_training_cudagraph_batch4.*"),
          ("CIFAR validation", "Cifar10_{}_validation_no_cudagraph_batch4.*",
           "Cifar10_{}_validation_cudagraph_batch4.*"),
      )),
    Pair("graphs, ViT t4", f"{T4}no_cuda*", f"{T4}cuda*", ("launch: graphs",)),
    *(Pair(f"loader, ResNet-50 {name}", f"traces/kineto/resnet50_num_workers_0/*{name}*",
           "traces/kineto/resnet50_num_workers_4/*", ("loader: hidden",)) for name in ("3089861", "3566756")),
    Pair("slow loader", "faultlab/slow_dataloader/abnormal/*json.gz", "faultlab/slow_dataloader/normal?/*json.gz",
         ("loader: hidden",)),
    Pair("straggler", "faultlab/ddp_straggler/abnormal/*/*json.gz", "faultlab/ddp_straggler/normal?/*/*json.gz",
         ("ranks: no stragglers",), ranks=True),
)  # fmt: skip


def _median_step(pattern: str, data: Path) -> float:
    medians = [stepscope.load(str(path)).steps["dur_ns"].median() for path in sorted(data.glob(pattern))]
    return float(np.mean([median for median in medians if isinstance(median, float)]))


def pairs(args: argparse.Namespace) -> None:
    """Predict each second recording from the first."""
    errors, points, covered = [], [], []
    print(
        "| pair | recorded ms | truth ms | predicted ms | interval ms | error | basis |\n|---|---|---|---|---|---|---|"
    )
    for pair in PAIRS:
        paths = [str(path) for path in sorted(args.data.glob(pair.before))]
        recorded, truth = _median_step(pair.before, args.data), _median_step(pair.after, args.data)
        try:
            row = stepscope.predict(paths, list(pair.texts)).row(0, named=True)
        except StepscopeError as error:
            print(f"| {pair.name} | {recorded / 1e6:.2f} | {truth / 1e6:.2f} | {error} | | | |")
            errors.append(float("inf"))
            points.append(float("inf"))
            covered.append(False)
            continue
        scale = recorded / row["step_ns"]
        low, high = row["low_ns"] * scale, row["high_ns"] * scale
        said = (low + high) / 2 if row["predicted_ns"] is None else row["predicted_ns"] * scale
        points.append(said / truth - 1)
        errors.append(min(max(truth, low), high) / truth - 1 if row["basis"] == "bound" else points[-1])
        covered.append(low * 0.995 <= truth <= high * 1.005)
        print(f"| {pair.name} | {recorded / 1e6:.2f} | {truth / 1e6:.2f} | {said / 1e6:.2f} | {low / 1e6:.2f} to "
              f"{high / 1e6:.2f} | {points[-1]:+.1%} | {row['basis']} |")  # fmt: skip
    median, high = np.quantile(np.abs(errors), (0.5, 0.9), method="inverted_cdf")
    print(f"\n{len(errors)} pairs: median error {median:.1%} (bar 5 %), 90th percentile {high:.1%} (bar 15 %), "
          f"interval holds in {np.mean(covered):.0%} (bar 80 %)")  # fmt: skip
    median, high = np.quantile(np.abs(points), (0.5, 0.9), method="inverted_cdf")
    print(f"with the better end of bounds as if it were a point: {median:.1%} and {high:.1%}")


_MODELS = ("Falconsai_nsfw_image_detection__1016002", "Qwen_Qwen1.5-0.5B-Chat__1016005",
           "gaunernst_bert-small-uncased__1016001")  # fmt: skip
#: Recordings of one program on two devices, or with two batch sizes, and what makes the second of the first and back.
BOUNDED = (
    *((f"traces/tracelens/h100/{name}.json.gz", f"traces/tracelens/mi300/{name}.json.gz",
       "gpu: MI300X", "gpu: H100 SXM") for name in _MODELS),
    *((f"{GRAPHS}ViT_v100_one_image_{kind}.pt.trace.json.gz", f"{T4}{kind}.pt.trace.json.gz",
       "gpu: T4", "gpu: V100 SXM2") for kind in ("cuda_graph", "no_cuda_graph")),
    *((f"{GRAPHS}Cifar10_{device}_{what}_{graph}_batch4.pt.trace.json.gz",
       f"{GRAPHS}Cifar10_{device}_{what}_{graph}_batch50.pt.trace.json.gz", "batch: 12.5x", "batch: 0.08x")
      for device in ("rtx3080", "v100") for what in ("training", "validation")
      for graph in ("no_cudagraph", "cudagraph")),
)  # fmt: skip


def bounds(args: argparse.Namespace) -> None:
    """Ask for another device and another batch size, both ways; of devices also whether their work alone is bounded."""
    held: dict[str, list[bool]] = {}
    for first, second, there, back in BOUNDED:
        for before, after, text in ((first, second, there), (second, first, back)):
            one, other = (stepscope.load(str(args.data / path)) for path in (before, after))
            row = stepscope.predict(one, [text]).row(0, named=True)
            truth = _median_step(after, args.data) * row["step_ns"] / _median_step(before, args.data)
            lies = row["low_ns"] <= truth <= row["high_ns"]
            subject, name = text.split(": ")
            held.setdefault(f"{subject}, steps", []).append(lies)
            said = f"{row['low_ns'] / 1e6:.2f} to {row['high_ns'] / 1e6:.2f} ms, truth {truth / 1e6:.2f} ms"
            if subject == "gpu":
                program, real = (recorded_program(*tables_of(trace)) for trace in (one, other))
                took, true = (p.work.end - p.work.start for p in (program, real))
                ends = [float((on_device(program, name, at_worst=worst) * took).sum()) for worst in (False, True)]
                held.setdefault("gpu, device work", []).append(ends[0] <= true.sum() <= ends[1])
                said += f"; device work {ends[0] / 1e6:.2f} to {ends[1] / 1e6:.2f} ms, truth {true.sum() / 1e6:.2f} ms"
            print(f"{before}, {text}: {said}")
    for what, right in held.items():
        print(f"{what}: {sum(right)} of {len(right)} within the bounds")


def identity(args: argparse.Namespace) -> None:
    """Ask for no change of every trace that has steps or work of a device."""
    good = 0
    for path in sorted(args.data.glob("**/*json*")):
        for text in ("device: 1x", "host: 1x"):
            try:
                rows = stepscope.predict(str(path), [text])
            except StepscopeError as error:
                reason = str(error)
                continue
            wrong = rows.filter((rows["predicted_ns"] - rows["step_ns"]).abs() > 0)
            good += wrong.is_empty()
            if not wrong.is_empty():
                print(path.relative_to(args.data), text, wrong["step_ns"][0], wrong["predicted_ns"][0])
            break
        else:
            print(f"{path.relative_to(args.data)}: {reason}")
    print(f"{good} traces give their recorded step")


def lags(args: argparse.Namespace) -> None:
    """Replay each real trace with launch delays and gaps between kernels replaced by medians of their kinds."""
    modes: tuple[Lags, ...] = ("pooled", "other steps")
    rows = []
    for path in sorted(args.data.glob("**/*json*")):
        try:
            trace = stepscope.load(str(path))
            frames = [replayed_steps(*tables_of(trace), lags=mode) for mode in modes]
        except StepscopeError:
            continue
        if trace.spans["category"].is_in(DEVICE_WORK).any():
            # The first steps have no settled state of the queue before them.
            n = frames[0].height
            recorded = frames[0]["recorded_ns"].to_numpy()[n // 2 :]
            pooled, other = (frame["replayed_ns"].to_numpy()[n // 2 :] for frame in frames)
            whole = max(int(recorded.sum()), 1)
            each = np.abs(other / np.maximum(recorded, 1) - 1)
            rows.append((whole / recorded.size, n, float(pooled.sum()) / whole - 1, float(np.median(each))))
            if max(abs(rows[-1][2]), rows[-1][3]) > 0.01:
                print(f"{path.relative_to(args.data)}: {n} steps of {rows[-1][0] / 1e6:.2f} ms, pooled "
                      f"{rows[-1][2]:+.2%}, of other steps {rows[-1][3]:.2%}")  # fmt: skip
    for title, low, high, bar in (("from 5 ms on", 5e6, np.inf, 0.01), ("shorter", 0, 5e6, 0.05)):
        errors = np.array([abs(pooled) for step_ns, _, pooled, _ in rows if low <= step_ns < high])
        print(f"pooled, steps {title}: {(errors <= bar).sum()} of {errors.size} within {bar:.0%}")
    errors = np.array([error for _, n, _, error in rows if n > 1])
    middle, high = np.quantile(errors, (0.5, 0.95), method="inverted_cdf")
    print(f"lags of other steps, {errors.size} traces: median error {middle:.3%} (bar 2 %), 95 % {high:.2%}")


#: Folders of real jobs whose ranks share collectives.
JOBS = {
    "gloo": tuple(f"faultlab/ddp_straggler/{run}" for run in ("abnormal", "normal0", "normal1")),
    "NCCL": ("traces/more/kineto-multirank/megatron-tp8-a100",),
    "HCCL": ("traces/more/ascend/torch_npu-2rank-text/level0",),
}


def ranks(args: argparse.Namespace) -> None:
    """Replay each job: ranks' own work and transfers as recorded, arrivals and ends as they follow from them."""
    for library, folders in JOBS.items():
        for folder in folders:
            run = load_run(args.data / folder)
            parts = calls_of_ranks(run, labels_of(run.paths), on_missing=print)
            evidence = straggler_evidence(parts)
            job = evidence.job
            replayed, _ = job_times(job, evidence.clocks, [])
            recorded = int(job.end.max() - job.start.min())
            times = (
                f"recorded {recorded / 1e6:.2f} ms, replayed {replayed / 1e6:.2f} ms, {replayed / recorded - 1:+.2%}"
            )
            print(f"{library} {folder}: {len(job.ranks)} ranks, {job.start.size} calls, {times}")


def _question(answer: Answer) -> str:
    return "two changes" if len(answer.texts) > 1 else answer.texts[0].split("~", 1)[0].split(" /", 1)[0][:24]


def main() -> None:
    """Read the command line and grade."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("oracle")
    one.add_argument("--programs", type=int, default=200)
    one.add_argument("--first", type=int, default=0)
    one.add_argument("--without", default="none")
    one.add_argument("--worst", type=int, default=20)
    one.add_argument("--keep")
    one.set_defaults(run=oracle)
    for name, run in (("pairs", pairs), ("bounds", bounds), ("lags", lags), ("ranks", ranks), ("identity", identity)):
        one = commands.add_parser(name)
        one.add_argument("data", type=Path)
        one.set_defaults(run=run)
    args = parser.parse_args()
    os.environ["STEPSCOPE_CACHE"] = "0"
    args.run(args)


if __name__ == "__main__":
    main()
