from __future__ import annotations

import json

from msgspec.structs import replace
from observations import observation

from stepscope.comparison.roles import roles
from stepscope.reports.roles import roles_report


def process(path, mm_ns, **facts):
    rows = [(c, "host", "aten::mm", "operator", 1, mm_ns, mm_ns) for c in range(1, 9)]
    made = observation(
        [1_000_000] * 8, functions=rows,
        resources=[(c, "host", "clock", None, "MHz", mm_ns / 1000) for c in range(1, 9)], **facts,
    )  # fmt: skip
    return replace(made, meta=replace(made.meta, path=path))


ALIKE = [process("job/a/t.json", 300_000, rank=0), process("job/b/t.json", 302_000, pid=7)]
OTHER = process("job/t.json", 900_000)


def test_alike_processes_are_one_group():
    document = roles_report(roles(ALIKE))
    assert document.headline == "2 processes, all do the same"
    assert [block.title for block in document.tables] == ["Groups"]


def test_groups_are_listed_with_what_sets_them_apart():
    document = roles_report(roles([*ALIKE, OTHER]))
    assert document.headline == "3 processes, in 2 groups that do not do the same"
    assert [block.title for block in document.tables] == [
        "Groups",
        "Functions, group 2 against group 1, own time per cycle",
        "Resources, group 2 against group 1",
    ]
    assert document.tables[0].frame["processes"].to_list() == ["rank 0 of a, pid 7 of b", "t.json"]


def test_the_document_has_each_group_with_its_processes():
    document = json.loads(json.dumps(dict(roles_report(roles([*ALIKE, OTHER])).document)))
    assert document["schema"] == "stepscope.roles/1"
    assert [len(group["processes"]) for group in document["groups"]] == [2, 1]
    assert document["groups"][1]["attribution"][0]["name"] == "aten::mm"
    assert document["groups"][0]["resources"] == []
