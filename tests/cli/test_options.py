from __future__ import annotations

from typing import Literal

import pytest
import typer

from stepscope.analyses import Analysis
from stepscope.cli._options import flags_of, parsed
from stepscope.core.schema import SPANS


def answer(
    spans,
    *,
    by: Literal["name", "stream"] = "name",
    top: Literal[1, 10] = 10,
    min_gap_ns: int = 0,
    share: float | None = None,
    pattern: str | None = None,
    linked_only: bool = False,
    merge: bool = True,
):
    """Nothing."""


def other(spans, *, kinds: tuple[str, ...] = ()):
    """Nothing."""


ANALYSIS = Analysis("answer", "an answer", (SPANS,), SPANS, answer)

HELP = "stepscope show answer --help"


def test_words_become_typed_options_and_paths():
    words = [
        "a.json",
        "--min-gap-ns",
        "5",
        "--share=0.5",
        "--by",
        "stream",
        "--linked-only",
        "--no-merge",
        "-",
        "b.json",
    ]
    assert parsed(ANALYSIS, words, HELP) == (
        ["a.json", "-", "b.json"],
        {"min_gap_ns": 5, "share": 0.5, "by": "stream", "linked_only": True, "merge": False},
    )


def test_choices_that_are_numbers_are_numbers():
    assert parsed(ANALYSIS, ["--top", "1"], HELP)[1] == {"top": 1}


def test_a_value_may_begin_with_a_dash():
    assert parsed(ANALYSIS, ["--pattern", "-x", "--min-gap-ns", "-3"], HELP)[1] == {"pattern": "-x", "min_gap_ns": -3}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            ["--bogus"],
            "answer has no option --bogus: it has --by, --top, --linked-only, --merge, --min-gap-ns, --pattern, ",
        ),
        (["-x"], "answer has no option -x"),
        (["--by", "x"], "--by x: choose from name, stream"),
        (["--top", "2"], "--top 2: choose from 1, 10"),
        (["--top"], "--top needs a value: 1|10"),
        (["--min-gap-ns", "1.5"], "--min-gap-ns 1.5: not a whole number"),
        (["--share", "half"], "--share half: not a number"),
        (["--linked-only=1"], "--linked-only takes no value"),
    ],
)
def test_what_does_not_fit_is_a_usage_error(words, says):
    with pytest.raises(typer.BadParameter) as caught:
        parsed(ANALYSIS, words, HELP)
    assert str(caught.value).startswith(says)


def test_values_are_named_in_words():
    assert {flag: option.values for flag, option in flags_of(ANALYSIS).items()} == {
        "--by": "name|stream", "--top": "1|10", "--min-gap-ns": "int", "--share": "float", "--pattern": "text",
        "--linked-only": "", "--no-linked-only": "", "--merge": "", "--no-merge": "",
    }  # fmt: skip


def test_the_refusal_says_where_the_options_are_listed():
    with pytest.raises(typer.BadParameter, match="and see 'stepscope show answer --help'"):
        parsed(ANALYSIS, ["--bogus"], HELP)


def test_usage_is_the_flag_with_its_value_and_its_default():
    assert [option.usage() for option in ANALYSIS.options().values()][:3] == [
        ("--by name|stream", "[default: name]"), ("--top 1|10", "[default: 10]"), ("--min-gap-ns int", "[default: 0]"),
    ]  # fmt: skip


def test_an_option_that_the_command_line_cannot_fill_in_is_a_bug():
    with pytest.raises(TypeError, match="option kinds"):
        flags_of(Analysis("other", "", (SPANS,), SPANS, other))


def test_every_analysis_has_options_that_the_command_line_can_fill_in():
    from stepscope import analyses

    own = {"--sort", "--limit", "--where", "--group-by", "--columns", "--format", "--output", "--force", "--help"}
    for name in analyses.names():
        assert not own & set(flags_of(analyses.find(name)))
