"""The TensorBoard plugin on one trace: its loader's steps and every view, in this process and without the server.

The plugin itself loads a run in a process for each rank and hides what goes wrong there; the steps are the same. Runs
in that package's own environment.
"""

from __future__ import annotations

import sys
import tempfile

from torch_tb_profiler.profiler.data import DistributedRunProfileData, RunProfileData
from torch_tb_profiler.profiler.run_generator import RunGenerator

with tempfile.TemporaryDirectory() as folder:
    data = RunProfileData.parse("worker0", None, sys.argv[1], folder)
    profile = RunGenerator("worker0", None, data).generate_run_profile()
    DistributedRunProfileData(data)
    # The overview, operator and kernel views are ready now; these are made on request.
    if profile.memory_snapshot:
        profile.get_memory_stats()
        profile.get_memory_curve()
        profile.get_memory_events()
    profile.get_module_view()
    profile.get_operator_tree()
    print(*(view.display_name for view in profile.views))
