"""Simulated jobs of 8 to 1,024 ranks that hang, and real ones of gloo, with the truth.

    python lab/hangs.py --score 300          # as many simulated jobs, and 50 healthy ones, against `stepscope`
    python lab/hangs.py --real 16            # as many real jobs of gloo; needs PyTorch
    python lab/hangs.py --write FOLDER --seed 7
    python lab/hangs.py --write FOLDER --largest 1024 --records 2000

A simulated rank runs a program of collectives and messages (tensor, data, expert and pipeline groups), either waiting
in each call or running ahead of its device. One to three ranks fail. Dumps are written as PyTorch writes them; ring
buffers, clocks, missing and doubled dumps differ from job to job.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import random
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

FAULTS = (
    "never", "device", "late", "operation", "size", "dtype", "order", "skip", "crash", "torn", "link",
)  # fmt: skip
_US = 1000
_START_NS = 1_795_351_337_000_000_000


@dataclass(slots=True)
class Op:
    """One call in the program of a rank: in a group of ranks; of a message also the rank at the other end."""

    group: str
    kind: str
    elements: int
    dtype: str = "Float"
    peer: int = -1
    waits: bool = True  # the host does not go on before it has ended
    line: int = 0


@dataclass(slots=True)
class Rank:
    """What one rank has done: the calls it made, by their place in its program, and those that ended."""

    program: list[Op]
    made: int = 0
    ended: int = 0
    at_ns: int = 0
    created: list[int] = field(default_factory=list)
    stop_at: int = 1 << 60  # the host makes no call from here on
    device_stop: int = 1 << 60  # no call from here on ends
    late_at: int = -1


class Job:
    """A simulated job: `size` ranks in tensor × pipeline × data groups, experts across some data groups."""

    def __init__(self, rng: random.Random, size: int) -> None:
        self.rng, self.size = rng, size
        self.link_from = 0
        self.tensor = rng.choice([t for t in (1, 2, 4, 8) if size % t == 0 and t <= size // 2])
        rest = size // self.tensor
        self.pipeline = rng.choice([p for p in (1, 2, 4) if rest % p == 0])
        self.data = rest // self.pipeline
        self.expert = rng.choice([e for e in (1, 2, 4, 8) if self.data % e == 0])
        self.ahead = rng.choice([1, 1, 4, 12])  # calls that a host makes before it waits for the first of them
        self.steps = rng.randint(4, 9)
        self.micro = rng.randint(1, 3)
        self.layers = rng.randint(1, 3)
        self.members: dict[str, list[int]] = {"0": list(range(size))}
        self.descs = {"0": "default_pg"}
        self._name_groups()
        self.ranks = [Rank(self._program(rank)) for rank in range(size)]
        self.started_known = rng.random() < 0.3
        self.stuck: set[tuple[int, int]] = set()  # pairs between which nothing moves

    def place(self, rank: int) -> tuple[int, int, int]:
        """Tensor, data and pipeline coordinates."""
        t = rank % self.tensor
        d = rank // self.tensor % self.data
        return t, d, rank // self.tensor // self.data

    def at(self, t: int, d: int, p: int) -> int:
        """The rank at these coordinates."""
        return t + self.tensor * (d + self.data * p)

    def _name_groups(self) -> None:
        number = 1
        self.group_of: dict[tuple[str, int], str] = {}
        for desc in ("TENSOR", "DATA", "PIPELINE", "EXPERT"):
            by_place: dict[tuple, list[int]] = {}
            for rank in range(self.size):
                t, d, p = self.place(rank)
                shared = {"TENSOR": (d, p), "DATA": (t, p), "PIPELINE": (t, d), "EXPERT": (t, d // self.expert, p)}
                by_place.setdefault(shared[desc], []).append(rank)
            for ranks in by_place.values():
                if len(ranks) > 1:
                    self.members[str(number)] = ranks
                    self.descs[str(number)] = desc
                    for rank in ranks:
                        self.group_of[desc, rank] = str(number)
                number += 1

    def _program(self, rank: int) -> list[Op]:
        once = [op for _ in range(self.micro) for op in self._forward(rank)]
        once += [op for _ in range(self.micro) for op in self._backward(rank)]
        once += self._calls(rank, ("DATA", "all_reduce", 1 << 20, 30), ("DATA", "_all_gather_base", 1 << 18, 31))
        once += self._calls(rank, ("WORLD", "all_reduce", 1, 33))
        return once * self.steps

    def _calls(self, rank: int, *calls: tuple[str, str, int, int]) -> list[Op]:
        """Those of the calls (group, operation, elements, line) whose group the rank has."""
        groups = [("0" if desc == "WORLD" else self.group_of.get((desc, rank))) for desc, _, _, _ in calls]
        return [
            Op(group, kind, elements, line=line)
            for group, (_, kind, elements, line) in zip(groups, calls, strict=True)
            if group is not None
        ]

    def _message(self, rank: int, kind: str, by: int, line: int) -> list[Op]:
        t, d, p = self.place(rank)
        if not 0 <= p + by < self.pipeline:
            return []
        return [Op(self.group_of["PIPELINE", rank], kind, 4096, peer=self.at(t, d, p + by), line=line)]

    def _forward(self, rank: int) -> list[Op]:
        layer = (("TENSOR", "_all_gather_base", 1024, 12), ("EXPERT", "all_to_all", 512, 13))
        layer = (*layer, ("TENSOR", "_reduce_scatter_base", 2048, 14))
        inner = self._calls(rank, *(layer * self.layers))
        return [*self._message(rank, "recv", -1, 10), *inner, *self._message(rank, "send", 1, 16)]

    def _backward(self, rank: int) -> list[Op]:
        inner = self._calls(rank, ("TENSOR", "all_reduce", 4096, 22))
        return [*self._message(rank, "recv", 1, 20), *inner, *self._message(rank, "send", -1, 24)]

    def inject(self, kind: str, rank: int) -> bool:
        """Let a rank fail in a way, at a place of its program. False if it has no such place."""
        own = self.ranks[rank]
        n = len(own.program)
        at = self.rng.randrange(n // 2, n - 1)
        if kind in ("never", "crash", "torn"):
            own.stop_at = at
        elif kind == "device":
            own.device_stop, own.stop_at = at, min(at + self.ahead, n)
        elif kind == "late":
            own.late_at = at
        elif kind == "skip":
            del own.program[at]
        elif kind == "link":
            return self._cut_link(rank, own.program[at])
        else:
            return self._change(own.program, kind, at)
        return True

    def _cut_link(self, rank: int, op: Op) -> bool:
        if op.peer < 0 and len(self.members[op.group]) != 2:
            return False
        peer = op.peer if op.peer >= 0 else next(r for r in self.members[op.group] if r != rank)
        self.stuck |= {(rank, peer), (peer, rank)}
        return True

    @staticmethod
    def _change(program: list[Op], kind: str, at: int) -> bool:
        op, after = program[at], program[at + 1]
        if op.peer >= 0 or op.kind == "all_to_all":
            return False
        if kind == "order":
            if after.peer >= 0 or (after.group, after.kind, after.elements) == (op.group, op.kind, op.elements):
                return False
            program[at], program[at + 1] = after, op
        elif kind == "operation":
            program[at] = replace(op, kind="broadcast", line=77)
        elif kind == "size":
            program[at] = replace(op, elements=op.elements * 2)
        else:
            program[at] = replace(op, dtype="BFloat16")
        return True

    def run(self, link_from: int = 0) -> None:
        """Run until nothing moves. Calls of a group meet by their number; a link stops after `link_from` messages."""
        self.link_from = link_from
        counts: list[Counter] = [Counter() for _ in range(self.size)]
        self.numbers: list[list[tuple]] = [[] for _ in range(self.size)]
        waiting: dict[tuple, dict[int, int]] = {}
        queue = list(range(self.size))
        queued = set(queue)
        crossed: Counter = Counter()
        while queue:
            rank = queue.pop()
            queued.discard(rank)
            own = self.ranks[rank]
            while own.made < len(own.program) and own.made < own.stop_at and own.made - own.ended < self.ahead:
                op = own.program[own.made]
                pair = (op.group, rank, op.peer) if op.kind == "send" else (op.group, op.peer, rank)
                key = pair if op.peer >= 0 else (op.group,)
                counts[rank][key] += 1
                self.numbers[rank].append((*key, counts[rank][key]))
                own.at_ns += self.rng.randint(20, 200) * _US
                if own.made == own.late_at:
                    own.at_ns += 700_000_000_000
                own.created.append(own.at_ns)
                own.made += 1
            if own.ended >= own.made or own.ended >= own.device_stop:
                continue
            op, key = own.program[own.ended], self.numbers[rank][own.ended]
            there = waiting.setdefault(key, {})
            there[rank] = own.ended
            members = [rank, op.peer] if op.peer >= 0 else self.members[op.group]
            if len(there) < len(members) or not self._ends(there, members, crossed):
                continue
            latest = max(self.ranks[r].created[at] for r, at in there.items()) + 30 * _US
            for member in members:
                self.ranks[member].ended += 1
                self.ranks[member].at_ns = max(self.ranks[member].at_ns, latest)
                if member not in queued:
                    queue.append(member)
                    queued.add(member)
            del waiting[key]

    def _ends(self, there: dict[int, int], members: list[int], crossed: Counter) -> bool:
        ops = [self.ranks[rank].program[at] for rank, at in there.items()]
        if len({(op.kind, op.elements, op.dtype) for op in ops if op.peer < 0}) > 1:
            return False
        times = [self.ranks[rank].created[at] for rank, at in there.items()]
        if max(times) - min(times) > 600_000_000_000:  # the others have given up
            return False
        if len(members) == 2 and tuple(members) in self.stuck:
            crossed[tuple(sorted(members))] += 1
            return crossed[tuple(sorted(members))] <= self.link_from
        return True

    @property
    def is_hung(self) -> bool:
        """Whether a rank waits in a call that does not end."""
        return any(own.ended < own.made for own in self.ranks)

    def write(self, folder: Path, without: dict[int, str], *, as_json: bool, snapshot: int = 0, ring: int = 0) -> None:
        """The dumps. `without` are ranks whose dump is missing, empty or torn; `snapshot` shortens some."""
        ring = ring or self.rng.choice([40, 200, 2000])
        written_ns = _START_NS + max(own.at_ns for own in self.ranks) + (5_000_000 if snapshot else 900_000_000_000)
        offsets = [self.rng.randint(-3_000_000, 3_000_000) for _ in self.ranks]
        for rank in range(self.size):
            path = folder / f"nccl_trace_rank_{rank}"
            how = without.get(rank)
            if how == "missing":
                continue
            document = self._document(rank, ring, offsets[rank], self.rng.randint(0, snapshot))
            data = json.dumps(document).encode() if as_json else pickle.dumps(document, 2)
            if how == "empty":
                data = b""
            elif how == "torn":
                data = data[: len(data) // 3]
            path.write_bytes(data)
            os.utime(path, ns=(written_ns, written_ns))

    def _document(self, rank: int, ring: int, offset: int, shorter: int) -> dict:
        own = self.ranks[rank]
        made = max(own.made - shorter, 1)
        ended = min(own.ended, made)
        if own.ended >= own.device_stop:  # its last calls have ended for the others alone
            ended = max(ended - 2, 0)
        groups = ["0", *sorted((g for (_, r), g in self.group_of.items() if r == rank), key=int)]
        ids = {group: i for i, group in enumerate(groups)}
        collective, messages = Counter(), Counter()
        status = {g: [0, 0] for g in groups}
        entries = []
        for i, op in enumerate(own.program[:made]):
            is_message = op.peer >= 0
            counter = messages if is_message else collective
            counter[op.group] += 1
            status[op.group][0] = counter[op.group]
            if i < ended:
                status[op.group][1] = counter[op.group]
            if i < made - ring:
                continue
            members = self.members[op.group]
            arrow = "->" if op.kind == "send" else "<-"
            name = f"nccl:{op.kind}" + (f" {members.index(rank)}{arrow}{members.index(op.peer)}" if is_message else "")
            created = _START_NS + own.created[i] + offset
            done = i < ended
            is_started = self.started_known and (done or (i == ended and i < own.device_stop))
            entries.append(
                {
                    "record_id": i, "pg_id": ids[op.group], "process_group": (op.group, self.descs[op.group]),
                    "collective_seq_id": collective[op.group], "p2p_seq_id": messages[op.group], "op_id": i + 1,
                    "profiling_name": name, "time_created_ns": created,
                    "input_sizes": [[op.elements]], "input_dtypes": [op.dtype], "output_sizes": [[op.elements]],
                    "output_dtypes": [op.dtype],
                    "state": "completed" if done else "started" if is_started else "scheduled",
                    "time_discovered_started_ns": created + 1000 if is_started else None,
                    "time_discovered_completed_ns": created + 30_000 if done else None,
                    "retired": done, "timeout_ms": 600_000, "is_p2p": is_message,
                    "frames": [{"name": "step", "filename": "/job/train.py", "line": op.line}],
                }
            )  # fmt: skip
        return {
            "version": "2.10",
            "pg_config": {g: {"name": g, "desc": self.descs[g], "ranks": str(self.members[g])} for g in groups},
            "pg_status": {
                str(ids[g]): {
                    "last_enqueued_collective": status[g][0] or -1,
                    "last_started_collective": -1,
                    "last_completed_collective": status[g][1] or -1,
                }
                for g in groups
            },
            "entries": entries,
        }


def _size(rng: random.Random, largest: int) -> int:
    sizes = [n for n in (8, 16, 32, 64, 128, 256, 512, 1024) if n <= largest]
    return rng.choices(sizes, [1 / (i + 1) for i in range(len(sizes))])[0]


def simulate(folder: Path, seed: int, *, largest: int = 1024, as_json: bool = False) -> dict:
    """Write the dumps of a job that hangs, and return the truth: ranks, kinds of their faults."""
    rng = random.Random(seed)
    while True:
        job = Job(rng, _size(rng, largest))
        n = rng.choices([1, 2, 3], [6, 3, 2])[0]
        faults = dict(zip(rng.sample(range(job.size), n), rng.choices(FAULTS, k=n), strict=True))
        if "link" in faults.values():
            faults = dict([next((r, k) for r, k in faults.items() if k == "link")])
        untouched = [list(own.program) for own in job.ranks]
        if not all(job.inject(kind, rank) for rank, kind in faults.items()):
            continue
        job.run(link_from=rng.randint(2, 6))
        if not job.is_hung:
            continue
        truth = {rank: kind for rank, kind in faults.items() if _took_effect(job, rank, kind, untouched[rank])}
        if not truth:
            continue
        if "link" in truth.values():
            truth = dict.fromkeys(sorted({rank for pair in job.stuck for rank in pair}), "link")
        without = {
            rank: "torn" if kind == "torn" else rng.choice(["missing", "empty"])
            for rank, kind in truth.items()
            if kind in ("crash", "torn")
        }
        job.write(folder, without, as_json=as_json)
        if rng.random() < 0.1:  # an old copy of a dump
            first = next(iter(sorted(folder.glob("nccl_trace_rank_*"))))
            (folder / first.name.replace("nccl_trace_rank", "comm_lib_trace_rank")).write_bytes(first.read_bytes())
        return {"seed": seed, "ranks": sorted(truth), "kinds": truth, "size": job.size, "ahead": job.ahead}


def simulate_large(folder: Path, seed: int, size: int, n_records: int, *, as_json: bool = False) -> dict:
    """Write the dumps of a job of so many ranks with so many records each, in which one rank stops near the end."""
    rng = random.Random(seed)
    job = Job(rng, size)
    steps = [own.program[: len(own.program) // job.steps] for own in job.ranks]
    for own, once in zip(job.ranks, steps, strict=True):
        own.program = once * (n_records // min(map(len, steps)) + 2)
    rank = rng.randrange(size)
    job.ranks[rank].stop_at = n_records + 1
    job.run()
    job.write(folder, {}, as_json=as_json, ring=n_records)
    return {"seed": seed, "ranks": [rank], "kinds": {rank: "never"}, "size": size, "ahead": job.ahead}


def _took_effect(job: Job, rank: int, kind: str, untouched: list[Op]) -> bool:
    """Whether a rank came as far as its fault."""
    own = job.ranks[rank]
    if kind in ("never", "crash", "torn"):
        return own.made == own.stop_at < len(untouched) and own.made - own.ended < job.ahead
    if kind == "device":
        return own.ended >= own.device_stop
    if kind == "late":
        return own.made > own.late_at
    if kind == "link":
        return True
    changed = next((i for i, (a, b) in enumerate(zip(own.program, untouched, strict=False)) if a != b), len(untouched))
    return own.made > changed


def simulate_healthy(folder: Path, seed: int, *, largest: int = 256, as_json: bool = False) -> dict:
    """Write the dumps of a job that is well: at its end, or at work."""
    rng = random.Random(seed)
    job = Job(rng, _size(rng, largest))
    at_work = rng.random() < 0.5
    job.run()
    missing = {rng.randrange(job.size): "missing"} if rng.random() < 0.2 else {}
    job.write(folder, missing, as_json=as_json, snapshot=rng.randint(1, 4) if at_work else 0)
    return {"seed": seed, "ranks": [], "kinds": {}, "size": job.size, "ahead": job.ahead}


def score(n: int, n_healthy: int, make: Callable[[Path, int], dict], *, verbose: bool) -> bool:
    """Make jobs, ask stepscope about each, and print how often it names exactly the ranks that failed."""
    exact, accused, wrong_healthy, by_kind = 0, 0, 0, {}
    began = time.process_time()
    for i in range(n + n_healthy):
        with tempfile.TemporaryDirectory() as name:
            truth = make(Path(name), i)
            named = blamed(Path(name))
        is_exact = named == truth["ranks"]
        if not truth["ranks"]:
            wrong_healthy += bool(named)
            if named:
                print("healthy job accused:", truth, named)
            continue
        exact += is_exact
        accused += bool(set(named) - set(truth["ranks"]))
        kinds = "+".join(sorted(set(truth["kinds"].values())))
        right, total = by_kind.get(kinds, (0, 0))
        by_kind[kinds] = (right + is_exact, total + 1)
        if verbose and not is_exact:
            print("missed:", truth, "named:", named)
    for kinds, (right, total) in sorted(by_kind.items()):
        print(f"{kinds:40} {right:4} of {total}")
    print(f"exact sets: {exact} of {n} ({exact / max(n, 1):.1%})")
    print(f"runs with an innocent rank accused: {accused} of {n} ({accused / max(n, 1):.1%})")
    print(f"healthy jobs accused: {wrong_healthy} of {n_healthy}")
    print(f"{time.process_time() - began:.0f} s of CPU")
    return exact >= 0.95 * n and accused <= 0.01 * n and not wrong_healthy


def score_simulated(n: int, largest: int, seed: int, *, verbose: bool) -> bool:
    """Score as many simulated jobs that hang, and a sixth as many healthy ones."""

    def make(folder: Path, i: int) -> dict:
        if i < n:
            return simulate(folder, seed + i, largest=largest, as_json=i % 2 == 0)
        return simulate_healthy(folder, seed + i, largest=min(largest, 256), as_json=i % 2 == 0)

    return score(n, n // 6, make, verbose=verbose)


def score_real(n: int, seed: int, *, verbose: bool) -> bool:
    """Score as many real jobs, of which some are healthy."""
    from hang_jobs import FAULTS as REAL_FAULTS
    from hang_jobs import run_job

    n_healthy = sum((seed + i) % len(REAL_FAULTS) == REAL_FAULTS.index("healthy") for i in range(n))
    return score(n - n_healthy, n_healthy, lambda folder, i: run_job(folder, seed + i), verbose=verbose)


def blamed(folder: Path) -> list[int]:
    """The ranks that stepscope names for the dumps in a folder."""
    import stepscope

    return stepscope.show(folder, "hang")["rank"].drop_nulls().sort().to_list()


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--score", type=int, metavar="N", help="simulate N jobs that hang, and a sixth as many healthy")
    parser.add_argument("--real", type=int, metavar="N", help="run N real jobs of gloo, an eighth of them healthy")
    parser.add_argument("--write", type=Path, metavar="FOLDER", help="write the dumps of one job, and truth.json")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--largest", type=int, default=1024, metavar="RANKS")
    parser.add_argument("--records", type=int, metavar="N", help="--write a job of --largest ranks with N records each")
    parser.add_argument("--json", action="store_true", help="--write JSON, not pickles")
    parser.add_argument("--verbose", action="store_true", help="print each job that was missed")
    options = parser.parse_args()
    if options.write:
        options.write.mkdir(parents=True, exist_ok=True)
        if options.records:
            truth = simulate_large(options.write, options.seed, options.largest, options.records, as_json=options.json)
        else:
            truth = simulate(options.write, options.seed, largest=options.largest, as_json=options.json)
        (options.write / "truth.txt").write_text(json.dumps(truth) + "\n")
        print(json.dumps(truth))
    is_good = True
    if options.score:
        is_good = score_simulated(options.score, options.largest, options.seed, verbose=options.verbose)
    if options.real:
        is_good &= score_real(options.real, options.seed, verbose=options.verbose)
    return 0 if is_good else 3


if __name__ == "__main__":
    sys.exit(main())
