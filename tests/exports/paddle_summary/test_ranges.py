from __future__ import annotations

import paddle_profiles as made
from paddle_profiles import call, host, kernel, memcpy, thread

from stepscope.exports.paddle_summary._ranges import memory_manipulation_summary, user_defined_summary

NODES = [
    (0, host("ProfileStep#1", made.STEP, 0, 100)),
    (1, host("my MemCpy", made.RANGE, 0, 10, call("c", 1, 2, 1, memcpy("m", 5, 10)))),
    (1, host("memset inside", made.USER_DEFINED, 10, 20)),
    (1, host("backward", made.USER_DEFINED, 20, 30)),
    (1, host("mine", made.RANGE, 30, 50, call("c", 31, 32, 2, kernel("k", 40, 60)))),
]


def names(text):
    return [line.split("  ")[0] for line in text.splitlines() if " / " in line][1:]


def test_ranges_that_move_memory_by_their_name(tree):
    text = memory_manipulation_summary(tree(thread(*NODES)), "ns")
    assert names(text) == ["memset inside", "my MemCpy"]
    assert "10.00 / 10.00 / 10.00 / 10.00 / 10.00" in text
    assert "5.00 / 5.00 / 5.00 / 5.00 / 20.00" in text
    assert text.splitlines()[-3].startswith("----")


def test_the_programs_own_ranges(tree):
    other = thread((0, host("theirs", made.RANGE, 0, 5, tid=2)), tid=2)
    found = tree(thread(*NODES), other)
    text = user_defined_summary(found, "ns", "CPUTotal", thread_sep=False)
    assert names(text) == ["mine", "theirs"]
    assert "Thread: All threads merged" in text
    assert text.endswith("     \n\n\n")  # without a rule behind the last row
    apart = user_defined_summary(found, "ns", "CPUTotal", thread_sep=True)
    assert apart.index("Thread: 2") < apart.index("theirs") < apart.index("Thread: 7") < apart.index("mine")


def test_without_ranges_there_are_no_tables(tree):
    found = tree(thread(NODES[0]))
    assert (
        memory_manipulation_summary(found, "ns") == user_defined_summary(found, "ns", "GPUMin", thread_sep=True) == ""
    )
