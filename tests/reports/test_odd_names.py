"""Every report is written and can be read, whatever the names and texts in it are."""

from __future__ import annotations

import json
from xml.etree import ElementTree as ET

import pytest

from bngrad.reports.annotations import write_report_annotations
from bngrad.reports.html.validation import write_html
from bngrad.reports.junit import write_junit
from bngrad.reports.sarif import write_report_sarif
from bngrad.reports.summary import write_summary
from pages import Page
from report_cases import BAD, lock_step, report, row

NAMES = {
    "markup": "</script><!--<script>]]>&amp;",
    "control": "a\0b\x01\x1b[31m\x7f",
    "not-utf-8": "a\udcffb",
    "not-a-character": "a\ufffe\uffff",
    "separators": "a\u2028b\x85c\nd\re",
    "right-to-left": "a\u202eb",
    "empty": "",
    "long": "x" * 10_000,
    "beyond-16-bits": "\U0001f600",
    "of-a-prototype": "__proto__",
}
WRITERS = {
    "junit": (write_junit, ET.parse),
    "html": (write_html, lambda path: Page(path).check_self_contained()),
    "sarif": (write_report_sarif, lambda path: json.loads(path.read_bytes())),
    "summary": (write_summary, lambda path: path.read_text(encoding="utf-8")),
    "annotations": (write_report_annotations, lambda path: path.read_text(encoding="utf-8")),
}


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("case", NAMES)
def test_a_report_with_odd_names_can_be_read(case, writer, tmp_path):
    name = NAMES[case]
    check = lock_step(row(name, tensor=name, kind=name, note=name, **BAD), undecided={name: name}, notes=[name])
    result = report(check, lock_step(skipped=name), model=name or "m.onnx", notes=[name], warnings=[name])
    write, parse = WRITERS[writer]
    write(result, tmp_path / "report")
    parse(tmp_path / "report")
    assert [path.name for path in tmp_path.iterdir()] == ["report"]


@pytest.mark.parametrize("writer", WRITERS)
def test_what_is_not_printable_is_escaped(writer, tmp_path):
    """A job prints these files, or a page shows them: no color, no title, no text from right to left."""
    name = "\x1b[31mred\x1b]0;title\x07\x9b31m\0\u202egnp\u2066\u200b\ufeff"
    check = lock_step(row(name, tensor=name, kind=name, note=name, **BAD), undecided={name: name}, notes=[name])
    result = report(check, lock_step(skipped=name), model=name, notes=[name], warnings=[name])
    WRITERS[writer][0](result, tmp_path / "report")
    text = (tmp_path / "report").read_text(encoding="utf-8")
    assert [character for character in text if not character.isprintable() and character != "\n"] == []
    assert "\\x1b[31mred" in text or "\\\\x1b[31mred" in text
