"""Tables at several widths: no line is wider than the console, and no cell is cut."""

from __future__ import annotations

import io
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from bngrad.reports.tables import Column, print_table, print_text_line

COLUMNS = [
    Column("layer", name=True),
    Column("op"),
    Column("mode"),
    Column("max error", right=True),
    Column("spread", right=True, optional=True),
]
LONG = "backbone.stage2.block7.residual_branch.depthwise_convolution.bn"
ROWS = [(LONG, "BatchNorm", "training", "1.5", "0.1"), ("stem.bn", "BatchNorm", "frozen", "0.5", "0.2")]


def lines(columns, rows, width, **options):
    stream = io.StringIO()
    print_table(
        Console(file=stream, width=width, force_terminal=True, color_system=None), columns, rows, **options
    )
    return [line.rstrip() for line in stream.getvalue().splitlines() if line.strip()]


def words(text):
    return text.split()


FORMS = {
    "all-columns": (
        120,
        [
            ["layer", "op", "mode", "max", "error", "spread"],
            [LONG, "BatchNorm", "training", "1.5", "0.1"],
            ["stem.bn", "BatchNorm", "frozen", "0.5", "0.2"],
        ],
    ),
    "without-common-and-optional-columns": (
        95,
        [
            ["op:", "BatchNorm;", "no", "room", "for", "spread"],
            ["max"],
            ["layer", "mode", "error"],
            [LONG, "training", "1.5"],
            ["stem.bn", "frozen", "0.5"],
        ],
    ),
    "names-above": (
        70,
        [
            ["op:", "BatchNorm"],
            ["max"],
            ["mode", "error", "spread"],
            [LONG],
            ["training", "1.5", "0.1"],
            ["stem.bn"],
            ["frozen", "0.5", "0.2"],
        ],
    ),
    "headings-in-each-row": (
        16,
        [
            ["op:", "BatchNorm"],
            [LONG[:16]],
            [LONG[16:32]],
            [LONG[32:48]],
            [LONG[48:]],
            ["mode", "training,"],
            ["max", "error", "1.5,"],
            ["spread", "0.1"],
            ["stem.bn"],
            ["mode", "frozen,"],
            ["max", "error", "0.5,"],
            ["spread", "0.2"],
        ],
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_form(form):
    width, expected = FORMS[form]
    printed = [line for line in lines(COLUMNS, ROWS, width) if not re.fullmatch("[ ─]+", line)]
    assert [words(line) for line in printed] == expected


def test_one_row_keeps_its_columns():
    printed = " ".join(lines(COLUMNS, ROWS[:1], 60))
    assert "op: " not in printed
    assert "BatchNorm  training" in printed


def test_a_name_that_rows_share_is_printed_once():
    rows = [
        (LONG, "a", "x", "1", ""),
        (LONG, "b", "y", "2", ""),
        ("stem", "a", "x", "3", ""),
        (LONG, "a", "z", "4", ""),
    ]
    printed = [line for line in lines(COLUMNS, rows, 66) if line.startswith((LONG, "stem"))]
    assert printed == [LONG, "stem", LONG]


def test_what_has_no_room_is_said_if_it_is_not_empty():
    columns = [Column("layer", name=True), Column("spread", right=True, optional=True)]
    columns += [Column("largest error", right=True, optional=True)]
    rows = [("a" * 30, "1", ""), ("b", "2", "")]
    assert lines(columns, rows, 36)[0] == "no room for spread"
    rows = [("a" * 30, "1", "3"), ("b", "2", "4")]
    assert lines(columns, rows, 36)[0] == "no room for spread, largest error"
    for width in (80, 20):  # all columns, or rows of lines
        printed = " ".join(lines(columns, rows, width))
        assert "no room" not in printed
        assert {"spread", "3", "4"} <= {*printed.replace(",", "").split()}


def test_empty_columns_are_left_out():
    columns = [Column("layer", name=True), Column("note " * 30), Column("value", right=True)]
    assert "note" not in " ".join(lines(columns, [("a", "", "1"), ("b", "", "2")], 40))


def test_names_alone_can_be_wider_than_the_terminal():
    columns = [Column("layer", name=True), Column("note", optional=True)]
    assert lines(columns, [("a" * 30, ""), ("b" * 5, "")], 20) == ["a" * 20, "a" * 10, "b" * 5]


def test_markup_is_text():
    assert lines([Column("[b]x[/b]")], [("[red]name[/red]",)], 40)[-1].strip() == "[red]name[/red]"


CELLS = st.text(st.characters(codec="utf-8", categories=("L", "N", "P")), max_size=40)


@settings(max_examples=60, deadline=None)
@given(rows=st.lists(st.tuples(*[CELLS] * 5), min_size=1, max_size=6), width=st.integers(30, 150))
def test_no_line_is_wider_and_no_cell_is_lost(rows, width):
    printed = lines(COLUMNS, rows, width, title="a title")
    assert max(map(cell_len, printed)) <= width
    together = re.sub(r"\s", "", "".join(printed))
    for row in rows:
        for cell, column in zip(row, COLUMNS, strict=True):
            assert column.optional or cell in together or not cell


@pytest.mark.parametrize(("terminal", "count"), [(True, 3), (False, 1)], ids=["terminal", "pipe"])
def test_a_line_of_text(terminal, count):
    stream = io.StringIO()
    print_text_line(Console(file=stream, width=30, force_terminal=terminal, color_system=None), "some words " * 7)
    assert len(stream.getvalue().splitlines()) == count
