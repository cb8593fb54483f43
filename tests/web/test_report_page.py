"""The HTML reports in Chromium: light and dark, on a telephone and on a screen, by mouse, by keyboard, by touch.

With --update-golden, the screenshots become those of docs/guides/reports.md.
"""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from bngrad.autodiff.gradient_nodes import rewrite
from bngrad.bench.case import Case
from bngrad.bench.measure import measure
from bngrad.inspection.graph_nodes import graph_nodes
from bngrad.inspection.identity import identity
from bngrad.inspection.inspect import inspect
from bngrad.io.files import load
from bngrad.reports.compare.comparison import Change, Comparison
from bngrad.reports.compare.runs import compare_runs
from bngrad.reports.html import bench, comparison, inspection, rewriting, training, validation
from bngrad.reports.visible import visible
from bngrad.runtime import environment, native_library
from bngrad.training.differentiate import differentiate
from bngrad.training.dry_run import trainability
from bngrad.training.run_log import Logged
from bngrad.validation.options import ValidateOptions
from bngrad.validation.report import Check, Report, Row
from bngrad.validation.validate import validate
from models import digits_resnet20
from validation.faults import FAULTS

IMAGES = Path(__file__).parents[2] / "docs" / "images"
SCREENSHOTS = {
    "report-validate.png": "validate-1200-light.png",
    "report-validate-dark.png": "validate-1200-dark.png",
    "report-validate-telephone.png": "validate-400-light.png",
    "report-inspect.png": "inspect-1200-light.png",
    "report-bench.png": "bench-1200-light.png",
    "report-train.png": "train-1200-light.png",
    "report-rewrite.png": "rewrite-1200-light.png",
    "report-compare.png": "compare-1200-light.png",
}
HOSTILE = [
    "<script>window.hostile = 1</script>",
    "<img src=x onerror='window.hostile = 1'>",
    "\u202eabc",
    "n" * 3000,
    "\"'&lt;",
]
TIMES = "\N{MULTIPLICATION SIGN}"
FAULTY = 3
MANY = 30_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The reports: a network with a planted fault, hostile names among many rows, an inspection, times."""
    path = tmp_path_factory.mktemp("reports")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(path)
        patch.setattr(environment.platform, "platform", environment.platform.system)  # no kernel in a screenshot
        onnx.save(digits_resnet20.build(), "digits_resnet20.onnx")
        validation.write_html(_failed(), path / "validate.html")
        validation.write_html(_hostile(), path / "hostile.html")
        _inspected(path / "inspect.html")
        _timed(path / "bench.html")
        _trained(path / "train.html")
        _compared(path / "compare.html")
        _rewritten(path / "rewrite.html")
        incomplete = Check("central differences", "relative", 1e-5, skipped="an op is unknown", required=True)
        validation.write_html(replace(_hostile(), checks=[incomplete]), path / "incomplete.html")
    return path


def _failed():
    """One channel of one gradient is off by 1e-4."""
    wrong = differentiate(ir.from_proto(digits_resnet20.build())).model
    node = [node for node in wrong.graph if node.op_type == "BatchNormalizationGrad"][FAULTY]
    FAULTS["1e-4 in one channel"](wrong, node)
    return validate("digits_resnet20.onnx", ValidateOptions(rewritten=wrong, against="reference"))


def _trained(path):
    """A run of made-up losses that fall as those of the digits do."""
    generator, records = np.random.default_rng(0), []
    for number in range(1, 451):
        noise, rate = float(generator.lognormal(sigma=0.4)), 0.025 * (1 + math.cos(math.pi * number / 450))
        loss = (0.01 + 2.4 * math.exp(-number / 45)) * noise
        numbers = {"loss": loss, "learning_rate": rate, "gradient_norm": 3 * loss**0.5, "seconds": number / 60}
        records.append({"step": number, "epoch": 1 + (number - 1) // 45, **numbers})
        if number % 45 == 0:
            loss, accuracy = 0.05 + 2.4 * math.exp(-number / 50), 1 - math.exp(-number / 90)
            validated = {"validation_loss": loss, "accuracy": accuracy}
            records.append({"step": number, "epoch": number // 45, "training_loss": loss, **validated})
    options = {"data": "digits.npz", "validation-split": "0.2", "schedule": "cosine", "learning-rate": "0.05"}
    summary = "1,438 samples, 45 steps an epoch, 359 to validate on; 65 weights with 68,642 parameters; cpu"
    model = identity(load("digits_resnet20.onnx"), "digits_resnet20.onnx")
    facts = training.RunFacts("step.onnx", options, summary, 10, model)
    training.RunPage(path, facts).write(records, "finished")


def _rewritten(path):
    """The joint graph of a network of flax."""
    source = load(Path(__file__).parents[1] / "passes" / "decomposed" / "files" / "flax_nnx_fast.onnx")
    result = rewrite(source)
    names, models = ("flax_nnx_fast.onnx", "train.onnx"), (source, result.model)
    rewriting.write_html(path, names, models, {"New": result.rewritten}, result.candidates)


def _compared(path):
    """Three runs of made-up losses, each with other options and its own speed."""
    generator, logs = np.random.default_rng(1), {}
    for name, rate, speed in (("sgd.jsonl", 60, 30), ("adamw.jsonl", 35, 20), ("lion.jsonl", 45, 26)):
        records = []
        for step in range(1, 271):
            loss = (0.02 + 2.4 * math.exp(-step / rate)) * float(generator.lognormal(sigma=0.3))
            records.append({"step": step, "epoch": 1 + (step - 1) // 45, "loss": loss, "seconds": step / speed})
            if step % 45 == 0:
                epoch = {
                    "step": step,
                    "epoch": step // 45,
                    "seconds": step / speed,
                    "accuracy": 1 - math.exp(-step / rate),
                }
                records.append(epoch | {"validation_loss": 0.05 + 2.4 * math.exp(-step / rate)})
        logs[name] = Logged(
            {"optimizer": name.partition(".")[0], "learning-rate": f"{1 / rate:.2g}", "epochs": "6"}, records
        )
    comparison.write_html(compare_runs([*logs], [*logs.values()]), [*logs.values()], path)
    changes = [Change(name, name, 0.5, 3.0, "now fails") for name in HOSTILE]
    settings = {name: [name, None] for name in HOSTILE}
    reports = Comparison("validate", HOSTILE[:2], settings, changes=changes)
    comparison.write_html(reports, (), path.with_name("changes.html"))


def _hostile():
    measures = dict.fromkeys(HOSTILE, 3.0) | {f"layer{i}": 0.9 / (i + 1) for i in range(MANY)}
    rows = [
        Row(name, name, "gradient", "native", "ort", 1.0, 1.0, measure, passed=measure <= 1, note=name, position=i)
        for i, (name, measure) in enumerate(measures.items())
    ]
    check = Check("lock-step", "of its bound", 1.0, rows, notes=HOSTILE)
    check.undecided = dict.fromkeys(HOSTILE, HOSTILE[0])
    skipped = Check(HOSTILE[0], "relative", 1.0, skipped=HOSTILE[1])
    inputs = {name: [1] for name in HOSTILE}
    hostile = Report(HOSTILE[0], dict.fromkeys(HOSTILE, 1), "ort", HOSTILE, 0, inputs, [check, skipped])
    return replace(hostile, notes=HOSTILE, warnings=HOSTILE)


def _inspected(path):
    """Frozen batch norms in the first stage; stock ONNX Runtime overwrites the statistics of two others."""
    model = digits_resnet20.build()
    norms = [node for node in model.graph.node if node.op_type == "BatchNormalization"]
    dropped = {name for node in norms[:7] for name in node.output[1:]}
    dropped |= {name for node in norms[15:17] for name in node.output[1:]}
    for node in norms[:7]:
        del node.output[1:], node.attribute[:]
    kept = [value for value in model.graph.output if value.name not in dropped]
    del model.graph.output[:]
    model.graph.output.extend(kept)
    onnx.save(model, "partly_frozen.onnx")
    loaded = load("partly_frozen.onnx")
    name = "partly_frozen.onnx"
    inspected = replace(inspect(loaded), training=trainability(loaded, name))
    inspection.write_html(inspected, name, identity(loaded, name), path, graph_nodes(loaded))


def _timed(path):
    shapes = [(32, 64, 56, 56), (32, 128, 28, 28), (32, 256, 14, 14), (32, 512, 7, 7)]
    rows = [measure(Case(shape, (0, 2, 3), "float", "relu-grad"), threads=1, repeats=11) for shape in shapes]
    head = {
        "library": native_library.library_path().name,
        "version": native_library.version(),
        "isa": native_library.active_isa(),
        "threads": 1,
        "repeats": 11,
    }
    bench.write_html(head, rows, "", path)


@pytest.fixture(scope="module")
def seen(node, chromium, folder):
    return json.loads(node("report_page.mjs", chromium, folder))


def test_nothing_is_fetched_and_no_error_is_shown(seen):
    assert seen["messages"] == []
    assert seen["requests"] == []


def test_the_page_never_scrolls_sideways(seen):
    assert len(seen["pages"]) == 36
    for page in seen["pages"]:
        scrolled, width = page["sizes"]
        assert scrolled <= width == page["width"], page


def test_accessibility(seen):
    assert len(seen["accessibility"]) == 18
    for page in seen["accessibility"]:
        assert page["checked"] > 15
        assert page["violations"] == [], page["name"]


def test_light_and_dark(seen):
    colors = {page["colorScheme"]: set() for page in seen["pages"]}
    for page in seen["pages"]:
        colors[page["colorScheme"]].add(page["background"])
    assert [len(backgrounds) for backgrounds in colors.values()] == [1, 1]
    (light,), (dark,) = colors["light"], colors["dark"]
    assert light != dark
    assert seen["theme"] == [["Dark", light], ["Light", dark], ["Light", dark]]  # a choice is remembered
    assert seen["print"] == {"controls": 0, "background": light}


NUMBER = 9
"""The column "max abs" of the table."""


def numbers(rows):
    return [float(row[NUMBER]) for row in rows]


def test_sorting(seen):
    table = seen["table"]
    assert table["descending"]["sorts"] == {"max abs": "descending"}
    assert numbers(table["descending"]["rows"]) == sorted(numbers(table["descending"]["rows"]), reverse=True)
    assert table["ascending"]["sorts"] == {"max abs": "ascending"}  # by keyboard
    assert numbers(table["ascending"]["rows"]) == sorted(numbers(table["ascending"]["rows"]))
    assert max(numbers(table["ascending"]["rows"])) < min(numbers(table["descending"]["rows"]))
    assert table["restored"] == {"rows": table["first"], "sorts": {}}


def test_filtering(seen):
    table = seen["table"]
    total = int(table["status"].split("; ")[1].split()[0].replace(",", ""))
    assert total > 1000
    assert len(table["first"]) == len(table["next"]["rows"]) == 50
    assert table["next"]["status"].startswith("51 to 100;")
    assert not {tuple(row) for row in table["first"]} & {tuple(row) for row in table["next"]["rows"]}
    assert table["filtered"]["rows"]
    assert all("stage2.block1.1.bn.scale_grad" in row[2] + row[3] for row in table["filtered"]["rows"])
    assert f"of {total:,} rows match" in table["filtered"]["status"]
    assert table["empty"] == {"rows": [], "status": f"No row of {total:,} matches."}
    assert {row[0] for row in table["failed"]["rows"]} == {"failed"}
    assert {row[5] for row in table["selected"]["rows"]} == {"lock-step"}
    assert {row[0] for row in table["selected"]["rows"]} == {"failed"}


def test_the_picture_by_mouse(seen):
    picture = seen["picture"]
    assert picture["tip"] is picture["left"] is None
    assert f"{TIMES} limit, failed" in picture["hovered"]
    assert 0 < picture["dragged"]["marks"] < picture["marks"]
    assert picture["dragged"]["axis"].startswith("node ")
    assert picture["reset"] == picture["marks"]
    assert 0 < picture["check"] < picture["implementation"] < picture["marks"]
    assert picture["nothing"] == 0
    assert picture["zoomed"] < picture["marks"]


def test_the_picture_by_keyboard(seen):
    first, second, down, last, escaped, home = seen["picture"]["keys"]
    assert None not in (first, second, down, last, home)
    assert len({first, second, down, last}) == 4
    assert second.split(TIMES)[0] != down.split(TIMES)[0]
    assert escaped is None
    assert home == first
    assert 0 < seen["picture"]["key"]["marks"] < seen["picture"]["marks"] == seen["picture"]["all"]
    assert seen["picture"]["key"]["tip"] == home
    assert seen["picture"]["entered"]["filter"] in first
    assert seen["picture"]["entered"]["rows"] > 0


def test_the_picture_by_touch(seen):
    assert f"{TIMES} limit, failed" in seen["touch"]["tip"]
    assert seen["touch"]["inside"]


def test_a_node_of_the_graph_leads_to_its_row(seen):
    graph = seen["graph"]
    assert graph["nodes"] == 74
    assert graph["batchNorm"] == ["15", "stage1.block2.2.bn"]
    assert graph["node"] == ["74", "loss"]  # on the next page of the table
    assert graph["again"] == graph["node"]
    assert graph["start"] == ["60", "stage3.block2.2.conv"]
    assert graph["copy"] in ("Copied", "Selected")
    assert graph["static"] == 74


def test_a_failure_leads_to_its_row_and_its_picture(seen):
    culprits = seen["culprits"]
    assert culprits["row"][0] == "failed"
    assert culprits["row"][2] == culprits["name"]
    assert culprits["row"][5] == "lock-step"
    assert culprits["visible"]  # the picture is scrolled to the node
    assert culprits["same"] == culprits["row"]


def test_without_javascript(seen):
    static = seen["static"]
    assert "FAILED" in static["verdict"]
    assert "lock-step: 3 of" in static["verdict"]
    assert static["rows"] >= 50
    assert static["marks"] > 100
    assert static["buttons"] == 0


def test_many_rows_and_hostile_names(seen):
    large = seen["large"]
    assert large["run"] is None
    assert large["names"][: len(HOSTILE)] == [visible(name) for name in HOSTILE]
    assert large["status"] == f"1 to 50; {MANY + len(HOSTILE):,} rows"
    assert 100 < large["marks"] < 4_000
    assert large["milliseconds"] < 5_000


def test_screenshots(seen, folder, request):
    assert seen["pages"]
    for name, view in SCREENSHOTS.items():
        assert 10_000 < (folder / view).stat().st_size < 200_000, name
        if request.config.getoption("--update-golden"):
            IMAGES.mkdir(exist_ok=True)
            shutil.copy(folder / view, IMAGES / name)
        assert (IMAGES / name).exists()
