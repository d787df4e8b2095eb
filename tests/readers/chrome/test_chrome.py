from __future__ import annotations

from pathlib import Path

from stepscope.readers import expand


def test_of_the_files_of_ascends_profiler_those_that_another_has_all_of_are_passed_over(tmp_path):
    folder = tmp_path / "device_0" / "timeline"
    folder.mkdir(parents=True)
    for iteration in (1, 2):
        for what in ("msprof", "task_time", "hccl", "step_trace"):
            name = f"{what}_0_2_{iteration}.json"
            (folder / name).write_text('[{"ph":"X","name":"a","pid":1,"tid":1,"ts":1,"dur":1}]', "utf-8")
    (folder / "hccl_0_3_1.json").write_text('[{"ph":"X","name":"a","pid":1,"tid":1,"ts":1,"dur":1}]', "utf-8")
    names = ["hccl_0_3_1.json", "msprof_0_2_1.json", "msprof_0_2_2.json", "step_trace_0_2_1.json"]
    assert sorted(Path(path).name for path in expand([str(tmp_path)])) == names
    assert expand([str(folder / "hccl_0_2_1.json")])  # what is named is read
