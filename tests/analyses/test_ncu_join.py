from __future__ import annotations

from collections import defaultdict

import polars as pl
import pytest
from counted_launches import trace
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.analyses import find, ncu_join
from stepscope.analyses.ncu_join import CODE, launches_of, matched, parsed, same_kernels, stitched
from stepscope.core.errors import MissingTable, StepscopeError
from stepscope.core.schema import ISSUES

DRAM = "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed"
BYTES = "dram__bytes.sum"
COUNTED = trace(
    [("add", 20, 4, 32), ("add", 20, 4, 32), ("mul", 90, 8, 64)],
    metrics=[
        (0, BYTES, "byte", 100.0), (0, DRAM, "%", 10.0), (1, BYTES, "byte", 300.0), (1, DRAM, "%", 30.0),
        (2, BYTES, "byte", 500.0), (2, DRAM, "%", 50.0),
    ],
    path="ncu.csv", registers=[16, 16, 40], est_occupancy_ratio=[0.25, 0.75, 0.5], shared_bytes=[1024, 1024, 0],
    blocks_per_sm=[2.0, 2.0, None],
)  # fmt: skip


def rows(found):
    return found.kernel_metrics.with_columns(pl.col("metric", "unit").cast(pl.String)).rows()


def issue(found, code=CODE):
    return found.issues.filter(pl.col("code") == code).select("severity", "count", "example").row(0)


def test_launches_of_the_same_size_get_the_means_of_all_counters():
    found = stitched(trace([("mul", 9, 8, 64), ("add", 2, 4, 32)]), COUNTED)
    assert rows(found) == [
        (0, BYTES, "byte", 500.0), (0, DRAM, "%", 50.0), (1, BYTES, "byte", 200.0), (1, DRAM, "%", 20.0),
    ]  # fmt: skip


def test_launches_of_another_size_get_what_does_not_grow_with_the_work():
    found = stitched(trace([("add", 2, 5, 32), ("mul", 9, None, None)]), COUNTED)
    assert rows(found) == [(0, DRAM, "%", 20.0), (1, DRAM, "%", 50.0)]


def test_the_share_of_time_is_told_by_rule():
    timeline = trace(
        [("add", 60, 4, 32), ("mul", 20, 1, 64), ("mul", 10, None, None), ("nccl", 8, 1, 1), ("x", 2, 1, 1)]
    )
    assert issue(stitched(timeline, COUNTED)) == (
        "info", 3,
        (
            "counters of ncu.csv cover 90 % of the time of kernels (60 % by name, grid and block, 20 % by name and"
            " nearest size, 10 % by name alone); the most without: nccl, 8 %"
        ),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("launches", "text"),
    [
        ([("nccl", 5, 1, 1)], "cover 0 % of the time of kernels; the most without: nccl, 100 %"),
        ([("nccl", 6, 1, 1), ("add", 4, 4, 32)], "cover 40 % of the time of kernels (40 % by name, grid and block); "),
    ],
)
def test_less_than_half_is_a_warning(launches, text):
    severity, _, example = issue(stitched(trace(launches), COUNTED))
    assert severity == "warning"
    assert text in example


def test_what_takes_next_to_no_time_is_not_worth_a_word():
    found = stitched(trace([("add", 9999, 4, 32), ("nccl", 1, 1, 1)]), COUNTED)
    assert issue(found)[2] == (
        "counters of ncu.csv cover >99.9 % of the time of kernels (>99.9 % by name, grid and block)"
    )


def test_kernels_without_a_duration():
    found = stitched(trace([("add", None, 4, 32)]), COUNTED)
    assert issue(found)[2] == "counters of ncu.csv cover 0 % of the time of kernels (0 % by name, grid and block)"


def test_names_that_stand_for_several_kernels_are_told():
    metrics = [(0, DRAM, "%", 10.0), (1, DRAM, "%", 30.0)]
    counted = trace([("void copy<(int)1>(T1)", 1, 4, 32), ("void copy<(int)2>(T1)", 1, 4, 32)], metrics=metrics)
    found = stitched(trace([("copy", 6, 4, 32), ("copy<2>", 4, 4, 32)]), counted)
    assert rows(found) == [(0, DRAM, "%", 20.0), (1, DRAM, "%", 30.0)]
    what = "names that stand for several counted kernels, as copy: 60 % of the time has their means"
    assert issue(found, "counters_mixed") == ("info", 1, what)


def test_what_the_timeline_lacks_of_kernels_is_filled_in():
    timeline = trace(
        [("add", 2, 4, 32), ("add", 2, 9, 32), ("add", 2, 4, 32)], registers=[None, None, 99],
        est_occupancy_ratio=[None, None, 0.1],
    )  # fmt: skip
    columns = ("registers", "est_occupancy_ratio", "shared_bytes", "blocks_per_sm", "grid_x")
    assert stitched(timeline, COUNTED).kernels.select(columns).rows() == [
        (16, 0.5, 1024, 2.0, 4), (16, 0.5, None, None, 9), (99, 0.1, 1024, 2.0, 4),
    ]  # fmt: skip


def test_an_occupancy_of_zero_is_filled_in_where_a_multiprocessor_has_warps():
    timeline = trace([("add", 2, 4, 32)] * 2, est_occupancy_ratio=[0.0, 0.0], warps_per_sm=[8.0, 0.1])
    assert stitched(timeline, COUNTED).kernels["est_occupancy_ratio"].to_list() == [0.5, 0.0]


def test_a_timeline_without_launch_sizes_gets_a_row_for_each_kernel():
    timeline = trace([("add", 2, None, None), ("mul", 2, None, None)])
    bare = timeline.with_tables(kernels=timeline.kernels.head(0))
    assert stitched(bare, COUNTED).kernels.select("span_id", "registers", "shared_bytes").rows() == [
        (0, 16, None),
        (1, 40, None),
    ]


def test_kernels_with_counters_of_their_own_keep_them():
    timeline = trace([("add", 2, 4, 32), ("add", 2, 4, 32)], metrics=[(1, "flops", "FLOP", 7.0)])
    found = stitched(timeline, COUNTED)
    assert rows(found) == [(0, BYTES, "byte", 200.0), (0, DRAM, "%", 20.0), (1, "flops", "FLOP", 7.0)]


def test_values_that_are_not_known_are_no_counters():
    counted = trace([("add", 1, 4, 32)], metrics=[(0, DRAM, "%", None), (0, BYTES, "byte", 5.0)])
    assert rows(stitched(trace([("add", 2, 4, 32)]), counted)) == [(0, BYTES, "byte", 5.0)]


def test_launches_that_were_not_counted_stand_for_nothing():
    counted = trace([("add", 1, 4, 32), ("mul", 1, 4, 32)], metrics=[(1, DRAM, "%", 5.0)])
    assert rows(stitched(trace([("add", 2, 4, 32), ("mul", 2, 4, 32)]), counted)) == [(1, DRAM, "%", 5.0)]


@pytest.mark.parametrize(
    ("metric", "unit", "stays"),
    [
        ("x", "%", True), ("x", "byte/s", True), ("x", "hz", True), ("x", "ratio", True),
        ("x", "register/thread", True), ("OccupancyPercent", None, True),
        ("smsp__inst.sum.per_cycle_elapsed", "inst", True), ("x", "byte", False), ("x", "ns", False),
        ("x", None, False), ("MeanOccupancyPerCU", None, False),
    ],
)  # fmt: skip
def test_which_counters_do_not_grow_with_the_work(metric, unit, stays):
    counted = trace([("add", 1, 4, 32)], metrics=[(0, metric, unit, 5.0)])
    assert bool(rows(stitched(trace([("add", 2, 5, 32)]), counted))) is stays


def test_counters_of_another_product_are_a_warning():
    counted = trace([("add", 1, 4, 32)], metrics=[(0, DRAM, "%", 5.0)], device="NVIDIA A100")
    launches = [("add", 2, 4, 32)]
    found = stitched(trace(launches, device="NVIDIA H100"), counted)
    assert issue(found, "other_device")[2] == "counters are of NVIDIA A100, the timeline is of NVIDIA H100"
    for same in (trace(launches), trace(launches, device="NVIDIA A100")):
        assert stitched(same, counted).issues["code"].to_list() == [CODE]


def test_issues_of_the_timeline_stay():
    row = pl.DataFrame([("truncated", "error", 1, "x")], schema=dict(ISSUES.dtypes), orient="row")
    found = stitched(trace([("add", 2, 4, 32)]).with_tables(issues=row), COUNTED)
    assert found.issues["code"].to_list() == ["truncated", CODE]


def test_of_too_many_counters_those_stay_that_an_analysis_looks_at(monkeypatch):
    metrics = [(0, DRAM, "%", 10.0), (0, BYTES, "byte", 5.0), (0, "l1tex__x.sum", "request", 5.0)]
    counted = trace([("add", 1, 4, 32)], metrics=metrics)
    timeline = trace([("add", 2, 4, 32)] * 3)
    assert stitched(timeline, counted).kernel_metrics.height == 9
    monkeypatch.setattr(ncu_join, "MOST_ROWS", 8)
    found = stitched(timeline, counted)
    assert sorted(set(found.kernel_metrics["metric"])) == [BYTES, DRAM]
    assert issue(found, "metrics_left_out")[:2] == ("info", 1)


def test_a_timeline_without_kernels_and_a_file_without_counters_are_refused():
    with pytest.raises(MissingTable, match="--with needs kernels"):
        stitched(trace([("add", 2, 4, 32)]).with_tables(spans=pl.DataFrame(schema=COUNTED.spans.schema)), COUNTED)
    with pytest.raises(StepscopeError, match=r"a\.sqlite holds no counters of kernels") as caught:
        stitched(COUNTED, trace([("add", 2, 4, 32)]))
    assert "ncu --csv" in caught.value.hint


def test_analyses_show_the_counters_with_the_timeline_s_own_times():
    timeline = trace([("add", 30, 4, 32), ("mul", 70, 8, 64)])
    found = find("kernels")(stitched(timeline, COUNTED))
    assert found.select("name", "total_ns", "dram_ratio", "est_occupancy_ratio").rows() == [
        ("mul", 70, 0.5, 0.5),
        ("add", 30, 0.2, 0.5),
    ]
    (used,) = find("utilisation")(stitched(timeline, COUNTED)).rows(named=True)
    assert used["dram_ratio"] == pytest.approx(0.3 * 0.2 + 0.7 * 0.5)


def groups(timeline, counted):
    """For each launch of the timeline the counted launches that stand for it, and the rule."""
    members, found = matched(launches_of(trace(timeline)), launches_of(trace(counted)))
    of_group = defaultdict(list)
    for group, span in members.rows():
        of_group[group].append(span)
    assert found["span_id"].to_list() == list(range(len(timeline)))
    return [(sorted(of_group[group]) if group is not None else [], rule) for _, group, rule, _ in found.rows()]


def test_the_same_name_grid_and_block():
    counted = [("add", 1, 4, 32), ("add", 1, 4, 64), ("mul", 1, 4, 32), ("add", 1, 4, 32)]
    assert groups([("add", 1, 4, 32), ("mul", 1, 4, 32)], counted) == [([0, 3], "size"), ([2], "size")]


def test_the_nearest_number_of_threads():
    counted = [("add", 1, 1, 32), ("add", 1, 10, 32), ("mul", 1, 6, 32)]
    assert groups([("add", 1, 4, 32), ("add", 1, 8, 32), ("add", 1, 99, 32)], counted) == [
        ([0], "nearest"), ([1], "nearest"), ([1], "nearest"),
    ]  # fmt: skip


def test_of_two_as_near_the_one_that_ran_first():
    assert groups([("add", 1, 5, 32)], [("add", 1, 8, 32), ("add", 1, 2, 32)]) == [([0], "nearest")]
    assert groups([("add", 1, 5, 32)], [("add", 1, 2, 32), ("add", 1, 8, 32)]) == [([0], "nearest")]
    # As many threads in blocks of two sizes.
    assert groups([("add", 1, 5, 32)], [("add", 1, 2, 64), ("add", 1, 4, 32)]) == [([0], "nearest")]


def test_by_name_alone_where_a_size_is_not_known():
    assert groups([("add", 1, None, None)], [("add", 1, 4, 32), ("add", 1, 8, 32)]) == [([0, 1], "name")]
    assert groups([("add", 1, 4, 32)], [("add", 1, None, None), ("add", 1, None, None)]) == [([0, 1], "name")]


def test_no_counted_launch_of_that_name():
    assert groups([("add", 1, 4, 32)], [("mul", 1, 4, 32)]) == [([], None)]


def test_names_that_may_be_several_kernels_are_told():
    counted = launches_of(trace([("void copy<(int)1>(T1)", 1, 4, 32), ("void copy<(int)2>(T1)", 1, 4, 32)]))
    timeline = launches_of(trace([("copy", 1, 4, 32), ("copy<2>", 1, 4, 32), ("add", 1, 4, 32)]))
    members, found = matched(timeline, counted)
    assert found.select("rule", "is_mixed").rows() == [("size", True), ("size", False), (None, False)]
    assert sorted(members.filter(members["group"] == found["group"][0])["span_id"].to_list()) == [0, 1]


sizes = st.none() | st.integers(1, 6)
launch = st.tuples(st.sampled_from(["a", "b", "c"]), st.just(1), sizes, st.sampled_from([32, 64])).map(
    lambda row: row if row[2] is not None else (row[0], 1, None, None)
)


def plainly(timeline, counted):
    found = []
    for name, _, grid, block in timeline:
        mine = [i for i, other in enumerate(counted) if other[0] == name]
        exact = [i for i in mine if counted[i][2:] == (grid, block) and grid is not None]
        sized = [i for i in mine if counted[i][2] is not None]
        if exact:
            found.append((exact, "size"))
        elif grid is not None and sized:
            best = min(sized, key=lambda i: (abs(counted[i][2] * counted[i][3] - grid * block), i))
            found.append(([i for i in sized if counted[i][2:] == counted[best][2:]], "nearest"))
        else:
            found.append((mine, "name" if mine else None))
    return found


@pytest.mark.slow
@settings(deadline=None)
@given(st.lists(launch, min_size=1, max_size=12), st.lists(launch, min_size=1, max_size=12))
def test_every_launch_finds_what_a_plain_search_finds(timeline, counted):
    assert groups(timeline, counted) == plainly(timeline, counted)


#: What NVIDIA's tools write, and what PyTorch does.
PAIRS = [
    (
        "void a::act<c10::BFloat16, &a::silu<c10::BFloat16>, (bool)1>(T1 *, const T1 *, int)",
        "void a::act<c10::BFloat16, &a::silu<c10::BFloat16>, true>(c10::BFloat16*, c10::BFloat16 const*, int)",
    ),
    (
        "void at::fill<(int)4, at::Functor<float>, std::array<char *, (unsigned long)1>>(int, T2, T3)",
        "void at::fill<4, at::Functor<float>, std::array<char*, 1ul> >(int, at::Functor<float>, x)",
    ),
    (
        "void <unnamed>::softmax<float, float, (int)10, (bool)0>(T2 *, const T1 *, int)",
        "void (anonymous namespace)::softmax<float, float, 10, false>(float*, float const*, int)",
    ),
    (
        "void e<(int)1, void at::f<at::copy(I &)::[lambda() (instance 3)]::operator ()() const>(I &, T1 &)>(int, T3)",
        "void e<1, at::f<at::copy(I&)::{lambda()#3}::operator()() const>(I&, float const&)>(int, x)",
    ),
    (
        "std::enable_if<T2>(int)0&&a::_type<T1>::exists, void>::type a::norm<c10::BFloat16, (int)8>(T1 *, long)",
        "std::enable_if<(8>(0))&&_type<c10::BFloat16>::exists, void>::type a::norm<c10::BFloat16, 8>(x*, long)",
    ),
    ("reduce<(c10::ScalarType)6, (int)-1>(T1)", "reduce<(c10::ScalarType)6, -1>(x)"),
    ("gemm.kd", "gemm [clone .kd]"),
]  # fmt: skip


@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_one_kernel_is_the_same_in_both_spellings(one, other):
    assert parsed(one) == parsed(other)
    assert same_kernels([one], [other, "other"]) == {one: (other,)}


@pytest.mark.parametrize(
    ("name", "path", "is_made_for"),
    [
        ("ampere_sgemm_128x64_tn", ("ampere_sgemm_128x64_tn",), False),
        ("void cutlass::Kernel<cutlass_80_gemm>(T1::Params)", ("cutlass", "Kernel"), True),
        ("ns::A<int>::run(int)", ("ns", "A", "run"), True),
        ("_ZN7cutlass6KernelI34cutlass_80E", ("cutlass", "Kernel"), False),
        ("_Z5saxpyifPfS_", ("saxpy",), False),
        ("", ("",), False),
    ],
)
def test_a_name_has_a_path_and_perhaps_arguments_of_its_template(name, path, is_made_for):
    found = parsed(name)
    assert (found.path, found.is_made_for) == (path, is_made_for)


FULL, OTHER = "void ns::copy<(int)4>(T1 *)", "void ns::copy<(int)8>(T1 *)"


@pytest.mark.parametrize(
    ("name", "known", "found"),
    [
        (FULL, [OTHER, FULL], (FULL,)),  # itself
        (FULL, [OTHER], None),  # made for something else
        ("copy", [FULL, OTHER], (FULL, OTHER)),  # either of them
        ("ns::copy", [FULL, OTHER], (FULL, OTHER)),
        ("other::copy", [FULL, OTHER], None),
        (FULL, ["copy"], ("copy",)),
        (FULL, ["other::copy"], None),
        (FULL, ["_ZN2ns4copyILi4EEEvPf"], ("_ZN2ns4copyILi4EEEvPf",)),
        ("_ZN2ns4copyILi4EEEvPf", [FULL, OTHER], (FULL, OTHER)),
        ("_Z3addv", ["add(float *)"], ("add(float *)",)),
        ("add", ["sub"], None),
        # Nsight Compute leaves out namespaces of which PyTorch's profiler writes all.
        (
            "at::native::add<4, at::native::Sum<float>>()",
            ["at::add<4, at::Sum<float>>()"],
            ("at::add<4, at::Sum<float>>()",),
        ),
        ("at::native::add<4, at::native::Sum<float>>()", ["at::add<4, at::Max<float>>()", "at::add<8>()"], None),
        ("at::add<4>()", ["at::native::add<4>()", "at::native::add<4, 4>()"], ("at::native::add<4>()",)),
    ],
)
def test_less_is_said_of_the_same_kernel(name, known, found):
    assert same_kernels([name], known).get(name) == found


@given(st.lists(st.text("ab<>():, *[]{}#_Z01", max_size=20), max_size=6), st.text("ab<>(): ", max_size=20))
def test_any_text_is_a_name_that_means_at_least_itself(known, name):
    assert same_kernels([name], [*known, name])[name] == (name,)
    for other in same_kernels([name], known).get(name, ()):
        one, two = parsed(name), parsed(other)
        assert one.may_be(two) or one.differs_in_namespaces(two)
        assert two.may_be(one) or two.differs_in_namespaces(one)
