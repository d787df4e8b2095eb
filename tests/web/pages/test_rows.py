from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import polars as pl
import pytest

from stepscope.core.errors import StepscopeError, UnknownName
from stepscope.core.table import Column, Table
from stepscope.query.tables import described
from stepscope.web.pages import rows
from stepscope.web.pages.rows import attachment, known_format, sheet

TABLE = Table(
    "t",
    "a table",
    (
        Column("name", pl.String(), "its name", key=True),
        Column("total_ns", pl.Int64(), "time", "ns"),
        Column("share_ratio", pl.Float64(), "share", "ratio"),
        Column("gone", pl.Int64(), "nothing"),
    ),
)
FRAME = pl.DataFrame(
    {
        "name": ["a", "<b>", None],
        "total_ns": [1500, 20, None],
        "share_ratio": [0.25, 3.0, None],
        "gone": [None, None, None],
    },
    schema_overrides={"gone": pl.Int64},
)


def test_cells_are_in_words_with_the_raw_number_and_the_share_beside():
    made = sheet(FRAME, TABLE)
    (name, total, share), _ = made.rows[0]
    assert (name.text, total.text, total.raw, share.text, share.share) == ("a", "1.5 µs", 1500, "25 %", 0.25)
    assert made.rows[1][0][2].share is None  # a ratio above one is no share
    assert [cell.text for cell in made.rows[2][0]] == ["–", "–", "–"]


def test_a_name_has_a_form_for_half_a_page_and_one_for_narrow_pages_and_a_stack_none():
    name = "ampere_fp16_s16816gemm_fp16_128x64_ldg8_f2f_stages_32x5_tn_and_more_of_it_at_the_end"
    stack = f"aten::mm ← {name} ← step"
    frame = pl.DataFrame({"name": [name, stack], "total_ns": [1, 2]})
    (named, _), (stacked, _) = (row for row, _ in sheet(frame, TABLE).rows)
    assert len(named.short) < len(named.half) <= 27 < len(named.text) <= 52
    assert len(named.short) <= 22
    assert named.full == name
    assert (stacked.text, stacked.half, stacked.short) == (stack, "", "")


def test_long_frames_of_a_stack_lose_their_middle_so_that_callers_stay_in_sight():
    kernel = "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT320x224x64_MI16x16x1_SN_LDSB0_AFC1_AG0_AFEM1"
    stack = Table("stacks", "stacks", (Column("stack", pl.String(), "frames, outermost first"),))
    ((cell,), _) = sheet(pl.DataFrame({"stack": [f"train.py(3): step;aten::mm;{kernel}"]}), stack).rows[0]
    innermost, *callers = cell.text.split(" ← ")
    assert len(innermost) <= 44
    assert callers == ["aten::mm", "train.py(3): step"]
    assert cell.full == f"{kernel} ← aten::mm ← train.py(3): step"


def test_columns_without_values_are_hidden_and_named():
    assert [head.name for head in sheet(FRAME, TABLE).heads] == ["name", "total_ns", "share_ratio"]
    assert sheet(FRAME, TABLE).hidden == ("gone",)
    assert sheet(FRAME, TABLE, keep_empty=True).hidden == ()
    assert [head.name for head in sheet(FRAME, TABLE, columns=["total_ns"]).heads] == ["total_ns"]


def test_only_the_rows_of_the_page_are_made():
    made = sheet(FRAME, TABLE, offset=1, limit=1)
    assert [cells[0].text for cells, _ in made.rows] == ["<b>"]
    assert made.n_rows == 3
    assert sheet(FRAME, TABLE, offset=50).rows == ()


def test_the_link_of_a_row_sees_all_columns():
    made = sheet(FRAME, TABLE, columns=["name"], link=lambda row, columns: f"{row['total_ns']} {len(columns)}")
    assert made.rows[0][1] == "1500 4"


def test_names_of_kernels_are_shortened_and_kept_whole_in_the_title():
    long = (
        "void at::native::vectorized_elementwise_kernel<4, at::native::MulFunctor<float>, std::array<char*, 3ul> >(int)"
    )
    cell = sheet(pl.DataFrame({"name": [long]}), TABLE).rows[0][0][0]
    assert cell.text == "vectorized_elementwise_kernel<MulFunctor>"
    assert cell.full == long
    assert cell.short == "vector…nel<MulFunctor>"
    plain = "ncclDevKernel_AllReduce_Sum_f16_RING_LL(ncclDevComm*, unsigned long, ncclWork*)"
    assert sheet(pl.DataFrame({"name": [plain]}), TABLE).rows[0][0][0].text == plain.partition("(")[0]
    huge = sheet(pl.DataFrame({"name": ["word " * 1000]}), TABLE).rows[0][0][0]
    assert len(huge.text) == 2001


def test_the_order_of_a_column_is_marked():
    heads = sheet(FRAME, TABLE, sort=("-total_ns", "+name")).heads
    assert [head.order for head in heads] == ["+", "-", ""]


def test_stacks_begin_with_the_innermost_frame():
    cell = sheet(pl.DataFrame({"stack": ["main;train;forward"]}), TABLE).rows[0][0][0]
    assert cell.text == "forward ← train ← main"


def test_what_is_not_finite_has_no_value_to_sort_by():
    rows = sheet(pl.DataFrame({"x": [float("nan"), float("inf"), 1.0]}), TABLE).rows
    assert [cells[0].raw for cells, _ in rows] == [None, None, 1.0]


FILE_FRAME = pl.DataFrame({"name": ["a", "b"], "n": [1, 2]})


def attached(name, suffix, frame=FILE_FRAME):
    with ThreadPoolExecutor(1) as fresh:  # this thread may have a loop already
        return fresh.submit(lambda: asyncio.run(attachment(name, suffix, frame, described(name, frame)))).result()


def test_a_file_is_called_after_its_table_and_nothing_else():
    answer = attached('../x"y\r\n', "csv")
    assert answer.headers["content-disposition"] == 'attachment; filename="---x-y--.csv"'
    assert answer.body == b"name,n\na,1\nb,2\n"


@pytest.mark.parametrize(
    ("suffix", "kind"), [("csv", "text/csv"), ("json", "application/json"), ("parquet", "application/vnd")]
)
def test_each_format_has_its_type(suffix, kind):
    assert known_format(suffix) == suffix
    assert attached("t", suffix).headers["content-type"].startswith(kind)


def test_other_formats_are_unknown():
    with pytest.raises(UnknownName, match="format"):
        known_format("exe")


def test_too_many_rows_are_not_written_as_text(monkeypatch):
    monkeypatch.setattr(rows, "_MOST_TEXT_ROWS", 1)
    with pytest.raises(StepscopeError, match="2 rows are too many for csv") as caught:
        attached("t", "csv")
    assert "Parquet" in caught.value.hint
    assert attached("t", "parquet").body[:4] == b"PAR1"
