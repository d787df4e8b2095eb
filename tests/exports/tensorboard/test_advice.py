from __future__ import annotations

from typing import Any

from chrome_traces import call, kernel, op, read, x

from stepscope.exports.tensorboard._advice import Advice, as_html, overview, recommendations
from stepscope.exports.tensorboard._devices import find_devices
from stepscope.exports.tensorboard._events import find_launches, read_events
from stepscope.exports.tensorboard._forest import costs_of, grow
from stepscope.exports.tensorboard._names import uses_tensor_cores
from stepscope.exports.tensorboard._roles import find_roles, find_steps, flags_of, step_costs

STEP = x("ProfilerStep#1", 0, 1000, "user_annotation")
V100 = {"id": 0, "name": "Tesla V100", "totalGlobalMem": 1000 << 20, "computeMajor": 7, "computeMinor": 0}
MLU370 = {"id": 0, "name": "MLU370-X8", "totalMem(MiB)": 1000}
BUSY = kernel("busy", 0, 900, 77)


def advice(*recorded, devices: list[dict[str, Any]] | None = None) -> dict[str, str]:
    meta = {"deviceProperties": devices} if devices is not None else {}
    events = read_events(read(list(recorded), **meta))
    launches = find_launches(events)
    forest = grow(events, launches)
    uses_tc = events.where(uses_tensor_cores, launches.work)
    costs, steps, roles = costs_of(events, launches, forest, uses_tc), find_steps(events, launches), find_roles(events)
    used = find_devices(events, launches, forest, steps, uses_tc)
    found = recommendations(
        events, launches, forest, costs, step_costs(roles, steps), flags_of(roles), used, uses_tc
    )  # fmt: skip
    return {one.kind: one.text for one in found}


def loading(dur: float):
    return op("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 0, dur)


def memory(allocated: int, *, kind: int = 1, device: int = 0, ts: float = 10):
    args = {"Bytes": 512, "Addr": 1, "Device Type": kind, "Device Id": device, "Total Allocated": allocated}
    return {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "pid": 1, "tid": 1, "ts": ts, "args": args}


def test_data_loading_is_too_much_from_a_twentieth_of_the_step_on() -> None:
    assert advice(STEP, loading(50)) == {}
    assert advice(STEP, loading(51)) == {
        "dataloader_time_high": "This run has high time cost on input data loading. 5.1% of the step time is in "
        "DataLoader. You could try to set num_workers on DataLoader's construction and "
        '<a href="https://pytorch.org/docs/stable/data.html#single-and-multi-process-data-loading" target="_blank">'
        "enable multi-processes on data loading</a>."
    }


def test_data_parallel_on_several_devices_had_better_be_distributed() -> None:
    both = (kernel("a", 0, 900, 1), kernel("b", 0, 900, 2, device=1))
    assert advice(STEP, op("DataParallel.forward", 0, 10), both[0]) == {}
    assert advice(STEP, op("DataParallel.forward", 0, 10), *both)["use_ddp_not_dp"] == (
        "It is recommended to "
        '<a href="https://pytorch.org/docs/stable/notes/cuda.html#cuda-nn-ddp-instead" target="_blank">'
        "use DistributedDataParallel instead of DataParallel</a> to do multi-GPU training."
    )


def test_distributed_training_without_nccl_on_a_device_that_can_had_better_use_it() -> None:
    ddp = op("DistributedDataParallel.forward", 0, 10)
    old = V100 | {"computeMajor": 3, "computeMinor": 0}
    unknown = [{"id": 0}, {"computeMajor": 9}, {"computeMajor": "N/A", "computeMinor": 0}]
    assert advice(STEP, ddp, devices=[V100]) == {
        "use_nccl": "Nccl backend is currently the fastest and highly recommended backend when using DDP for training."
    }
    assert advice(STEP, ddp, devices=[old, *unknown]) == {}
    assert advice(STEP, ddp) == {}
    assert advice(STEP, ddp, op("nccl:all_reduce", 20, 10), devices=[V100]) == {}
    assert "use_nccl" in advice(STEP, ddp, op("gloo:all_reduce", 20, 10), devices=[old, V100])


def test_communication_is_too_much_from_a_tenth_of_the_step_on_and_its_first_address_is_the_plugins_tuple() -> None:
    assert advice(STEP, op("gloo:all_reduce", 0, 100)) == {}
    assert advice(STEP, op("gloo:all_reduce", 0, 101)) == {
        "communication_time_high": "This run has high time cost on communication. 10.1% of the step time is in "
        """communication. You could try <a href="('https://pytorch.org/docs/stable/ddp_comm_hooks.html',)" """
        'target="_blank">Gradient Compression</a> '
        'or <a href="https://towardsdatascience.com/what-is-gradient-accumulation-in-deep-learning-ec034122cfa" '
        'target="_blank">Gradient Accumulation</a> or increase the batch size. Note: Gradient accumulation will '
        "increase global effective batch size, which may hurt model convergence and accuracy. For such case, you may "
        'want to evaluate <a href="https://nvidia.github.io/apex/optimizers.html#apex.optimizers.FusedLAMB" '
        'target="_blank">LAMB optimizer</a>.'
    }


def idle(*devices: int) -> str:
    return advice(STEP, *(kernel("k", 0, 499, i, device=i) for i in devices))["device_utilization_low"]


def test_devices_that_are_idle_half_the_time_are_named() -> None:
    assert advice(STEP, kernel("k", 0, 500, 1)) == {}
    assert idle(0) == (
        "GPU 0 has low utilization. You could try to increase batch size to improve. Note: Increasing batch size may "
        "affect the speed and stability of model convergence."
    )
    assert idle(0, 1).startswith("GPU 0and 1 have low")
    assert idle(0, 1, 2).startswith("GPU 0, 1and 2 have low")
    assert idle(10).startswith("GPU 10 have low")


def eligible(kernel_name: str = "sgemm", **changes: Any):
    work = (call("cudaLaunchKernel", 5, 5, 1, External_id=1), kernel(kernel_name, 0, 900, 1))
    return advice(STEP, op("aten::mm", 0, 50, External_id=1), *work, devices=[V100 | changes])


def test_operators_that_could_use_tensor_cores_had_better_do_so_if_no_kernel_does() -> None:
    assert eligible() == {
        "tensor_cores_unused": "Kernels with 100% time are launched by Tensor Cores eligible operators. You could "
        'enable <a href="https://pytorch.org/docs/stable/amp.html" target="_blank">Automatic Mixed Precision</a> to '
        "speedup by using FP16."
    }
    assert eligible("volta_h884gemm") == {}
    assert eligible(computeMajor=6) == {}
    assert eligible(computeMajor=None) == {}
    assert advice(STEP, BUSY, op("aten::add", 0, 50, External_id=1), devices=[V100]) == {}
    assert advice(STEP, op("aten::mm", 0, 50), devices=[V100]) == {}


def test_the_first_device_whose_memory_is_nearly_full_is_named() -> None:
    devices = [V100, V100, V100]
    events = (memory(901 << 20, device=2), memory(999 << 20, device=1), memory(999 << 20, kind=0, device=-1, ts=1))
    assert advice(STEP, BUSY, memory(900 << 20), devices=devices) == {}
    assert advice(STEP, BUSY, memory(900 << 20), *events, devices=devices) == {
        "device_memory_near_limit": "Device memory usage is at the limit of device memory capacity (90.1% of 1.0GB on "
        "GPU2). To get better value of your GPU or to use larger batch size for training, please refer to "
        '<a href="https://pytorch.org/docs/stable/checkpoint.html" target="_blank">Gradient Checkpoint</a> or '
        '<a href="https://pytorch.org/docs/stable/amp.html" target="_blank">Automatic Mixed Precision</a>.'
    }


def test_memory_of_a_device_that_is_not_described_is_not_judged() -> None:
    assert advice(STEP, BUSY, memory(999 << 20, device=1), devices=[V100]) == {}
    assert advice(STEP, BUSY, memory(999 << 20), devices=[{"id": 0, "name": "unknown"}]) == {}
    assert advice(STEP, BUSY, memory(999 << 20)) == {}


def test_mlu_has_its_own_words_and_no_rule_for_tensor_cores() -> None:
    found = advice(
        STEP, op("DistributedDataParallel.forward", 0, 10), op("DataParallel.forward", 20, 10),
        op("aten::mm", 50, 50, External_id=1), x("cnInvokeKernel", 55, 5, "mlu_runtime", correlation=1, External_id=1),
        kernel("k", 0, 100, 1), kernel("k", 0, 900, 2, device=1), memory(950 << 20, kind=20), devices=[MLU370, MLU370],
    )  # fmt: skip
    assert list(found) == ["use_ddp_not_dp", "use_cncl", "device_utilization_low", "device_memory_near_limit"]
    assert found["use_ddp_not_dp"].endswith(" to do multi-MLU training.")
    assert found["use_cncl"].startswith("Cncl backend is currently the fastest")
    assert found["device_utilization_low"].startswith("MLU 0 has low utilization.")
    assert "(95.0% of 1.0GB on MLU0). To get better value of your MLU or" in found["device_memory_near_limit"]


def test_a_recording_of_no_length_has_no_advice() -> None:
    assert advice(x("ProfilerStep#1", 5, 0, "user_annotation")) == {}


def test_recommendations_are_a_list_in_html() -> None:
    assert as_html([]) == "<ul><li>N/A</li></ul>"
    assert as_html([Advice("a", "do this"), Advice("b", "and that")]) == "<ul><li>do this</li><li>and that</li></ul>"


STEP_7 = x("ProfilerStep#7", 0, 1000, "user_annotation")


def page(*recorded, advice: tuple[Advice, ...] = (), n_workers: int = 1, **meta) -> dict[str, Any]:
    events = read_events(read(list(recorded), **meta))
    launches = find_launches(events)
    forest, steps, roles = grow(events, launches), find_steps(events, launches), find_roles(events)
    devices = find_devices(events, launches, forest, steps, events.where(uses_tensor_cores, launches.work))
    costs = step_costs(roles, steps)
    return overview(events, steps, costs, flags_of(roles), devices, list(advice), n_workers=n_workers)


def columns(found: dict[str, Any]) -> list[str]:
    return [column["name"] for column in found["steps"]["columns"] if "name" in column]


def tooltip(part: str, percent: str) -> str:
    opens = '<div class="visualization-tooltip" style="white-space: nowrap;">'
    return f"{opens}Step 7<br>Total: 1000us<br><b>{part}</b><br>Percentage: {percent}</div>"


def test_the_page_of_a_host_only_recording() -> None:
    assert page(STEP_7, op("aten::mm", 100, 250)) == {
        "steps": {
            "columns": [
                {"type": "string", "name": "Step"},
                {"type": "number", "name": "DataLoader"},
                {"type": "string", "role": "tooltip", "p": {"html": "true"}},
                {"type": "number", "name": "CPU Exec"},
                {"type": "string", "role": "tooltip", "p": {"html": "true"}},
                {"type": "number", "name": "Other"},
                {"type": "string", "role": "tooltip", "p": {"html": "true"}},
            ],
            "rows": [
                [
                    "7",
                    0,
                    tooltip("DataLoader: 0us", "0.0%"),
                    250,
                    tooltip("CPU Exec: 250us", "25.0%"),
                    750,
                    tooltip("Other: 750us", "75.0%"),
                ]
            ],
        },
        "performance": [
            {
                "name": "Average Step Time",
                "description": "",
                "value": 1000,
                "extra": 100,
                "children": [
                    {"name": "DataLoader", "description": "", "value": 0, "extra": 0.0},
                    {"name": "CPU Exec", "description": "", "value": 250, "extra": 25.0},
                    {"name": "Other", "description": "", "value": 750, "extra": 75.0},
                ],
            }
        ],
        "recommendations": "<ul><li>N/A</li></ul>",
        "environments": [
            {"title": "Number of Worker(s)", "value": "1"},
            {"title": "Device Type", "value": "CPU"},
        ],
    }


def test_roles_of_the_device_are_shown_if_there_is_any_and_communication_if_there_is_some() -> None:
    device = ["Step", "Kernel", "Memcpy", "Memset", "Runtime", "DataLoader", "CPU Exec", "Other"]
    assert columns(page(STEP_7, call("cudaDeviceSynchronize", 0, 10, 0))) == device
    assert columns(page(STEP_7, op("gloo:all_reduce", 0, 10))) == [
        "Step", "Communication", "DataLoader", "CPU Exec", "Other",
    ]  # fmt: skip
    assert columns(page(STEP_7, kernel("k", 0, 10, 1), op("gloo:all_reduce", 0, 10, External_id=3))) == [
        *device[:4], "Communication", *device[4:],
    ]  # fmt: skip


def test_a_gpu_has_its_metrics_after_the_environment() -> None:
    found = page(STEP_7, kernel("k", 0, 10, 1), n_workers=3, advice=(Advice("a", "hurry"),))
    assert list(found) == ["steps", "performance", "recommendations", "environments", "gpu_metrics"]
    assert found["recommendations"] == "<ul><li>hurry</li></ul>"
    assert [row["value"] for row in found["environments"]] == ["3", "GPU"]
    assert found["gpu_metrics"]["title"] == "GPU Summary"


def test_other_devices_have_their_own_name() -> None:
    found = page(STEP_7, kernel("k", 0, 10, 1), deviceProperties=[{"id": 0, "name": "MLU370"}])
    assert list(found)[-1] == "mlu_metrics"
    assert found["environments"][1]["value"] == "MLU"


def test_means_are_rounded_and_their_parts_are_not_made_of_rounded_values() -> None:
    found = page(STEP_7, x("ProfilerStep#8", 1000, 501, "user_annotation"), op("aten::mm", 900, 201))
    (mean,) = found["performance"]
    assert mean["value"] == 750
    assert [(part["value"], part["extra"]) for part in mean["children"]] == [(0, 0.0), (100, 13.39), (650, 86.61)]
    assert [row[0] for row in found["steps"]["rows"]] == ["7", "8"]


def test_fractions_of_a_microsecond_are_shown_as_recorded() -> None:
    found = page(x("ProfilerStep#1", 0.5, 10.25, "user_annotation"), op("aten::mm", 1.5, 2.0))
    assert found["steps"]["rows"][0][3] == 2.0
    assert "Total: 10.25us<br><b>CPU Exec: 2.0us</b><br>Percentage: 19.51%" in found["steps"]["rows"][0][4]


def test_a_step_of_no_length_has_parts_of_0_percent() -> None:
    found = page(x("ProfilerStep#1", 5, 0, "user_annotation"))
    assert found["steps"]["rows"][0][1::2] == [0, 0, 0]
    assert [part["extra"] for part in found["performance"][0]["children"]] == [0.0, 0.0, 0.0]
