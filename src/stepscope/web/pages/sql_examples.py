"""Questions to begin with on the page SQL. Each is asked of a demo in the tests."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["EXAMPLES", "FIRST", "Example"]


@dataclass(frozen=True, slots=True)
class Example:
    """A question, the query, the recorded tables that it needs, how many files."""

    title: str
    text: str
    needs: tuple[str, ...] = ("spans",)
    n_files: int = 1


#: What stands in the editor at first.
FIRST = """\
SELECT category, count(*) AS calls, sum(dur_ns) AS total_ns, max(dur_ns) AS longest_ns
FROM spans
GROUP BY category
ORDER BY total_ns DESC"""
EXAMPLES = (
    Example("What is in the recording?", FIRST),
    Example("Which operators cost most?", """\
SELECT name, sum(calls) AS calls, sum(host_self_ns) AS host_self_ns, sum(device_self_ns) AS device_self_ns
FROM operators
GROUP BY name
ORDER BY coalesce(sum(operators.device_self_ns), 0) DESC, sum(operators.host_self_ns) DESC
LIMIT 20""", ("ops",)),
    Example("What are the longest spans, and where?", """\
SELECT trace, name, category, step, span_id, ts_ns, dur_ns
FROM spans
WHERE category NOT IN ('step', 'user_range', 'python', 'other')
ORDER BY dur_ns DESC
LIMIT 20"""),
    Example("Which calls vary most?", """\
SELECT name, count(*) AS calls, median(dur_ns) AS median_ns, quantile_cont(dur_ns, 0.99) AS p99_ns,
       max(dur_ns) AS most_ns
FROM spans
WHERE category IN ('operator', 'kernel')
GROUP BY name
HAVING calls >= 8
ORDER BY sum(dur_ns) * (most_ns / greatest(median_ns, 1)) DESC
LIMIT 20"""),
    Example("With which shapes is the most expensive operator called?", """\
WITH top AS (SELECT name FROM operators GROUP BY name ORDER BY sum(host_self_ns) DESC LIMIT 1)
SELECT name, input_shapes, count(*) AS calls, sum(dur_ns) AS total_ns, median(dur_ns) AS median_ns
FROM spans JOIN ops USING (trace, span_id) JOIN top USING (name)
GROUP BY name, input_shapes
ORDER BY total_ns DESC
LIMIT 20""", ("ops",)),
    Example("Who calls aten::copy_?", """\
SELECT caller.name, count(*) AS calls, sum(call.dur_ns) AS total_ns
FROM spans AS call JOIN spans AS caller ON caller.trace = call.trace AND caller.span_id = call.parent_id
WHERE call.name = 'aten::copy_'
GROUP BY caller.name
ORDER BY total_ns DESC
LIMIT 20""", ("ops",)),
    Example("How long do kernels wait after their launch?", """\
SELECT kernel.name, count(*) AS calls, median(kernel.ts_ns - launch.ts_ns) AS median_wait_ns,
       max(kernel.ts_ns - launch.ts_ns) AS longest_wait_ns, sum(kernel.dur_ns) AS total_ns
FROM spans AS kernel JOIN spans AS launch ON launch.trace = kernel.trace AND launch.span_id = kernel.launch_id
WHERE kernel.category = 'kernel'
GROUP BY kernel.name
ORDER BY total_ns DESC
LIMIT 20""", ("kernels",)),
    Example("Which operators allocate most?", """\
SELECT spans.name, count(*) AS blocks, sum(bytes) AS total_bytes
FROM allocations JOIN spans ON spans.trace = allocations.trace AND spans.span_id = allocations.op_id
WHERE bytes > 0
GROUP BY spans.name
ORDER BY total_bytes DESC
LIMIT 20""", ("allocations", "spans")),
    Example("Which rank is the slowest in each step?", """\
SELECT step, arg_max(rank, window_ns) AS slowest_rank, max(window_ns) AS slowest_ns,
       max(window_ns) - min(window_ns) AS apart_ns
FROM steps
GROUP BY step
ORDER BY apart_ns DESC
LIMIT 20""", ("steps",), n_files=2),
    Example("What was dropped, guessed or repaired?", "SELECT * FROM issues", ()),
)  # fmt: skip
