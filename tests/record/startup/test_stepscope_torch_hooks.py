"""Steps of real jobs of PyTorch: where they begin, and that the job does not notice that they are looked for."""

from __future__ import annotations

import os
import textwrap

import polars as pl
import pytest

import stepscope

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
