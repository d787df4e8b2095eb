from __future__ import annotations

import threading

import pytest

from stepscope.record.startup._stepscope_steps import Steps


class Profile:
    """Collects begins of steps."""

    def __init__(self) -> None:
        self.told: list[int] = []
        self.points: list[bool] = []
        self.is_near = self.is_over = self.has_own_marks = self.is_marking = False
        self.is_content_here = True
        self.n_moves = 0

    @property
    def runs_here(self) -> bool:
        return self.is_near

    def moves_here(self) -> None:
        self.n_moves += 1

    def step_begins(self, n: int) -> None:
        self.told.append(n)

    def safe_point(self, *, may_begin: bool) -> None:
        self.points.append(may_begin)

    def is_content(self) -> bool:
        return self.is_content_here

    def in_child(self) -> None:
        self.told.append(-1)


class HookLog:
    def __init__(self) -> None:
        self.facts: dict[str, object] = {}

    def add(self, **fields: object) -> None:
        self.facts.update(fields)


class Times:
    """Times of steps are tested on their own. Here, what was spent inside calls is collected."""

    def __init__(self) -> None:
        self.inside_ns: list[int] = []
        self.n_pauses = 0

    def worked(self, ns: int) -> None:
        self.inside_ns.append(ns)

    def ended(self, source: int, *, is_unlike: bool) -> None:
        pass

    def unlike(self) -> None:
        pass

    def paused(self) -> None:
        self.n_pauses += 1

    def flush(self) -> None:
        pass

    def in_child(self) -> None:
        pass


class Module:
    def __init__(self, *held: object, buffers: tuple[object, ...] = ()) -> None:
        self.held, self.kept = held, buffers

    def parameters(self):
        return iter(self.held)

    def buffers(self):
        return iter(self.kept)


class Optimizer:
    pass


@pytest.fixture
def profile() -> Profile:
    return Profile()


@pytest.fixture
def log() -> HookLog:
    return HookLog()


@pytest.fixture
def steps(profile, log) -> Steps:
    return Steps(profile, log, Times())


def optimize(steps: Steps, optimizer: Optimizer) -> None:
    steps.optimizer_begins()
    steps.optimizer_ended(optimizer)


def test_replays_of_graphs_are_steps_of_a_job_whose_model_is_hardly_called(steps, profile, log):
    model = Module(1)
    steps.module_called(model)  # warms up
    for _ in range(4):
        steps.replayed()
    assert profile.told == [0, 1, 2, 3]
    assert log.facts == {"step_source": "replays of graphs"}
    assert steps.model() is None


def test_a_model_that_is_called_more_often_than_graphs_are_replayed_marks_steps(steps, profile, log):
    model = Module(1)
    for _ in range(3):
        steps.module_called(model)
        steps.module_called(model)
        steps.replayed()
    assert profile.told == [0, 1, 2, 3, 4, 5]
    assert log.facts == {"step_source": "module calls"}


def test_steps_of_an_optimizer_that_went_into_a_graph_are_its_replays(steps, profile, log):
    optimizer = Optimizer()
    for _ in range(3):
        optimize(steps, optimizer)  # warms up
    steps.is_capturing = True
    optimize(steps, optimizer)
    steps.is_capturing = False
    for _ in range(63 + 4):
        steps.replayed()
    assert profile.told == [1, 2, 3, 0, 1, 2, 3]
    assert log.facts == {"step_source": "replays of graphs"}


def test_graphs_that_are_replayed_between_steps_of_an_optimizer_are_parts_of_steps(steps, profile, log):
    optimizer = Optimizer()
    for n in (1, 70, 200, 5):
        for _ in range(n):
            steps.replayed()
        optimize(steps, optimizer)
    assert profile.told[-3:] == [2, 3, 4]
    assert log.facts == {"step_source": "optimizer steps"}


@pytest.mark.parametrize(
    "name", ["step 1", "ProfilerStep#12", "train_step_3", "Iteration: 7", "batch-0", "train/iter 5", "step5"]
)
def test_ranges_that_number_steps_are_steps(steps, profile, log, name):
    steps.named_range(name)
    assert profile.told == [0]
    assert log.facts == {"step_source": "named ranges"}
    assert profile.has_own_marks == name.startswith("ProfilerStep")


@pytest.mark.parametrize("name", ["epoch 1", "forward", "step", "layer 3", "Optimizer.step#SGD.step", "", "1", 5, None])
def test_other_ranges_are_not(steps, profile, name):
    steps.named_range(name)
    assert profile.told == []


def test_the_first_kind_of_range_is_the_one(steps, profile):
    for name in ("step 8", "iter 0", "iter 1", "step 9"):
        steps.named_range(name)
    assert profile.told == [0, 1]


def test_our_own_marks_are_no_ranges_of_the_job(steps, profile):
    steps.marked()  # by stepscope.step(), so ranges may mark steps too
    profile.is_near = profile.is_marking = True
    steps.named_range("ProfilerStep#1")
    profile.is_marking = False
    steps.marked()
    assert (profile.told, profile.has_own_marks) == ([0, 1], False)


def test_ranges_come_before_optimizers_and_those_before_models(steps, profile):
    steps.module_called(Module(1))
    optimize(steps, Optimizer())
    steps.module_called(Module(1))
    steps.named_range("step 1")
    optimize(steps, Optimizer())
    assert profile.told == [0, 1, 0]


def test_what_tells_steps_stays_while_a_profile_is_near(steps, profile):
    optimizer = Optimizer()
    optimize(steps, optimizer)
    profile.is_near = True
    steps.named_range("step 1")
    optimize(steps, optimizer)
    assert profile.told == [1, 2]


def test_of_nested_optimizers_the_outermost_counts(steps, profile):
    inner, outer = Optimizer(), Optimizer()
    for _ in range(3):
        steps.optimizer_begins()
        optimize(steps, inner)
        steps.optimizer_ended(outer)
    assert profile.told == [1, 2, 3]


def test_a_step_that_fails_is_none(steps, profile):
    steps.optimizer_begins()
    steps.optimizer_ended(Optimizer(), stepped=False)
    assert profile.told == []
    optimize(steps, Optimizer())
    assert profile.told == [1]


def test_of_several_optimizers_the_first_counts_until_another_takes_over(steps, profile):
    first, second = Optimizer(), Optimizer()
    for _ in range(3):
        for optimizer in (first, second, second):
            optimize(steps, optimizer)
    assert profile.told == [1, 2, 3]
    for _ in range(9):
        optimize(steps, second)
    assert profile.told == [1, 2, 3, 4, 5]


def test_an_optimizer_that_is_gone_is_followed_by_the_next(steps, profile):
    optimize(steps, Optimizer())
    optimize(steps, Optimizer())
    assert profile.told == [1, 2]


def test_steps_are_enough_where_they_are_met(steps, profile):
    assert not steps.is_enough()
    optimize(steps, Optimizer())
    assert steps.is_enough()
    profile.is_content_here = False
    assert not steps.is_enough()


def test_calls_of_what_holds_nothing_are_no_steps(steps, profile):
    loss, model, quantized = Module(), Module(1), Module(buffers=(1,))
    for module in (loss, model, loss, quantized, model, loss):
        steps.module_called(module)
    assert profile.told == [0, 1]


def test_only_calls_that_mark_steps_are_timed(steps):
    loss, model = Module(), Module(1)
    assert not steps.module_called(loss)
    assert steps.module_called(model)
    steps.module_ended(500)
    steps.marked()  # a range that is a step: calls mark none any more
    assert not steps.module_called(model)
    steps.module_ended(700)
    assert steps._times.inside_ns == [500]


def test_copies_for_a_device_are_no_models(steps, profile):
    copy = Module(1)
    copy._is_replica = True
    steps.module_called(copy)
    assert profile.told == []


def test_the_model_that_is_called_most_leads(steps, profile):
    encoder, decoder = Module(1), Module(2)
    for module in (encoder, decoder, decoder, decoder, encoder, decoder):
        steps.module_called(module)
    assert profile.told == [0, 1, 2, 3]
    profile.is_near = True
    for _ in range(9):
        steps.module_called(encoder)
    steps.module_called(decoder)
    assert profile.told == [0, 1, 2, 3, 4]


def test_a_module_at_the_place_of_one_that_is_gone_is_another(steps, profile, monkeypatch):
    monkeypatch.setattr("stepscope.record.startup._stepscope_steps.id", lambda _: 1, raising=False)
    first, second = Module(1), Module(2)
    for module in (first, first, second):
        steps.module_called(module)
    assert profile.told == [0, 1]


def test_with_an_optimizer_calls_are_no_steps(steps, profile):
    steps.has_optimizer = True
    steps.module_called(Module(1))
    assert (profile.told, profile.points) == ([], [True])


def test_a_thread_is_known_by_its_calls(steps, profile):
    model = Module(1)
    thread = threading.Thread(target=lambda: [steps.module_called(model) for _ in range(5)])
    thread.start()
    thread.join()
    assert profile.points == [False, False, False, True, True]


@pytest.mark.parametrize(("silent_s", "told"), [(2.0, [0, 1, 2, 3, 4, 5, 6]), (0.5, [0, 1, 2, 3, 4])])
def test_a_thread_takes_over_if_the_one_that_tried_the_model_out_is_silent(steps, profile, monkeypatch, silent_s, told):
    now = [0]
    monkeypatch.setattr("stepscope.record.startup._stepscope_steps.time.monotonic_ns", lambda: now[0])
    model = Module(1)
    for _ in range(5):
        steps.module_called(model)
    profile.is_near = True
    now[0] += int(silent_s * 1e9)
    marks = []
    thread = threading.Thread(target=lambda: marks.extend(steps.module_called(model) for _ in range(12)))
    thread.start()
    thread.join()
    assert profile.told == told
    assert marks == [False] * 10 + [silent_s > 1] * 2
    assert profile.n_moves == steps._times.n_pauses == (silent_s > 1)


def test_a_forked_child_is_inside_of_no_step(steps, profile):
    steps.optimizer_begins()
    steps.in_child()
    optimize(steps, Optimizer())
    assert profile.told == [-1, 1]
