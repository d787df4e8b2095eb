"""Predictions against small programs whose changed steps are worked out by hand, and a sample of random ones."""

from __future__ import annotations

import pytest
from predictions import Answer, ask, first_right, kendall, true_steps
from step_programs import random_case
from step_recordings import write
from step_simulator import Close, Host, Launch, Open, Program, Record, Step, Sync, Work, simulate

import stepscope

US = 1000


def operator(host_us, kernel_us, name="gemm_kernel"):
    """An operator that computes, and then launches in 5 µs; its kernel starts 2 µs later, 1 µs after another."""
    work = Work(name, kernel_us * US, "kernel", 2 * US, US)
    return (Open("aten::mm"), Host(host_us * US), Launch(7, (work,), 5 * US), Close())


def predicted(tmp_path, body, *changes, n=9, **program):
    steps = tuple(i for k in range(n) for i in (Step(), *(body(k) if callable(body) else body)))
    run = simulate(Program(((*steps, Step()),), first_step=4, **program))
    write(run.ranks[0], 4, tmp_path / "trace.json")
    row = stepscope.predict(str(tmp_path / "trace.json"), list(changes)).row(0, named=True)
    return row["step_ns"] / US, row["predicted_ns"] / US


SYNCED = (*operator(30, 50) * 4, Sync("stream", 7, 2 * US), Host(60 * US))


@pytest.mark.parametrize(
    ("change", "step_us"),
    [
        ("host: 1x", 300),  # launches at 35, 70, 105, 140; the last kernel starts at 190, for each lasts 50 and 1
        ("kernel ~ gemm: 2x", 227),  # the host binds: 140, the delay of 2, 25, and 60 after it
        ("host: 2x", 252.5),  # 17.5 and 2, four kernels with three gaps, 30
        ("sync: removed", 204),  # the device binds: four kernels with gaps
    ],
)
def test_a_step_that_waits_for_its_kernels(change, step_us, tmp_path):
    assert predicted(tmp_path, SYNCED, change) == (300, pytest.approx(step_us, rel=0.002))


@pytest.mark.parametrize(("change", "step_us"), [("kernel ~ gemm: 2x", 102), ("host: 2x", 202)])
def test_a_host_that_waits_for_the_step_before(change, step_us, tmp_path):
    """The host needs 10 + 10 + 80 and 2 for calls; two kernels of 100 with their gaps need 202."""

    def body(k):
        waits = (Sync("event", (k - 1) % 2, US),) if k else ()
        return (*operator(5, 100) * 2, Host(80 * US), Record(k % 2, 7, US), *waits)

    assert predicted(tmp_path, body, change) == (202, pytest.approx(step_us, rel=0.002))


def test_kernels_get_no_faster_than_the_host_that_launches_them(tmp_path):
    """Eight times 15 + 5 on the host."""
    assert predicted(tmp_path, operator(15, 16) * 8, "kernel ~ gemm: 2x") == (160, pytest.approx(160, rel=0.002))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [7, 16])
def test_random_programs(seed, tmp_path):
    """One bound by its host, one whose queue is full."""
    case = random_case(seed)
    answers = [a for a in ask(case, true_steps(case), tmp_path) if "graphs" not in str(a.texts)]
    assert [a.texts for a in answers if abs(a.error) > 0.01] == []


def test_orders_are_compared_where_truths_differ():
    def answer(truth, said):
        return Answer(0, frozenset(), (), 100, truth, 100, said)

    right = [answer(50, 55), answer(80, 70), answer(80.1, 60), answer(100, 100)]
    assert kendall(right) == 1
    assert first_right(right)
    assert kendall([answer(50, 90), answer(80, 70)]) == -1
    assert not first_right([answer(50, 90), answer(80, 70)])
    assert first_right([answer(100, 90)]) is None
