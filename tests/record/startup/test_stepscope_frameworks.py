"""The hooks of torch, paddle and jax on modules that have what the hooks use of them, and no more."""

from __future__ import annotations

import contextlib
import gzip
import importlib
import json
import os
import sys
import time
import types
from pathlib import Path

import pytest

import stepscope.record.startup
from stepscope.record.startup._stepscope_step_times import HEADER, MARK

FOLDER = Path(stepscope.record.startup.__file__).parent
TRACE = b'{"traceEvents": [{"cat": "cpu_op"}]}'


class HookLog:
    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)
        self.issues: dict[str, str] = {}
        self.facts: dict[str, object] = {}

    def issue(self, code: str, example: str, severity: str = "warning") -> None:  # noqa: ARG002  as the hook has it
        self.issues[code] = example

    def add(self, **fields: object) -> None:
        self.facts.update(fields)


@pytest.fixture
def log(tmp_path) -> HookLog:
    (tmp_path / ".job").mkdir()
    return HookLog(tmp_path)


@pytest.fixture
def ends(monkeypatch) -> list:
    """What is to be called when the process ends; in a forked child nothing is."""
    calls: list = []
    monkeypatch.setattr("atexit.register", calls.append)
    monkeypatch.setattr("os.register_at_fork", lambda **_: None)
    return calls


@pytest.fixture
def watch(monkeypatch, log, ends):  # noqa: ARG001  they must be there
    """Imports the hook as a job does, and has it watch a module."""
    monkeypatch.syspath_prepend(str(FOLDER))
    frameworks = importlib.import_module("_stepscope_frameworks")
    yield lambda name, module, steps="2:4", window="": frameworks.after_import(name, module, log, steps, window)
    for name in [name for name in sys.modules if name.startswith("_stepscope_")]:
        del sys.modules[name]


def module(name: str, **names: object) -> types.ModuleType:
    made = types.ModuleType(name)
    vars(made).update(names)
    return made


class FakeTorch:
    """A module like torch, and the calls that its profiler got."""

    def __init__(self, trace: bytes = TRACE) -> None:  # noqa: C901  classes, no branches
        calls = self.calls = []
        memory = self.memory = []
        functions = types.SimpleNamespace(is_compiling=lambda: False)
        self.inside = -1

        class Optimizer:
            def __init__(self) -> None:
                kind = type(self)
                if not hasattr(kind.step, "hooked"):
                    kind.step = self.profile_hook_step(kind.step)
                    kind.step.hooked = True

            @staticmethod
            def profile_hook_step(step):
                def wrapper(*args, **kwargs):
                    return step(*args, **kwargs)

                return wrapper

        class Sgd(Optimizer):
            def step(self, *, fails: bool = False) -> str:
                if fails:
                    raise ZeroDivisionError
                return "stepped"

        class Module:
            def _wrapped_call_impl(self, *args, **kwargs):
                return self.forward(*args, **kwargs)

            __call__ = _wrapped_call_impl

            def parameters(self):
                return iter([1])

            def buffers(self):
                return iter([])

            def forward(self, x):
                return x + 1

        class RecordFunction:
            def __init__(self, name: str) -> None:
                self.name = name

            def __enter__(self):
                calls.append(self.name)
                return self

            def __exit__(self, *_: object) -> None:
                calls.append("/" + self.name)

        class AutogradProfile:
            def __init__(self, *, profile_memory=False, use_device=None, **_: object) -> None:  # noqa: ARG002
                memory.append(profile_memory)

            def _prepare_trace(self) -> None:
                calls.append("prepare")

        class Kineto:
            def __init__(self, activities, *, profile_memory: bool, **_: object) -> None:
                calls.append(activities)
                self.profiler, self.memory = None, profile_memory

            def prepare_trace(self) -> None:
                self.profiler = torch.autograd.profiler.profile(profile_memory=self.memory)
                self.profiler._prepare_trace()

            def start_trace(self) -> None:
                calls.append("start")

            def stop_trace(self) -> None:
                calls.append("stop")

            def export_chrome_trace(self, path: str) -> None:
                Path(path).write_bytes(trace)

        class Scaler:
            def step(self, optimizer, *, leaves_out: bool = False):
                return None if leaves_out else optimizer.step()

        class Graph:
            def capture_begin(self, pool: object = None) -> None:
                self.pool = pool

            def capture_end(self) -> None:
                calls.append("captured")

            def replay(self) -> None:
                calls.append("replay")

        self.distributed = types.SimpleNamespace(
            is_available=lambda: True, is_initialized=lambda: self.rank is not None, get_rank=lambda: self.rank
        )
        self.rank: int | None = None
        torch = self.module = module(
            "torch",
            __version__="9.9",
            optim=types.SimpleNamespace(Optimizer=Optimizer, SGD=Sgd),
            nn=types.SimpleNamespace(Module=Module),
            autograd=types.SimpleNamespace(
                profiler=types.SimpleNamespace(record_function=RecordFunction, profile=AutogradProfile),
                _profiler_enabled=lambda: False,
            ),
            profiler=types.SimpleNamespace(
                _KinetoProfile=Kineto, record_function=RecordFunction, ProfilerActivity=types.SimpleNamespace(CPU="cpu")
            ),
            cuda=types.SimpleNamespace(
                is_initialized=lambda: False, amp=types.SimpleNamespace(GradScaler=Scaler), CUDAGraph=Graph
            ),
            version=types.SimpleNamespace(cuda="13.0"),
            compiler=functions,
            distributed=self.distributed,
            _C=types.SimpleNamespace(_current_graph_task_id=lambda: self.inside),
        )


WHOLE = [["cpu"], "prepare", "start", "ProfilerStep#2", "/ProfilerStep#2", "ProfilerStep#3", "/ProfilerStep#3", "stop"]


def test_torch_is_profiled_by_optimizer_steps(watch, log, ends, tmp_path, monkeypatch):
    monkeypatch.delitem(sys.modules, "torch._inductor", raising=False)
    fake = FakeTorch()
    watch("torch", fake.module)
    torch = fake.module
    fake.rank = 3
    optimizer = torch.optim.SGD()
    model = torch.nn.Module()
    for _ in range(6):
        assert model(1) == 2
        assert optimizer.step() == "stepped"
    with pytest.raises(ZeroDivisionError):
        optimizer.step(fails=True)
    assert fake.calls == WHOLE
    with gzip.open(tmp_path / "rank3.pt.trace.json.gz") as file:
        assert file.read() == TRACE
    ends[0]()
    assert log.facts == {"torch": "9.9", "step_source": "optimizer steps", "steps": 6}
    assert log.issues == {}


def test_replays_of_a_graph_are_steps_and_what_is_captured_is_not(watch, log):
    fake = FakeTorch()
    watch("torch", fake.module)
    torch = fake.module
    optimizer, model, graph = torch.optim.SGD(), torch.nn.Module(), torch.cuda.CUDAGraph()
    graph.capture_begin("pool")
    model(1)
    optimizer.step()
    graph.capture_end()
    for _ in range(70):
        graph.replay()
    assert (graph.pool, fake.calls.count("captured"), fake.calls.count("replay")) == ("pool", 1, 70)
    assert log.facts["step_source"] == "replays of graphs"
    assert "ProfilerStep#2" in fake.calls


def test_a_graph_that_a_model_s_call_replays_is_no_step(watch, log):
    fake = FakeTorch()
    watch("torch", fake.module)
    torch = fake.module
    graph = torch.cuda.CUDAGraph()

    class Model(torch.nn.Module):
        def forward(self, x):
            graph.replay()
            graph.replay()
            return x

    model = Model()
    for _ in range(3):
        model(1)
    assert log.facts["step_source"] == "module calls"


@pytest.mark.parametrize("imported", [False, True], ids=["without inductor", "with inductor"])
@pytest.mark.parametrize("wanted", ["", "1"], ids=["", "memory"])
def test_torch_tells_what_tensors_hold_if_that_is_wanted(watch, monkeypatch, imported, wanted):
    monkeypatch.setenv("STEPSCOPE_RECORD_MEMORY", wanted)
    monkeypatch.delitem(sys.modules, "torch._inductor", raising=False)
    if imported:
        monkeypatch.setitem(sys.modules, "torch._inductor", module("torch._inductor"))
    fake = FakeTorch()
    watch("torch", fake.module)
    optimizer = fake.module.optim.SGD()
    for _ in range(6):
        optimizer.step()
    assert fake.memory == [bool(wanted)]


def test_torch_is_profiled_by_calls_of_models(watch, log, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch._inductor", module("torch._inductor"))
    fake = FakeTorch()
    watch("torch", fake.module)
    kind = fake.module.nn.Module
    outer, inner = type("Model", (kind,), {})(), kind()
    outer.forward = lambda x: inner(x) * 2
    for _ in range(40):
        assert outer(1) == 4
    assert fake.calls == WHOLE
    assert log.facts["step_source"] == "module calls"
    assert (tmp_path / f"pid{os.getpid()}.pt.trace.json.gz").exists()
    # It is as it was, but for being another function; only the model's own calls are still counted.
    assert kind.__call__.__code__ is kind._wrapped_call_impl.__code__
    log.steps.at_exit()
    times = (tmp_path / f"pid{os.getpid()}.steps").read_bytes()
    assert sum(n for _, n, _, _ in MARK.iter_unpack(times[HEADER.size :])) == 39


def test_torch_is_profiled_by_named_ranges_and_scalers(watch, log):
    fake = FakeTorch()
    watch("torch", fake.module)
    optimizer, scaler = fake.module.optim.SGD(), fake.module.cuda.amp.GradScaler()
    scaler.step(optimizer, leaves_out=True)
    assert scaler.step(optimizer) == "stepped"
    assert fake.calls[1:] == WHOLE[1:4]
    assert log.facts["step_source"] == "optimizer steps"
    with fake.module.autograd.profiler.record_function("step 9"):
        pass
    assert log.facts["step_source"] == "optimizer steps"  # it began so


def test_torch_inside_of_backward_is_waited_for(watch):
    fake = FakeTorch()
    watch("torch", fake.module)
    optimizer, model = fake.module.optim.SGD(), fake.module.nn.Module()
    for _ in range(6):
        model(1)
        fake.inside = 5
        optimizer.step()
        fake.inside = -1
    assert fake.calls == WHOLE


def test_a_recorded_graph_is_not_disturbed(watch):
    fake = FakeTorch()
    fake.module.cuda.is_initialized = lambda: True
    fake.module.cuda.is_current_stream_capturing = lambda: True
    watch("torch", fake.module)
    optimizer = fake.module.optim.SGD()
    for _ in range(3):
        optimizer.step()
    assert fake.calls == []
    fake.module.cuda.is_current_stream_capturing = lambda: False
    optimizer.step()
    assert fake.calls[:2] == [None, "prepare"]  # all activities: the job uses CUDA


def test_torchs_own_profiler_comes_first(watch, log):
    fake = FakeTorch()
    watch("torch", fake.module)
    fake.module.autograd.profiler.profile()._prepare_trace()
    optimizer = fake.module.optim.SGD()
    for _ in range(6):
        optimizer.step()
    assert fake.calls == ["prepare"]
    assert "uses torch.profiler itself" in log.issues["profile_left_out"]


@pytest.mark.parametrize("is_on", [True, False])
def test_processes_that_load_data_or_are_profiled_are_left_out(watch, log, monkeypatch, is_on):
    fake = FakeTorch()
    fake.module.autograd._profiler_enabled = lambda: is_on
    if not is_on:
        monkeypatch.setitem(sys.modules, "torch.utils.data._utils.worker", module("worker", _worker_info=1))
    watch("torch", fake.module)
    optimizer = fake.module.optim.SGD()
    optimizer.step()
    assert fake.calls == []
    assert list(log.issues) == (["profile_left_out"] if is_on else [])


def test_a_profile_of_nothing_is_not_left(watch, tmp_path):
    fake = FakeTorch(trace=b'{"traceEvents": []}')
    watch("torch", fake.module)
    optimizer = fake.module.optim.SGD()
    for _ in range(6):
        optimizer.step()
    assert not [path for path in tmp_path.iterdir() if path.name != ".job"]


def test_a_helper_that_compiles_is_left_alone(watch, log, monkeypatch):
    monkeypatch.setattr(sys, "orig_argv", ["python", "/lib/torch/_inductor/compile_worker/__main__.py"])
    fake = FakeTorch()
    before = fake.module.nn.Module.__call__
    watch("torch", fake.module)
    assert fake.module.nn.Module.__call__ is before
    assert log.facts == {"torch": "9.9"}


@pytest.mark.parametrize("name", ["torch", "paddle", "jax"])
def test_what_cannot_be_watched_is_told(watch, log, name):
    old = module(name, optim=types.SimpleNamespace(Optimizer=object), profiler=None)
    watch(name, old)
    assert "does not show when" in log.issues["profile_left_out"]


def test_without_a_profile_the_framework_is_noted_alone(watch, log, monkeypatch):
    monkeypatch.setenv("RANK", "7")
    watch("torch", FakeTorch().module, steps="")
    assert log.facts == {"torch": "9.9", "rank": 7}


@pytest.mark.parametrize("frames", ["skip_code", "strategy"])
def test_torch_compile_is_told_to_leave_us_out(watch, frames):
    fake = FakeTorch()
    told = []
    frame = types.SimpleNamespace(skip_code=told.append)
    if frames == "strategy":
        frame = types.SimpleNamespace(
            _FrameAction=types.SimpleNamespace(SKIP="skip", DEFAULT="default"),
            _FrameExecStrategy=lambda *both: both,
            set_code_exec_strategy=lambda code, both: told.append((code, both)),
        )
    fake.module._C._dynamo = types.SimpleNamespace(eval_frame=frame)
    watch("torch", fake.module)
    assert len(told) > 20
    if frames == "strategy":
        assert {both for _, both in told} == {("skip", "skip"), ("skip", "default")}


def test_code_that_is_compiled_is_not_counted(watch):
    fake = FakeTorch()
    fake.module.compiler.is_compiling = lambda: True
    watch("torch", fake.module)
    optimizer, model = fake.module.optim.SGD(), fake.module.nn.Module()
    for _ in range(6):
        assert (model(1), optimizer.step()) == (2, "stepped")
    assert fake.calls == []


class FakePaddle:
    """A module like paddle, and the calls that its profiler got."""

    def __init__(self, monkeypatch) -> None:  # noqa: C901  classes, no branches
        calls = self.calls = []
        self.taken = False

        class Optimizer:
            def __init__(self, rate: float) -> None:
                self.rate = rate

            def step(self) -> str:
                return "stepped"

            def minimize(self, *, fails: bool = False) -> None:
                if fails:
                    raise ZeroDivisionError

        class Sgd(Optimizer):
            pass

        class Scaler:
            def step(self, optimizer, *, leaves_out: bool = False) -> None:
                if not leaves_out:
                    optimizer.step()

        class Range:
            def __init__(self, name: str, **_: object) -> None:
                self.name = name

            def begin(self) -> None:
                calls.append(self.name)

            def end(self) -> None:
                calls.append("/" + self.name)

        fake = self

        def wrap(step):
            def wrapper(optimizer):
                return step(optimizer)

            return wrapper

        class Profiler:
            def __init__(self, **_: object) -> None:
                self.profiler = None
                if not fake.taken:
                    native = ("prepare", "start", "stop")
                    self.profiler = types.SimpleNamespace(**{n: (lambda n=n: calls.append(n)) for n in native})
                if "step" not in vars(Sgd):  # Paddle wraps them when the first profiler is made
                    Sgd.step = wrap(Sgd.step)

            def export(self, path: str, format: str) -> None:  # noqa: A002  as Paddle has it
                Path(path).write_bytes(b"profile " + format.encode())

        parts = module(
            "paddle.profiler.profiler",
            enable_op_info_recorder=lambda: None,
            disable_op_info_recorder=lambda: None,
            utils=types.SimpleNamespace(_is_profiler_used=False),
        )
        monkeypatch.setitem(sys.modules, "paddle.profiler.profiler", parts)
        self.module = module(
            "paddle",
            __version__="3.9",
            optimizer=types.SimpleNamespace(Optimizer=Optimizer, SGD=Sgd),
            amp=types.SimpleNamespace(GradScaler=Scaler),
            profiler=types.SimpleNamespace(
                Profiler=Profiler, RecordEvent=Range, TracerEventType=types.SimpleNamespace(ProfileStep=1)
            ),
        )


def test_paddle_is_profiled_by_optimizer_steps(watch, log, tmp_path, monkeypatch):
    monkeypatch.setenv("PADDLE_TRAINER_ID", "1")
    monkeypatch.setenv("PADDLE_TRAINERS_NUM", "4")
    fake = FakePaddle(monkeypatch)
    watch("paddle", fake.module)
    optimizer, scaler = fake.module.optimizer.SGD(0.1), fake.module.amp.GradScaler()
    fake.module.optimizer.SGD(0.2)
    assert optimizer.step() == "stepped"
    with pytest.raises(ZeroDivisionError):
        optimizer.minimize(fails=True)
    scaler.step(optimizer, leaves_out=True)
    scaler.step(optimizer)
    optimizer.minimize()
    assert fake.calls == [
        "prepare", "start", "ProfileStep#2", "/ProfileStep#2", "ProfileStep#3", "/ProfileStep#3", "stop",
    ]  # fmt: skip
    with gzip.open(tmp_path / "rank1.paddle_trace.pb.gz") as file:
        assert file.read() == b"profile pb"
    assert log.facts == {"paddle": "3.9", "rank": 1, "step_source": "optimizer steps"}


def test_paddles_own_profiler_comes_first(watch, log, monkeypatch):
    fake = FakePaddle(monkeypatch)
    watch("paddle", fake.module)
    fake.module.profiler.Profiler()
    optimizer = fake.module.optimizer.SGD(0.1)
    for _ in range(5):
        optimizer.step()
    assert fake.calls == []
    assert "uses paddle.profiler itself" in log.issues["profile_left_out"]


def test_a_profiler_of_paddles_that_was_made_before_is_met(watch, log, monkeypatch):
    fake = FakePaddle(monkeypatch)
    fake.taken = True
    watch("paddle", fake.module)
    fake.module.optimizer.SGD(0.1).step()
    assert "itself" in log.issues["profile_failed"]


def test_where_paddle_loads_data_it_is_left_alone(watch, log, monkeypatch):
    fake = FakePaddle(monkeypatch)
    monkeypatch.setitem(sys.modules, "paddle.io.dataloader.worker", module("worker", _worker_info=1))
    watch("paddle", fake.module)
    fake.module.optimizer.SGD(0.1).step()
    assert (fake.calls, log.issues) == ([], {})


class FakeJax:
    """A module like jax, and the calls that its profiler got."""

    def __init__(self, monkeypatch, *, leaves: bool = True) -> None:
        calls = self.calls = []

        class Trace(contextlib.AbstractContextManager):
            def __init__(self, name: str) -> None:
                self.name = name

            def __enter__(self):
                calls.append(self.name)
                return self

            def __exit__(self, *_: object) -> None:
                calls.append("/" + self.name)

        class Step(Trace):
            def __init__(self, name: str, **_: object) -> None:
                super().__init__(name)

        def start_trace(into: str, **words: object) -> None:
            calls.append(("start", *(options.python_tracer_level for options in words.values())))
            run = Path(into) / "plugins" / "profile" / "now"
            run.mkdir(parents=True)
            if leaves:
                with gzip.open(run / "host.trace.json.gz", "wb") as file:
                    file.write(TRACE)
                (run / "host.xplane.pb").write_bytes(b"")

        planes = [
            types.SimpleNamespace(stats=[("process_id", 1)]),
            types.SimpleNamespace(stats=[("profile_start_time", 1234567890)]),
        ]
        read = types.SimpleNamespace(from_file=lambda _: types.SimpleNamespace(planes=planes))
        inner = module("jax._src.profiler", _profile_state=types.SimpleNamespace(profile_session=None))
        self.state = inner._profile_state
        monkeypatch.setitem(sys.modules, "jax._src.profiler", inner)
        self.module = module(
            "jax",
            __version__="1.0",
            profiler=types.SimpleNamespace(
                StepTraceAnnotation=Step,
                TraceAnnotation=Trace,
                start_trace=start_trace,
                stop_trace=lambda: calls.append("stop"),
                ProfileOptions=types.SimpleNamespace,
                ProfileData=read,
            ),
        )

    def step(self) -> None:
        with self.module.profiler.StepTraceAnnotation("train", step_num=5):
            pass


@pytest.mark.parametrize("has_new", [True, False])
def test_jax_is_profiled_by_its_marks(watch, log, tmp_path, monkeypatch, has_new):
    fake = FakeJax(monkeypatch)
    if not has_new:
        del fake.module.profiler.ProfileOptions, fake.module.profiler.ProfileData
        state = types.SimpleNamespace(num_processes=4, process_id=2)
        monkeypatch.setitem(sys.modules, "jax._src.distributed", module("distributed", global_state=state))
    watch("jax", fake.module)
    for _ in range(6):
        fake.step()
    begun, step = ("start", 0) if has_new else ("start",), ["train", "/train"]
    assert fake.calls == [
        *step * 2, begun, "ProfilerStep#2", *step, "/ProfilerStep#2", "ProfilerStep#3", *step, "/ProfilerStep#3",
        "stop", *step * 2,
    ]  # fmt: skip
    name = f"pid{os.getpid()}" if has_new else "rank2"
    with gzip.open(tmp_path / f"{name}.jax.trace.json.gz") as file:
        found = json.loads(file.read())
    assert found.keys() == {"baseTimeNanoseconds", "jax_version", "traceEvents"}
    assert (found["baseTimeNanoseconds"] == 1234567890) is has_new
    assert log.facts["step_source"] == "named ranges"
    assert not list((tmp_path / ".job").glob("jax*"))


def test_jax_that_leaves_nothing_is_told(watch, log, monkeypatch):
    fake = FakeJax(monkeypatch, leaves=False)
    watch("jax", fake.module)
    for _ in range(6):
        fake.step()
    assert "left no trace.json.gz" in log.issues["profile_failed"]


@pytest.mark.parametrize("began_before", [True, False])
def test_jaxs_own_profile_comes_first(watch, log, monkeypatch, tmp_path, began_before):
    fake = FakeJax(monkeypatch)
    if began_before:
        fake.state.profile_session = object()
    watch("jax", fake.module)
    if not began_before:
        fake.module.profiler.start_trace(str(tmp_path / "own"))
    for _ in range(6):
        fake.step()
    assert "stop" not in fake.calls
    assert "uses jax.profiler itself" in log.issues["profile_left_out"]


def test_a_time_is_met_without_steps(watch, log, monkeypatch, tmp_path):
    fake = FakeJax(monkeypatch)
    import time

    now = time.monotonic_ns()
    watch("jax", fake.module, "", f"{now}:{now + 100_000_000}")
    deadline = time.monotonic() + 30
    while not list(tmp_path.glob("*.gz")) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert fake.calls == [("start", 0), "stop"]
    assert log.issues == {}


class FakeMemory:
    """torch.cuda of a torch with CUDA, as far as the history of memory needs it."""

    def __init__(self, torch: types.ModuleType) -> None:
        self.torch, self.later, self.wanted = torch, [], {}
        torch.cuda._lazy_call = self.later.append
        torch._C._cuda_attach_out_of_memory_observer = lambda observer: vars(self).update(observer=observer)

        def _record_memory_history_impl(enabled, context="all", stacks="all", max_entries=1, device=None):  # noqa: ARG001
            return None

        torch.cuda.memory = types.SimpleNamespace(
            _record_memory_history_impl=_record_memory_history_impl,
            _record_memory_history=lambda _enabled, **wanted: self.wanted.update(wanted),
            _dump_snapshot=lambda path: Path(path).write_bytes(b"snapshot"),
        )

    def initialise(self) -> None:
        for call in self.later:
            call()


@pytest.fixture
def fake_memory(watch, monkeypatch):
    monkeypatch.setenv("STEPSCOPE_RECORD_SNAPSHOTS", "1")
    fake = FakeTorch()
    fake.rank = 3
    memory = FakeMemory(fake.module)
    watch("torch", fake.module, steps="")
    return memory


def test_the_history_of_memory_begins_with_cuda_and_is_written_at_the_end(fake_memory, ends, log, tmp_path):
    end = ends[0]
    end()
    assert not list(tmp_path.glob("*.pickle"))
    fake_memory.initialise()
    assert fake_memory.wanted == {"stacks": "python", "max_entries": 100_000}
    end()
    assert (tmp_path / "rank3.memory.pickle").read_bytes() == b"snapshot"
    assert log.issues == {}


def test_a_snapshot_is_written_when_memory_runs_out_and_when_one_is_asked_for(fake_memory, tmp_path, ends):
    fake_memory.initialise()
    for _ in range(7):  # the job may survive that, and try again
        fake_memory.observer(0, 1 << 30, 80 << 30, 1 << 20)
    names = {path.name for path in tmp_path.glob("*.pickle")}
    assert names == {f"rank3.memory.oom-{n}.pickle" for n in range(1, 6)}
    (tmp_path / ".job" / "memory-snapshots").write_bytes(b"\n")
    deadline = time.monotonic() + 10
    while not (tmp_path / "rank3.memory.asked-1.pickle").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    ends[0]()


def test_a_snapshot_that_cannot_be_written_does_not_reach_the_job(fake_memory, log, ends):
    def fails(_path: str) -> None:
        raise OSError(28, "No space left on device")

    fake_memory.initialise()
    fake_memory.torch.cuda.memory._dump_snapshot = fails
    fake_memory.observer(0, 1, 2, 3)
    ends[0]()
    assert "No space left" in log.issues["memory_snapshot_failed"]


def test_a_torch_without_a_history_of_memory_says_so(watch, monkeypatch, log):
    monkeypatch.setenv("STEPSCOPE_RECORD_SNAPSHOTS", "1")
    watch("torch", FakeTorch().module, steps="")
    assert "torch 2.0" in log.issues["memory_snapshot_failed"]
