"""Files that are valid and absurd: every question gives an answer or a StepscopeError, soon, in little memory."""

from __future__ import annotations

import copy
import importlib
import json
import re
import subprocess
import sys
import traceback
from pathlib import Path
from random import Random
from types import SimpleNamespace

import pytest

pytestmark = pytest.mark.exhaustive

LAB = Path(__file__).parents[2] / "lab"
#: What a question may take, on top of what other tests have left in this process.
MOST_MIB = 600
N_STEPS = 100_000
DATABASES = (".db", ".sqlite", ".rpd")
#: Questions that take long and ask the same functions again: each value of an option, each table written and paged.
AGAIN = re.compile(r"show .*=|export .*=|write |agent |sql |page /tables|page /api/trace/0/memory|beside ")


@pytest.fixture(scope="module")
def lab():
    """The modules of the lab that change files and ask about them."""
    sys.path.insert(0, str(LAB))
    try:
        names = ("contract", "mutations", "semantic_mutations", "small_files")
        return SimpleNamespace(**{name: importlib.import_module(name) for name in names})
    finally:
        sys.path.remove(str(LAB))


@pytest.fixture
def document(lab):
    """Two steps of operators, launches, kernels, a collective, memory and a counter."""
    return copy.deepcopy(lab.mutations.made()[0])


@pytest.fixture
def ask(lab, tmp_path):
    """Writes a changed document and asks about it; gives how many questions were answered and how many refused."""

    def of(changed, *, only=("",)):
        base, path = tmp_path / "sound.json", tmp_path / "changed.json"
        base.write_text(json.dumps(lab.mutations.made()[0]))
        path.write_text(json.dumps(changed))
        outcomes, failures = [], []
        for name, question in lab.contract.questions([str(path)], base):
            if name.startswith((lab.contract.OPEN, *only)) and not AGAIN.match(name):
                lab.contract.reset_peak()
                try:
                    outcomes.append(lab.contract.ask(question, lab.contract.peak_mib() + MOST_MIB))
                except BaseException as error:  # noqa: BLE001  whatever breaks the contract, a panic in Polars too
                    *_, place = traceback.extract_tb(error.__traceback__)
                    failures.append(f"{name}: {error!r:.200} at {place.filename}:{place.lineno}")
        assert not failures, "\n".join(failures)
        return outcomes.count("answered"), len(outcomes)

    return of


def timed(document):
    return [event for event in document["traceEvents"] if "dur" in event]


@pytest.mark.slow
@pytest.mark.parametrize("dur", [0, -1])
def test_durations_that_are_all_zero_or_negative(ask, document, dur):
    for event in timed(document):
        event["dur"] = dur * event["dur"]
    answered, asked = ask(document)
    assert answered > asked / 3


@pytest.mark.slow
def test_starts_that_are_all_equal(ask, document):
    for event in timed(document):
        event["ts"] = 1000
    answered, asked = ask(document)
    assert answered > asked / 3


@pytest.mark.slow
def test_a_hundred_thousand_processes(ask, document):
    events = document["traceEvents"]
    document["traceEvents"] = [{**events[n % len(events)], "pid": n, "tid": n} for n in range(100_000)]
    ask(document, only=("show cycles", "show attribution", "report", "compare with itself"))


@pytest.mark.slow
def test_process_numbers_of_any_kind(ask, document):
    for number, event in enumerate(document["traceEvents"]):
        event["pid"] = (2**40 + number, -number, f"p{number}", str(number))[number % 4]
    answered, asked = ask(document)
    assert answered > asked / 3


@pytest.mark.slow
@pytest.mark.parametrize("value", [True, -1, "x", [1], {"a": 1}, 1e300, 10**30])
def test_properties_of_devices_of_any_type(ask, document, value):
    keys = ("name", "totalGlobalMem", "computeMajor", "computeMinor", "numSms", "warpSize")
    document["deviceProperties"] = [{"id": 0, **dict.fromkeys(keys, value)}]
    few = ("show recommendations", "show roofline", "report", "export tensorboard", "one-file page")
    answered, asked = ask(document, only=few)
    assert answered > asked / 3


@pytest.mark.slow
def test_shapes_and_sizes_of_ten_to_the_eighteen(ask, document):
    for event in document["traceEvents"]:
        for key in ("Input Dims", "In msg nelems", "Out msg nelems", "bytes", "Bytes", "grid", "block"):
            if key in event.get("args", {}):
                old = event["args"][key]
                event["args"][key] = [[10**18, 10**18]] * len(old) if key == "Input Dims" else 10**18
    answered, asked = ask(document)
    assert answered > asked / 3


@pytest.mark.slow
@pytest.mark.parametrize("size", [10**9, 2**62, -1, 0, "8", [8]])
def test_a_claimed_size_of_the_job_is_no_work(ask, document, size):
    document["distributedInfo"] = {"rank": 3, "world_size": size, "backend": "nccl"}
    few = (
        "show collectives",
        "show stragglers",
        "show communication",
        "report",
        "export chrome",
        "compare with itself",
    )
    answered, asked = ask(document, only=few)
    assert answered > asked / 3


@pytest.mark.slow
def test_calls_ten_thousand_deep(ask, document):
    base = {"ph": "X", "cat": "cpu_op", "pid": 9, "tid": 9}
    deep = [{**base, "name": f"n{i}", "ts": i, "dur": 20_000 - 2 * i} for i in range(10_000)]
    document["traceEvents"] += deep
    ask(document, only=("page /", "one-file page", "export", "report", "show operators"))


@pytest.mark.slow
def test_names_that_are_all_different_and_long(ask, document):
    base = {"ph": "X", "cat": "cpu_op", "pid": 1, "tid": 1, "dur": 1}
    document["traceEvents"] += [{**base, "name": f"{i:x}-" * 150, "ts": 3 * i} for i in range(3_000)]
    ask(document, only=("report", "show operators", "compare with itself", "one-file page", "export", "page /"))


@pytest.mark.slow
def test_a_hundred_thousand_steps(ask, document):
    base = {"ph": "X", "cat": "user_annotation", "pid": 1, "tid": 1, "dur": 0.5}
    document["traceEvents"] += [{**base, "name": f"ProfilerStep#{i}", "ts": i} for i in range(N_STEPS)]
    ask(document, only=("report", "show steps", "show cycles", "compare with itself", "one-file page"))


@pytest.mark.slow
def test_a_case_follows_from_its_number_alone_and_changes_its_seed(lab, tmp_path):
    seeds = lab.small_files.write_all(tmp_path / "seeds")
    for number, (name, seed) in enumerate(seeds.items()):
        made = []
        for again in "ab":
            folder = tmp_path / name / again
            folder.mkdir(parents=True)
            lab.semantic_mutations.write_mutated(seed, folder, Random(number))
            files = (path for path in folder.rglob("*") if path.is_file() and path.suffix not in DATABASES)
            made.append({path.name: path.read_bytes() for path in files})
        assert made[0] == made[1], name


@pytest.mark.slow
def test_what_a_watch_and_a_history_read_may_be_absurd():
    command = [sys.executable, "-W", "error", LAB / "absurd_states.py", "--cases", "30"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
