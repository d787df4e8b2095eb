from __future__ import annotations

import polars as pl
import pytest
from msgspec.structs import replace
from observations import observation, pair

from stepscope.comparison.diagnosis import Case, views
from stepscope.comparison.effects import effects
from stepscope.comparison.kinds import kind_differences, other_hardware, setup_of
from stepscope.comparison.model import SETUP, WORKLOAD
from stepscope.core.schema import DEVICES, SPANS
from stepscope.core.trace import Meta, Trace


def trace(*, facts=None, name="A100", memory=40 * 2**30, categories=("operator",), **meta):
    devices = pl.DataFrame(
        {"device_id": [0, 1], "type": ["cpu", "cuda"], "index": [None, 0], "name": [None, name],
         "memory_bytes": [None, memory]},
    )  # fmt: skip
    spans = pl.DataFrame({"category": list(categories), "name": ["x"] * len(categories)})
    tables = {"devices": DEVICES.conform(devices), "spans": SPANS.conform(spans)}
    return Trace(Meta(path="a", format="kineto", facts=facts or {}, **meta), tables)


def run(setup=None, *, functions=("aten::mm",), kernels=("gemm",), each=10, workload=(), n=6):
    rows = [(c, "host", name, "operator", 1, each, each) for c in range(1, n + 1) for name in functions]
    rows += [(c, "gpu0", name, "kernel", 1, each, None) for c in range(1, n + 1) for name in kernels]
    observed = observation([100] * n, functions=rows, parts=[(c, "operators", 100) for c in range(1, n + 1)])
    work = pl.DataFrame(list(workload), schema=WORKLOAD.dtypes, orient="row") if workload else WORKLOAD.empty()
    setup = SETUP.empty() if setup is None else setup
    return replace(observed, setup=setup, workload=WORKLOAD.conform(work))


def differences(base, other):
    pairs = (pair(base, other),)
    return kind_differences(pairs, views(Case(pairs, effects(pairs))))


def stated(**facts):
    return SETUP.conform(
        pl.DataFrame([(*key.split("_", 1), value) for key, value in facts.items()], schema=SETUP.dtypes, orient="row")
    )


def facts_of(kinds):
    return kinds.select("kind", "fact", "base", "other").rows()


def test_a_recording_states_its_machine_versions_and_options():
    made = trace(
        facts={"cuda_driver_version": "12080", "backend": "nccl", "traceName": "x"}, world_size=8, framework="PyTorch",
        categories=("operator", "kernel", "python"),
    )  # fmt: skip
    rows = {(kind, fact): value for kind, fact, value in setup_of(made).rows()}
    assert rows["hardware", "accelerator"] == "A100"
    assert rows["hardware", "memory"] == "40 GiB"
    assert rows["driver", "CUDA driver"] == "12.8"
    assert rows["job", "ranks"] == "8"
    assert rows["job", "backend of collectives"] == "nccl"
    assert rows["recorder", "Python functions"] == "recorded"
    assert rows["recorder", "input shapes"] == "not recorded"
    assert ("framework", "version") not in rows


def test_equal_runs_do_not_differ_in_kind():
    setup = setup_of(trace())
    assert differences(run(setup), run(setup)).is_empty()


def test_another_machine_is_one_row_and_not_one_for_each_of_its_properties():
    kinds = differences(run(setup_of(trace())), run(setup_of(trace(name="V100", memory=16 * 2**30))))
    assert facts_of(kinds) == [("hardware", "accelerator", "A100", "V100")]
    assert other_hardware(kinds) == "A100 → V100"
    assert other_hardware(kinds.clear()) == ""


def test_a_part_of_a_device_is_other_hardware():
    kinds = differences(run(setup_of(trace())), run(setup_of(trace(memory=20 * 2**30))))
    assert facts_of(kinds) == [("hardware", "memory", "40 GiB", "20 GiB")]


def test_what_one_run_does_not_state_is_unknown_and_not_different():
    assert differences(run(stated(driver_version="12.8")), run()).is_empty()


def test_repeats_are_taken_together():
    pairs = (pair([run(stated(job_ranks="2")), run(stated(job_ranks="4"))], run(stated(job_ranks="2"))),)
    kinds = kind_differences(pairs, views(Case(pairs, effects(pairs))))
    assert facts_of(kinds) == [("job", "ranks", "2 and 4", "2")]


def test_work_of_one_run_only_is_another_program_and_kernels_may_be_the_librarys_choice():
    kinds = differences(run(), run(functions=("aten::mm", "aten::add"), kernels=("other_gemm",)))
    assert facts_of(kinds) == [
        ("program", "operators of this run only", "0 % of their time", "50 % of their time"),
        ("kernels", "kernels of this run only", "100 % of their time", "100 % of their time"),
    ]


@pytest.mark.parametrize(("rows", "expected"), [(8, "4,096"), (2, "1,024")])
def test_shapes_are_said_by_the_work_that_they_make(rows, expected):
    def work(n):
        return [("host", "aten::mm", f"[[{n},32],[32,16]]", '["float"]', 1.0, 10.0, 10.0)]

    kinds = differences(run(workload=work(4)), run(workload=work(rows)))
    assert facts_of(kinds) == [("shapes", "matrix products, multiplications", "2,048", expected)]


def test_hardware_says_how_much_of_the_change_is_in_equal_kernels():
    grid = [("gpu0", "gemm", "grid 4×1×1, block 32×1×1", None, 1.0, 10.0, None)]
    base = run(setup_of(trace()), workload=grid)
    longer = [(*grid[0][:5], 30.0, None)]
    other = replace(
        run(setup_of(trace(name="V100")), workload=longer),
        cycles=base.cycles.with_columns(pl.col("dur_ns") + 40),
    )
    (text,) = differences(base, other)["meaning"]
    assert text.endswith("kernels of the same name and grid take 10 ns → 30 ns per step, 50 % of the change")
