"""The npm package: what `npm pack` puts into it, its types, and its parts that have formulas of their own."""

from __future__ import annotations

import json
import random
import subprocess
from pathlib import Path

import pytest

import bngrad
from bngrad.autodiff.size_conditions import _COMPARISONS, _OF_CONDITIONS, _OF_NUMBERS, condition_text, holds
from digits_training import EXAMPLES, Training

HERE = Path(__file__).parent
PACKAGE = EXAMPLES / "step"


def test_the_package_has_its_files(packed):
    package = packed / "node_modules" / "bngrad"
    sources = {path.name: path for path in PACKAGE.iterdir()} | {"LICENSE": EXAMPLES.parents[1] / "LICENSE"}
    assert {path.name for path in package.iterdir()} == set(sources)
    for name, path in sources.items():
        assert (package / name).read_bytes() == path.read_bytes(), name
    assert not (PACKAGE / "LICENSE").exists()


def test_the_types_name_what_there_is(node):
    names = json.loads(node("package_names.mjs"))
    assert names["actual"] == names["typed"]
    assert {"Trainer", "TrainingStep"} <= set(names["actual"])


@pytest.fixture(scope="module")
def typed(node, packed, folder):
    """The results of typed_training.ts, which the TypeScript compiler accepts with all checks."""
    source = packed / "typed_training.ts"
    source.write_bytes((HERE / "typed_training.ts").read_bytes())
    (packed / "package.json").write_text('{"type": "module"}', encoding="utf-8")
    options = ["--strict", "--noUncheckedIndexedAccess", "--module", "nodenext", "--target", "es2022"]
    compiler = ["node", packed / "node_modules/typescript/bin/tsc", *options, "--types", "node", source]
    done = subprocess.run(compiler, cwd=packed, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    return json.loads(node(packed / "typed_training.js", folder))


def test_a_typed_program_trains(typed):
    losses = typed["losses"]
    assert losses[-1] < losses[0]
    expected = bngrad.CosineSchedule(0.1, 4, warmup=1)
    assert [record["loss"] for record in typed["history"]] == losses
    assert [record["step"] for record in typed["history"]] == [1, 2, 3]
    rates = [record["learning_rate"] for record in typed["history"]]
    assert rates == pytest.approx([expected(update) for update in range(3)])
    seconds = [record["seconds"] for record in typed["history"]]
    assert 0 < seconds[0] < seconds[1] < seconds[2]


def test_a_state_goes_on_in_another_trainer(typed):
    assert typed["calls"] == [3, 3, 3, 0.3]
    assert typed["again"] == typed["evaluated"]
    assert all(typed[name] for name in ("tensors", "constants", "metadata"))
    assert typed["refused"] == "images has to be a Float32Array"


def test_calls_and_updates_of_accumulated_gradients(node, tmp_path, folder):
    step = bngrad.training_step(EXAMPLES.parents[1] / "models/digits_resnet20.onnx", layout="flat", accumulate=2)
    step.save(tmp_path / "step.onnx")
    (tmp_path / "digits.safetensors").write_bytes((folder / "digits.safetensors").read_bytes())
    (tmp_path / "inference.onnx").write_bytes((folder / "inference.onnx").read_bytes())
    calls = json.loads(node("node_trainer.mjs", tmp_path))
    trainer = bngrad.Trainer(tmp_path / "step.onnx", learning_rate=lambda update: 0.1 / (1 + update))
    trainer.load(tmp_path / "trained.safetensors")
    assert calls["counts"] == [[1, 0, 0.1], [2, 1, 0.05], [3, 1, 0.05], [0, 0, 0.1], [3, 1, 0.05]]
    assert [trainer.calls, trainer.updates, trainer.learning_rate] == calls["counts"][-1]
    digits = Training(tmp_path).digits
    outputs = trainer.evaluate(images=digits["test/images"], labels=digits["test/labels"])
    assert calls["loss"] == pytest.approx(float(outputs["loss"]), rel=1e-5)
    hint = "expected a number or a function of the number of updates"
    assert calls["refused"] == [f"the learning rate is {rate}; {hint}" for rate in ("0.1", "undefined")]


RATES = {
    ("linearSchedule", 0.3, 5): bngrad.LinearSchedule(0.3, 5),
    ("linearSchedule", 0.3, 5, "end"): bngrad.LinearSchedule(0.3, 5, start=1, end=0.1),
    ("cosineSchedule", 0.3, 9): bngrad.CosineSchedule(0.3, 9),
    ("cosineSchedule", 0.3, 9, "warmup"): bngrad.CosineSchedule(0.3, 9, minimum=0.01, warmup=3, start=0.2),
    ("stepSchedule", 0.3, 4): bngrad.StepSchedule(0.3, 4),
    ("stepSchedule", 0.3, 4, "factor"): bngrad.StepSchedule(0.3, 4, factor=0.5),
}
OPTIONS = {
    "end": {"start": 1, "end": 0.1},
    "warmup": {"minimum": 0.01, "warmup": 3, "start": 0.2},
    "factor": {"factor": 0.5},
}
REFUSED_RATES = {
    "rate is -1; expected a finite number, at least 0": ["cosineSchedule", -1, 3],
    "total is 0; expected an integer, at least 1": ["linearSchedule", 1, 0],
    "every is 1.5; expected an integer, at least 1": ["stepSchedule", 1, 1.5],
    "warmup is 3; expected an integer from 0 to less than the number of updates, 3": [
        "cosineSchedule",
        1,
        3,
        {"warmup": 3},
    ],
}
SIZES = {"N": 12, "T": 7}


def random_condition(draw, depth=0):
    """A condition on N and T, and on a size that is unknown."""
    if depth < 2 and draw.random() < 0.4:
        name = draw.choice(list(_OF_CONDITIONS))
        operands = [random_condition(draw, depth + 1) for _ in range(_OF_CONDITIONS[name][0])]
        return [name, *operands]
    return [draw.choice(list(_COMPARISONS)), random_number(draw), random_number(draw)]


def random_number(draw, depth=0):
    if depth < 3 and draw.random() < 0.7:
        name = draw.choice(list(_OF_NUMBERS))
        return [name, *(random_number(draw, depth + 1) for _ in range(_OF_NUMBERS[name][0]))]
    return draw.choice(["N", "T", "N", "T", "unknown", *range(-3, 9)])


LABELS = [
    [{"minimum": 0, "maximum": 9, "ignored": None}, [0, 9], None],
    [{"minimum": 0, "maximum": 9, "ignored": None}, [3, 10], "y has the label 10; expected 0 to 9"],
    [{"minimum": 0, "maximum": 9, "ignored": None}, [-1], "y has the label -1; expected 0 to 9"],
    [{"minimum": 0, "maximum": None, "ignored": None}, [-1], "y has the label -1; expected 0 or more"],
    [{"minimum": 0, "maximum": 9, "ignored": -100}, [-100, 1], None],
    [
        {"minimum": 0, "maximum": 9, "ignored": -100},
        [-99],
        "y has the label -99; expected 0 to 9, or -100 to leave a sample out",
    ],
    [{"minimum": 0, "maximum": 9, "ignored": None, "unchecked": "computed"}, [-1], None],
    [{"minimum": 0, "maximum": 9, "ignored": None, "inputs": ["x"]}, [-1], None],
]


@pytest.fixture(scope="module")
def formulas(node):
    """The results of node_formulas.mjs, and the conditions that it evaluated."""
    assert node is not None
    draw = random.Random(5)  # noqa: S311
    conditions = [[random_condition(draw), SIZES] for _ in range(2000)]
    rates = [[*case[:3], *(OPTIONS[name] for name in case[3:])] for case in RATES]
    cases = {
        "rates": [*rates, *REFUSED_RATES.values()],
        "conditions": conditions,
        "labels": [case[:2] for case in LABELS],
    }
    command = ["node", HERE / "node_formulas.mjs"]
    done = subprocess.run(command, input=json.dumps(cases), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), conditions


def test_schedules_are_those_of_python(formulas):
    results = formulas[0]["rates"]
    for case, rates in zip(RATES.values(), results, strict=False):
        assert rates == pytest.approx([case(update) for update in range(12)], rel=1e-12, abs=1e-15)
    assert results[len(RATES) :] == list(REFUSED_RATES)


def test_conditions_on_sizes_are_those_of_python(formulas):
    results, conditions = formulas
    expected = [holds(*case) for case in conditions]
    assert [result for result, _ in results["conditions"]] == expected
    assert 500 < sum(expected) < 1500
    for (condition, _), (result, message) in zip(conditions, results["conditions"], strict=True):
        assert (message is None) == result
        assert result or f"; expected {condition_text(condition)}: for other sizes the model" in message


def test_labels_out_of_range(formulas):
    assert formulas[0]["labels"] == [message for *_, message in LABELS]
