from __future__ import annotations

import time

from stepscope.core.prometheus import Sample, labels_of, samples_of, scrape_mark


def test_samples_have_labels_values_and_neither_times_nor_exemplars():
    text = """# HELP x what
x{a="}b",le="+Inf"} 3 1700000000000
y_total 1e3 # {trace_id="1"} 0.5
z -Inf
"""
    assert samples_of(text) == [
        Sample("x", 'a="}b",le="+Inf"', 3.0), Sample("y_total", "", 1000.0), Sample("z", "", float("-inf")),
    ]  # fmt: skip


def test_what_is_no_number_is_left_out():
    assert samples_of("x NaN\ny 1.2.3\n<html>\nz{ 1\n") == []


def test_a_mark_is_a_comment():
    assert samples_of(scrape_mark(1_700_000_000_000_000_000) + "up 1") == [Sample("up", "", 1.0)]


def test_lines_that_are_nearly_samples_cost_no_time():
    began = time.process_time()
    assert samples_of("name" + " " * 200_000 + "x\n" + "name{" + "}" * 200_000 + " x") == []
    assert labels_of(Sample("n", "a" * 200_000, 1.0)) == {}
    assert time.process_time() - began < 1
