from __future__ import annotations

import json
import os
import re
import textwrap

import polars as pl
import pytest

import stepscope

TRAIN = """
import os, sys, time, torch
torch.set_num_threads(1)
model = torch.nn.Linear(64, 64)
first, second = (torch.optim.SGD(model.parameters(), lr=0.1), torch.optim.Adam(model.parameters()))
def step():
    mark = time.time_ns()
    with torch.profiler.record_function(f"mark {mark}"):
        pass
    model(torch.ones(8, 64)).sum().backward()
    first.step()
    second.step()
"""


@pytest.fixture
def train(record, torch_python):
    """Records a job of torch with some code after the definitions above."""

    def run(code: str, *words: str, **environment: str):
        env = {**os.environ, **environment}
        return record(*words, "--", torch_python, "-c", TRAIN + code, env=env)

    return run


def codes(meta) -> dict[str, str]:
    return {issue["code"]: issue["example"] for issue in meta["issues"]}


def test_steps_are_found_and_the_wanted_ones_profiled(train, meta):
    done = train("for _ in range(12): step()\nprint('done')", "--steps", "3:7", RANK="2")
    assert (done.stdout, done.stderr, done.returncode) == ("done\n", "", 0)
    assert {re.sub(r"pid\d+", "pid", path.name) for path in done.folder.iterdir()} == {
        "meta.json", "counters.csv.gz", "rank2.pt.trace.json.gz", "pid.steps",
    }  # fmt: skip
    trace = stepscope.load(done.folder / "rank2.pt.trace.json.gz")
    assert trace.steps["step"].to_list() == [3, 4, 5, 6]
    names = trace.spans["name"].cast(pl.String)
    assert names.str.starts_with("Optimizer.step#SGD").sum() == 4
    assert trace.ops["input_shapes"].drop_nulls().len() > 0
    assert trace.allocations.is_empty()
    (process,) = meta(done.folder)["processes"]
    assert process["steps"] == 12
    assert process["torch"].startswith("2.")
    assert process["pid"] in trace.counters["pid"].to_list()
    assert not [code for code in codes(meta(done.folder)) if code.startswith("profile")]


def test_what_tensors_hold_is_told_if_that_is_wanted(train):
    code = "held = []\nfor _ in range(8):\n    step()\n    held.append(torch.ones(1 << 18))"
    told = train(code, "--steps", "2:7", "--memory", RANK="0").folder / "rank0.pt.trace.json.gz"
    (growth,) = stepscope.show(told, "memory")["growth_bytes_per_step"].to_list()
    assert growth == pytest.approx(1 << 20, rel=0.01)


def test_trace_and_counters_share_a_clock_to_100_us(train):
    done = train("for _ in range(60): step(); time.sleep(0.002)", "--steps", "5:55")
    trace = stepscope.load(next(done.folder.glob("*.pt.trace.json.gz")))
    marks = trace.spans.filter(pl.col("name").cast(pl.String).str.starts_with("mark "))
    told = marks["name"].cast(pl.String).str.slice(5).cast(pl.Int64) - trace.meta.origin_unix_ns
    # The mark is taken just before the range begins: what is between them is the job's own time.
    late = (marks["ts_ns"] - told).sort()
    assert -20_000 < late.median() < 100_000
    assert trace.counters.height > 0


def test_a_job_that_ends_early_leaves_what_it_had(train, meta):
    done = train("for _ in range(5): step()", "--steps", "2:50")
    trace = stepscope.load(next(done.folder.glob("pid*.pt.trace.json.gz")))
    assert trace.steps["step"].to_list()[:3] == [2, 3, 4]
    assert "before step 50" in codes(meta(done.folder))["profile_short"]


def test_a_job_of_too_few_steps_says_so(train, meta):
    done = train("step()", "--steps", "2:50")
    assert not list(done.folder.glob("*.pt.trace.json.gz"))
    assert "after 1 (optimizer steps)" in codes(meta(done.folder))["profile_missing"]


def test_a_job_that_profiles_itself_is_left_alone(train, meta, tmp_path):
    own = tmp_path / "own.json"
    code = f"""
with torch.profiler.profile() as profiler:
    for _ in range(6): step()
profiler.export_chrome_trace({str(own)!r})
"""
    done = train(code, "--steps", "2:4")
    assert done.returncode == 0
    assert "mark" in own.read_text()
    assert not list(done.folder.glob("*.pt.trace.json.gz"))
    assert "itself" in codes(meta(done.folder))["profile_left_out"]


def test_a_job_that_begins_to_profile_itself_gets_its_profiler(train, meta, tmp_path):
    own = tmp_path / "own.json"
    code = f"""
for _ in range(5): step()
with torch.profiler.profile() as profiler:
    step()
profiler.export_chrome_trace({str(own)!r})
"""
    done = train(code, "--steps", "2:50")
    assert (done.returncode, json.loads(own.read_text())["traceEvents"] != []) == (0, True)
    trace = stepscope.load(next(done.folder.glob("pid*.pt.trace.json.gz")))
    assert trace.steps["step"].to_list()[:3] == [2, 3, 4]
    assert "ends at step 5" in codes(meta(done.folder))["profile_cut"]


def test_forked_children_train_and_profile_for_themselves(train):
    code = """
pid = os.fork()
for _ in range(6): step()
if pid:
    os.waitpid(pid, 0)
"""
    done = train(code, "--steps", "2:4")
    assert done.returncode == 0
    assert len(list(done.folder.glob("pid*.pt.trace.json.gz"))) == 2


def test_without_the_profiler_there_is_none(train):
    done = train("for _ in range(4): step()", "--no-profiler")
    assert not list(done.folder.glob("*.pt.trace.json.gz"))


def test_ranks_of_torchrun_are_profiled_each(record, torch_python, tmp_path):
    script = tmp_path / "ddp.py"
    script.write_text("""
import torch, torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(6):
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()
dist.destroy_process_group()
""")
    launch = [torch_python, "-m", "torch.distributed.run", "--nproc-per-node", "2", str(script)]
    done = record("--steps", "2:4", "--", *launch)
    assert done.returncode == 0
    run = stepscope.load_run(done.folder)
    assert [(trace.rank, trace.steps["step"].to_list()) for trace in run] == [(0, [2, 3]), (1, [2, 3])]


def test_a_slow_step_is_dumped_with_a_profile_of_the_next_ones(train, meta):
    code = """
for i in range(120):
    time.sleep(0.3 if i == 60 else 0.02)
    step()
time.sleep(1.5)
"""
    done = train(code, "--steps", "2:5", "--trigger", "3x", "--keep", "30s")
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)
    dumps = sorted(path.name for path in done.folder.glob("dump-*"))
    # On a busy machine others may be as slow.
    found = next(each for each in meta(done.folder)["dumps"] if each["step"] == 60)
    assert found["folder"] in dumps
    assert found["step_ns"] > 3 * found["median_ns"] > 0
    folder = done.folder / found["folder"]
    [trace] = stepscope.load_run(folder)
    assert trace.meta.format == "kineto"
    first = trace.steps["step"][0]
    assert trace.steps["step"].to_list() == [first, first + 1, first + 2]
    assert 60 < first < 110
    assert "step 60 of process" in codes(meta(folder))["slow_step"]
    # Its counters reach back to the slow step, which ended before the profile begins.
    unix_ns = trace.counters["ts_ns"] + trace.meta.origin_unix_ns
    assert unix_ns.min() < found["unix_ns"] - found["step_ns"]
    assert unix_ns.max() > found["unix_ns"]
    [whole] = stepscope.load_run(done.folder)
    assert whole.steps["step"].to_list() == [2, 3, 4]
    assert not list(done.folder.rglob(".*"))


def test_without_a_profiler_slow_steps_are_dumped_all_the_same(train, meta):
    done = train("for i in range(40): time.sleep(0.5 if i == 30 else 0.01); step()", "--no-profiler", "--trigger", "5x")
    steps = [dump["step"] for dump in meta(done.folder)["dumps"]]
    assert 30 in steps
    [trace] = stepscope.load_run(done.folder / meta(done.folder)["dumps"][steps.index(30)]["folder"])
    assert trace.meta.format == "counters"
    assert not list(done.folder.rglob("*.pt.trace.json.gz"))


def test_a_slow_step_of_one_rank_has_all_ranks_profiled(record, torch_python, tmp_path, meta):
    script = tmp_path / "ddp.py"
    script.write_text("""
import os, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
torch.set_num_threads(1)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for i in range(80):
    time.sleep(0.02)
    if i == 40 and os.environ["RANK"] == "1": time.sleep(1)
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()
dist.destroy_process_group()
""")
    launch = [torch_python, "-m", "torch.distributed.run", "--nproc-per-node", "2", str(script)]
    done = record("--steps", "2:4", "--trigger", "8x", "--", *launch)
    assert done.returncode == 0
    found = next(dump for dump in meta(done.folder)["dumps"] if dump["step"] == 40)
    run = stepscope.load_run(done.folder / found["folder"])
    assert [(trace.rank, trace.steps.height) for trace in run] == [(0, 2), (1, 2)]
    assert len({tuple(trace.steps["step"]) for trace in run}) == 1


def test_a_job_that_profiles_itself_is_left_alone_by_dumps_too(train, meta, tmp_path):
    own = tmp_path / "own.json"
    code = f"""
for _ in range(30): time.sleep(0.01); step()
with torch.profiler.profile() as profiler:
    time.sleep(0.5); step()
    for _ in range(12): time.sleep(0.01); step()
profiler.export_chrome_trace({str(own)!r})
"""
    done = train(code, "--steps", "2:4", "--trigger", "5x")
    assert (done.returncode, "mark" in own.read_text()) == (0, True)
    assert "itself" in codes(meta(done.folder))["profile_left_out"]
    assert not list(done.folder.glob("dump-*/*.pt.trace.json.gz"))


DEFINED = """
import os, sys, torch
torch.set_num_threads(1)
x = torch.ones(8, 16)
model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU(), torch.nn.Linear(16, 16))
"""


@pytest.fixture
def job(record, torch_python, meta):
    """Records some code after the definitions above: what became of it, its first process, its issues, its profile."""

    def run(code: str, *words: str, **environment: str):
        command = [torch_python, "-c", DEFINED + textwrap.dedent(code)]
        done = record(*words, "--", *command, env={**os.environ, **environment})
        assert (done.returncode, done.stderr) == (0, "")
        found = meta(done.folder)
        files = sorted(done.folder.glob("*.pt.trace.json.gz"))
        traces = [stepscope.load(file) for file in files]
        codes = {issue["code"]: issue["example"] for issue in found["issues"]}
        return found["processes"][0], codes, traces

    return run


def numbers(trace) -> list[int]:
    return trace.steps["step"].to_list()


def per_step(trace, name: str) -> list[int]:
    """How many operators of a name each step has."""
    found = trace.spans.filter(pl.col("name").cast(pl.String) == name)["step"]
    return [int((found == step).sum()) for step in numbers(trace)]


def test_calls_of_the_model_are_steps_where_nothing_is_trained(job):
    code = """
    loss = torch.nn.MSELoss()                 # holds nothing: no model
    with torch.inference_mode():
        for _ in range(12):
            loss(model(x), x)
    """
    process, _, (trace,) = job(code, "--steps", "3:7")
    assert process["step_source"] == "module calls"
    assert numbers(trace) == [3, 4, 5, 6]
    assert per_step(trace, "aten::addmm") == [2] * 4
    assert per_step(trace, "aten::mse_loss") == [1] * 4


def test_of_several_models_the_one_that_is_called_most_tells_steps(job):
    code = """
    encoder, decoder = model, torch.nn.Linear(16, 16)
    with torch.no_grad():
        for _ in range(3):
            state = encoder(x)
            for _ in range(6):
                state = decoder(state)
    """
    _, _, (trace,) = job(code, "--steps", "4:12")
    assert numbers(trace) == list(range(4, 12))
    assert per_step(trace, "aten::addmm") == [1, 3, 1, 1, 1, 1, 1, 3]


def test_accumulated_gradients_make_one_step(job):
    code = """
    optimizer = torch.optim.AdamW(model.parameters())
    for i in range(40):
        model(x).sum().backward()
        if i % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()
    """
    process, _, (trace,) = job(code, "--steps", "3:6")
    assert (process["step_source"], process["steps"]) == ("optimizer steps", 10)
    assert numbers(trace) == [3, 4, 5]
    assert per_step(trace, "aten::relu") == [4] * 3


def test_an_optimizer_that_takes_over_tells_steps_from_then_on(job):
    code = """
    first, second = (torch.optim.SGD(model.parameters(), lr=0.1) for _ in range(2))
    for i in range(40):
        model(x).sum().backward()
        (first if i < 4 else second).step()
    """
    process, _, (trace,) = job(code, "--steps", "8:12")
    assert numbers(trace) == [8, 9, 10, 11]
    assert process["steps"] == 4 + 40 - 4 - 9


def test_wrapped_and_nested_optimizers_step_once(job):
    code = """
    class Wrapper(torch.optim.Optimizer):     # as libraries of distributed training have it
        def __init__(self, inner):
            super().__init__(inner.param_groups[0]["params"], {})
            self.inner = inner
        def step(self, closure=None):
            self.inner.step()
    class Plain:                              # no optimizer of torch's
        def __init__(self, inner): self.inner = inner
        def step(self): self.inner.step()
    optimizer = Plain(Wrapper(torch.optim.Adam(model.parameters(), fused=True)))
    for _ in range(8):
        model(x).sum().backward()
        optimizer.step()
    """
    process, _, (trace,) = job(code, "--steps", "3:6")
    assert process["steps"] == 8
    assert numbers(trace) == [3, 4, 5]
    names = trace.spans.filter(pl.col("name").cast(pl.String).str.starts_with("Optimizer.step#"))
    # Both are in the step whole.
    assert names["step"].to_list() == [3, 3, 4, 4, 5, 5]


def test_a_closure_that_is_called_several_times_makes_one_step(job):
    code = """
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
    def closure():
        optimizer.zero_grad()
        loss = model(x).square().sum()
        loss.backward()
        return loss
    for _ in range(6):
        optimizer.step(closure)
    """
    process, _, (trace,) = job(code, "--steps", "2:4")
    assert process["steps"] == 6
    assert numbers(trace) == [2, 3]


def test_a_step_that_the_gradient_scaler_leaves_out_is_a_step(job):
    code = """
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for i in range(10):
        optimizer.zero_grad()
        scaler.scale(model(x).sum() * (float("inf") if i in (3, 5) else 1)).backward()
        scaler.step(optimizer)
        scaler.update()
    """
    process, _, (trace,) = job(code, "--steps", "2:7")
    assert process["steps"] == 10
    assert numbers(trace) == [2, 3, 4, 5, 6]
    assert per_step(trace, "aten::relu") == [1] * 5
    assert per_step(trace, "Optimizer.step#SGD.step") == [1, 0, 1, 0, 1]


def test_optimizers_that_step_inside_of_backward_are_met_where_it_is_safe(job):
    code = """
    optimizers = {p: torch.optim.SGD([p], lr=1e-3) for p in model.parameters()}
    def step(p):
        optimizers[p].step()
        optimizers[p].zero_grad()
    for p in model.parameters():
        p.register_post_accumulate_grad_hook(step)
    for _ in range(10):
        model(x).sum().backward()
    print("done")
    """
    process, _, (trace,) = job(code, "--steps", "3:6")
    assert process["step_source"] == "optimizer steps"
    assert numbers(trace) == [3, 4, 5]
    assert per_step(trace, "aten::relu") == [1] * 3
    assert per_step(trace, "Optimizer.step#SGD.step") == [4] * 3


def test_ranges_that_number_steps_come_before_all_else(job):
    code = """
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for i in range(100, 110):
        with torch.profiler.record_function(f"train_step {i}"):
            for _ in range(2):                # as two optimizer steps
                with torch.profiler.record_function("epoch 1"):
                    model(x).sum().backward()
                optimizer.step()
    """
    process, _, (trace,) = job(code, "--steps", "2:5")
    assert process["step_source"] == "named ranges"
    assert numbers(trace) == [2, 3, 4]
    assert per_step(trace, "aten::relu") == [2] * 3


def test_ranges_that_mark_steps_already_are_not_marked_again(job):
    code = """
    with torch.no_grad():
        for i in range(100, 110):
            with torch.profiler.record_function(f"ProfilerStep#{i}"):
                model(x)
    """
    _, _, (trace,) = job(code, "--steps", "2:5")
    assert numbers(trace) == [102, 103, 104]


def test_steps_that_the_job_marks_by_a_call_are_marked_one_by_one(job):
    code = """
    import stepscope
    with torch.no_grad():
        for i in range(20):
            stepscope.step()
            model(x), model(x)
    """
    process, _, (trace,) = job(code, "--steps", "5:9")
    assert (process["step_source"], process["steps"]) == ("named ranges", 19)
    assert numbers(trace) == [5, 6, 7, 8]
    assert per_step(trace, "aten::relu") == [2] * 4


COMPILED = """
from torch._dynamo.utils import counters
graphs = []
def backend(graph, inputs):
    graphs.append(len(graph.graph.nodes))
    return graph.forward
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = model
    def forward(self, x): return self.inner(x) * 2
net = Net()

def of_module(): return torch.compile(net, backend=backend, fullgraph=True)
def of_module_with_a_hook():
    model[0].register_forward_hook(lambda module, args, out: out * 2)
    return torch.compile(net, backend=backend, fullgraph=True)
def in_place():
    net.compile(backend=backend, fullgraph=True)
    return net
def of_optimizer():
    optimizer = torch.optim.Adam(net.parameters())
    step = torch.compile(optimizer.step, backend=backend)
    def run(x):
        net(x).sum().backward()
        step()
    return run
def of_function(): return torch.compile(lambda x: net(x) + 1, backend=backend, fullgraph=True)

for make in (of_module, of_module_with_a_hook, in_place, of_optimizer, of_function):
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        assert os.waitpid(pid, 0)[1] == 0
        continue
    run = make()
    for _ in range(12): run(x)
    print(make.__name__, graphs, *sorted((kind, dict(counts)) for kind, counts in counters.items()), flush=True)
    open(sys.argv[1] + make.__name__, "w").write(str(os.getpid()))
    break
"""


def test_what_is_compiled_is_compiled_as_without_us(record, torch_python, tmp_path):
    script = tmp_path / "job.py"
    script.write_text(DEFINED + COMPILED)
    plain = record("--no-profiler", "--", torch_python, str(script), str(tmp_path / "plain-"))
    done = record("--steps", "3:6", "--", torch_python, str(script), str(tmp_path / "pid-"), folder=tmp_path / "other")
    assert plain.returncode == done.returncode == 0
    assert plain.stdout.count("\n") == 5
    assert done.stdout == plain.stdout
    pids = {path.name[4:]: path.read_text() for path in tmp_path.glob("pid-*")}
    found = {
        name: numbers(stepscope.load(file))
        for name, pid in pids.items()
        for file in done.folder.glob(f"pid{pid}.pt.trace.json.gz")
    }
    # What is called from inside of compiled code is not seen.
    assert pids.keys() - found.keys() == {"of_function"}
    assert set(map(tuple, found.values())) == {(3, 4, 5)}


def test_what_is_scripted_traced_or_exported_is_so_as_without_us(record, torch_python, tmp_path):
    script = tmp_path / "job.py"
    script.write_text(
        DEFINED
        + """
import copy, pickle
def inner(x):
    with torch.profiler.record_function("inner 1"):
        return x + 1
assert float(torch.jit.script(inner)(x)[0, 0]) == 2
assert torch.jit.trace(model, x)(x).shape == x.shape
for strict in (False, True):
    assert torch.export.export(model, (x,), strict=strict).module()(x).shape == x.shape
assert torch.fx.symbolic_trace(model)(x).shape == x.shape
assert pickle.loads(pickle.dumps(copy.deepcopy(model)))(x).shape == x.shape
"""
    )
    done = record("--steps", "500:600", "--", torch_python, "-W", "ignore", str(script))
    assert (done.returncode, done.stderr) == (0, "")


def test_an_error_of_the_models_goes_its_way(record, torch_python):
    code = "try:\n    model(x[:, :3])\nexcept RuntimeError as error:\n    print(type(error).__name__)\n"
    code += "optimizer = torch.optim.LBFGS(model.parameters())\n"
    code += "try:\n    optimizer.step(lambda: 1 / 0)\nexcept ZeroDivisionError as error:\n    print('zero')\n"
    done = record("--", torch_python, "-c", DEFINED + code)
    assert (done.stdout, done.stderr) == ("RuntimeError\nzero\n", "")
