from __future__ import annotations

from device_traces import BACKWARD, HOST, STREAM_7, TRACKS_5, kernel, spans_of

from stepscope.analyses.ranks.phases import phase_intervals
from stepscope.core.trace import Meta, Trace

US = 1000
ENGINE = "autograd::engine::evaluate_function: MmBackward0"


def phases(*rows, on_device: bool = False) -> dict[str, list[tuple[int, int]]]:
    trace = Trace(Meta("x", "kineto"), {"tracks": TRACKS_5, "spans": spans_of(*rows)})
    found = phase_intervals(trace, on_device=on_device)
    return {name: list(zip(*(a.tolist() for a in iv), strict=True)) for name, iv in found.items()}


def test_phases_are_told_by_the_names_of_pytorchs_engine_and_optimizer():
    found = phases(
        (HOST, 0, 5, "enumerate(DataLoader)", "dataloader"),
        (HOST, 500 * US, 10 * US, "Optimizer.step#AdamW.step", "user_range"),
        (BACKWARD, 100 * US, 10 * US, ENGINE, "operator"),
        (BACKWARD, 120 * US, 10 * US, ENGINE, "operator"),
        (BACKWARD, 9000 * US, 10 * US, ENGINE, "operator"),
    )
    assert found["data loading"] == [(0, 5)]
    assert found["backward"] == [(100 * US, 130 * US), (9000 * US, 9010 * US)]
    assert found["optimizer"] == [(500 * US, 510 * US)]


def test_on_a_device_work_belongs_to_the_phase_that_queued_it():
    found = phases(
        (BACKWARD, 100, 50, ENGINE, "operator"),
        (BACKWARD, 110, 5, "cudaLaunchKernel", "runtime"),
        (BACKWARD, 400, 5, "cudaLaunchKernel", "runtime"),
        kernel(STREAM_7, 900, 20, launch=1),
        kernel(STREAM_7, 950, 20, launch=2),
        kernel(STREAM_7, 980, 20),
        on_device=True,
    )
    assert found["backward"] == [(900, 920)]
    assert found["optimizer"] == []


def test_other_programs_have_no_phases():
    assert phases((HOST, 0, 5, "aten::mm", "operator")) == {"data loading": []}
