"""``bngrad compare``: runs by their logs, reports of validate and bench, and the files that it refuses."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from bngrad.cli.console import print_json
from bngrad.validation.report import Check, Report, Row
from cli.compared_files import case, write_bench, write_log


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def row(subject, measure, limit=1.0):
    return Row(subject, subject, "gradient", "native", "ort", measure, measure, measure, passed=measure <= limit)


@pytest.fixture
def write_report(capsys):
    def write(name, errors, check="lock-step", limit=1.0, **fields):
        rows = [row(subject, measure, limit) for subject, measure in errors]
        report = Report("m.onnx", {}, "ort", ["native"], 0, {}, [Check(check, "relative", limit, rows)], **fields)
        print_json(report.to_dict())
        Path(name).write_text(capsys.readouterr().out, encoding="utf-8")

    return write


def test_runs(command):
    write_log("slow.jsonl", 0.9, options={"learning-rate": "0.01", "epochs": "2"})
    write_log(
        "fast.jsonl", 0.8, epochs=3, options={"learning-rate": "0.1", "epochs": "2", "ema": "0.9"}, seconds=0.25
    )
    code, out, err = command("compare", "slow.jsonl", "fast.jsonl", "--json")
    assert (code, err) == (0, "")
    document = json.loads(out)
    assert (document["kind"], document["changes"]) == ("train", [])
    assert document["settings"] == {"learning-rate": ["0.01", "0.1"], "ema": [None, "0.9"]}
    slow, fast = document["runs"]
    assert (slow["steps"], slow["epochs"], fast["steps"], fast["epochs"]) == (20, 2, 30, 3)
    assert fast["best_validation_loss"] == pytest.approx(0.8**3)
    assert (fast["best_epoch"], fast["accuracy"]) == (3, 1 - 0.5**30)
    assert (slow["seconds"], slow["steps_per_second"], fast["steps_per_second"]) == (10, 2, 4)
    assert 0.9**20 < slow["loss"] < 1


def test_the_tables_of_runs(command):
    write_log("a.jsonl", 0.9, options={"learning-rate": "0.01"})
    write_log("b.jsonl", 0.8)
    out = command("compare", "a.jsonl", "b.jsonl")[1]
    for text in ("lowest validation loss", "0.64", "settings that differ", "learning-rate"):
        assert text in out
    write_log("c.jsonl", 0.8)
    assert "settings that differ" not in command("compare", "b.jsonl", "c.jsonl")[1]


def test_a_log_without_validations_and_times(command):
    for name in ("a", "b"):
        Path(name).write_text('{"step": 1, "epoch": 1, "loss": null}\n', encoding="utf-8")
    code, out, err = command("compare", "a", "b", "--html", "page.html")
    assert (code, err) == (0, "")
    assert out.count("-") >= 12
    assert "No run has a validation." in Path("page.html").read_text(encoding="utf-8")


BEFORE = {
    "same": 0.5,
    "fixed": 3.0,
    "broken": 0.2,
    "worse": 0.3,
    "better": 0.9,
    "tiny": 1e-9,
    "nan": math.nan,
    "old": 1,
}
AFTER = {
    "same": 0.9,
    "fixed": 0.5,
    "broken": 4.0,
    "worse": 0.7,
    "better": 0.1,
    "tiny": 1e-3,
    "nan": math.nan,
    "new": 1,
}
STATES = {
    "broken": "now fails",
    "worse": "worse",
    "old": "gone",
    "new": "new",
    "fixed": "now passes",
    "better": "better",
    "nan": "same",
    "same": "same",
    "tiny": "same",
}


def test_reports_of_validate(command, write_report):
    write_report("a.json", BEFORE.items())
    write_report("b.json", AFTER.items())
    code, out, err = command("compare", "a.json", "b.json", "--json")
    assert (code, err) == (0, "")
    document = json.loads(out)
    assert document["kind"] == "validate"
    changes = {change["subject"]: change for change in document["changes"]}
    assert {subject: change["state"] for subject, change in changes.items()} == STATES
    assert [change["state"] for change in document["changes"]][:6] == list(STATES.values())[:6]
    assert (changes["broken"]["before"], changes["broken"]["after"]) == (0.2, 4.0)
    assert (changes["old"]["after"], changes["new"]["before"], changes["nan"]["after"]) == (None, None, "nan")


def test_an_error_is_over_its_limit_and_the_largest_of_its_node(command, write_report):
    write_report("a.json", [("n", 2e-6), ("n", 5e-6)], limit=1e-5)
    write_report("b.json", [("n", 2e-5), ("n", 1e-6)], limit=1e-5)
    (change,) = json.loads(command("compare", "a.json", "b.json", "--json")[1])["changes"]
    assert (change["before"], change["after"]) == (pytest.approx(0.5), pytest.approx(2))
    assert change["state"] == "now fails"


def test_the_table_of_changes_has_all_that_are_worse(command, write_report):
    write_report("a.json", [*((f"bad{i}", 0.1) for i in range(12)), *((f"good{i}", 0.9) for i in range(12))])
    write_report("b.json", [*((f"bad{i}", 9.0) for i in range(12)), *((f"good{i}", 0.1) for i in range(12))])
    out = command("compare", "a.json", "b.json")[1]
    assert "a.json to b.json: 12 now fails, 12 better" in out
    assert (out.count("│ now fails"), out.count("│ better")) == (12, 0)
    assert command("compare", "a.json", "b.json", "--rows", "15")[1].count("│ better") == 3


def test_reports_of_bench(command):
    write_bench("a.json", case([2, 3], 1, 2, 3), case([4], 5, 6, 7), case([5], 5, 6, 7), case([6], 1, 1, 1))
    rows = (case([2, 3], 4, 5, 6), case([4], 1, 2, 4), case([5], 6, 7, 8), case([6], 1, 1, 1, op="training"))
    write_bench("b.json", *rows, threads=4)
    document = json.loads(command("compare", "a.json", "b.json", "--json")[1])
    assert document["settings"] == {"threads": ["2", "4"]}
    assert [(change["group"], change["subject"], change["state"]) for change in document["changes"]] == [
        ("grad", "2x3, axes 0,2, float", "worse"),
        ("grad", "6, axes 0,2, float", "gone"),
        ("training, frozen", "6, axes 0,2, float", "new"),
        ("grad", "4, axes 0,2, float", "better"),
        ("grad", "5, axes 0,2, float", "same"),  # the quartiles overlap
    ]


REFUSED = {
    "one-file": (["a.jsonl"], "there is one file, a.jsonl; expected two or more"),
    "a-file-twice": (["a.jsonl", "a.jsonl"], "a.jsonl is named twice; expected different files"),
    "kinds": (
        ["a.jsonl", "bench.json"],
        "a.jsonl is a log of train, and bench.json is a report of bench; expected files of one kind",
    ),
    "reports-of-two-commands": (
        ["bench.json", "validate.json"],
        "bench.json is a report of bench, and validate.json is a report of validate; expected files of one kind",
    ),
    "three-reports": (
        ["bench.json", "b.json", "c.json"],
        "there are 3 reports of bench; expected two: before and after",
    ),
    "nine-logs": ([f"{i}.jsonl" for i in range(9)], "there are 9 logs; expected at most 8"),
    "other-json": (
        ["a.jsonl", "other.json"],
        "other.json is neither a log of train --log, nor a report of validate --json or bench --json",
    ),
    "no-record": (
        ["a.jsonl", "empty.jsonl"],
        "empty.jsonl is neither a log of train --log, nor a report of validate --json or bench --json",
    ),
    "binary": (
        ["a.jsonl", "model.onnx"],
        "model.onnx is neither a log of train --log, nor a report of validate --json or bench --json",
    ),
    "absent": (["a.jsonl", "none.jsonl"], "none.jsonl cannot be read: No such file or directory"),
    "nothing-validated": (
        ["validate.json", "error.json"],
        "error.json has no comparison, because the model could not be validated",
    ),
    "half-a-report": (
        ["validate.json", "half.json"],
        "half.json is not a report of this bngrad: KeyError: 'environment'",
    ),
    "odd-values": (
        ["bench.json", "odd.json"],
        "odd.json is not a report of this bngrad: TypeError: 'int' object is not iterable",
    ),
    "page-over-a-log": (
        ["a.jsonl", "0.jsonl", "--html", "a.jsonl"],
        "output a.jsonl is the input; choose another file",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name, command, write_report, folder):
    arguments, message = REFUSED[name]
    for log in ("a.jsonl", *(f"{i}.jsonl" for i in range(9))):
        write_log(log, 0.9, epochs=1)
    for report in ("bench.json", "b.json", "c.json"):
        write_bench(report, case([2], 1, 1, 1))
    write_report("validate.json", [("n", 0.5)])
    write_report("error.json", [], error="no model")
    texts = {"other": '{"a": 1}', "half": '{"checks": []}', "odd": '{"rows": 3}', "deep": "[" * 9999}
    for stem, text in texts.items():
        Path(f"{stem}.json").write_text(text, encoding="utf-8")
    Path("empty.jsonl").write_text('{"options": {}}\n', encoding="utf-8")
    Path("model.onnx").write_bytes(b"\x08\x07\xff\xfe\n\n")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    code, out, err = command("compare", *arguments)
    assert (code, out, err) == (2, "", f"bngrad: error: {message}\n")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_json_that_is_too_deep_is_one_line(command):
    for name in ("a.json", "b.json"):
        Path(name).write_text("[" * 99_999, encoding="utf-8")
    assert command("compare", "a.json", "b.json")[2] == (
        "bngrad: error: a.json is neither a log of train --log, nor a report of validate --json or bench --json\n"
    )
