"""Class labels among the data: wherever they reach the loss they are checked, or the step says why not."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest

import bngrad
from bngrad.errors import InputError, TrainingError
from bngrad.training.class_labels import ClassLabels
from bngrad.training.step_info import LabelRange
from trainer_cases import TEXT, batch, network

ROWS = np.eye(4, dtype=np.float32)[[0, 1, 2, 3, 0]]


def step_of(nodes, labels="int64[N]"):
    """A linear classifier of four features and three classes; ``nodes`` compute the loss of ``z``."""
    text = f"""<ir_version: 9, opset_import: ["" : 18]>
    g (float[N,4] x, {labels} labels) => (float loss) <
        float[4,3] w = {{1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3}}, int64[1] axis = {{1}}, int64[1] flat = {{-1}},
        int64[1] flat_zero = {{0}},
        int64 zero = {{0}}, int64 one = {{1}}, int64 three = {{3}}, int64 five = {{5}}, int64 ignore = {{255}},
        int64[2] off_on = {{0, 1}}
    > {{
        z = MatMul (x, w)
        {nodes}
    }}"""
    return bngrad.training_step(onnx.parser.parse_model(text), wrt=["w"])


def loss_of(labels):
    return f"loss = SoftmaxCrossEntropyLoss (z, {labels})"


LOG = "p = LogSoftmax <axis = 1> (z)"
MEAN = "m = ReduceMean <keepdims = 0> (q) loss = Neg (m)"
PICKED = f"{LOG} u = Unsqueeze (l, axis) q = GatherElements <axis = 1> (p, u) {MEAN}"
PAIRS = """s = Shape <end = 1> (labels) n = Squeeze (s) r = Range (zero, n, one) first = Unsqueeze (r, axis)
second = Unsqueeze (labels, axis) i = Concat <axis = -1> (first, second)"""
RANGE = "expected 0 to 2"
TO_INT = "l = Cast <to = 7> (labels)"
ONE_HOT = "f = Cast <to = 1> (o) e = Mul (p, f) q = ReduceSum <keepdims = 0> (e, axis)"
MASKED = "known = Equal (labels, ignore) l = Where (known, zero, labels)"

CHECKED = {
    # name: nodes, type of the labels, five good labels, bad labels in the place of the first and the reason
    "float": (
        f"{TO_INT} {loss_of('l')}",
        "float[N]",
        [0, 1, 2, 2, 1],
        {-1: f"'labels' has the label -1.0; {RANGE}", 3: "label 3.0", 1.5: "label 1.5", np.nan: "label nan"},
    ),
    "bool": (f"{TO_INT} {loss_of('l')}", "bool[N]", [0, 1, 1, 0, 1], {}),
    "bytes": (
        f"{TO_INT} {loss_of('l')}",
        "uint8[N]",
        [0, 1, 2, 2, 1],
        {255: f"'labels' has the label 255; {RANGE}"},
    ),
    "small": (f"{TO_INT} {loss_of('l')}", "int8[N]", [0, 1, 2, 2, 1], {-1: f"'labels' has the label -1; {RANGE}"}),
    "from-the-end-if-negative": (
        f"below = Less (labels, zero) end = Add (labels, five) l = Where (below, end, labels) {PICKED}",
        "int64[N]",
        [0, 1, 2, 2, 1],
        {-1: f"'labels' has the index -1; {RANGE}", 3: "index 3"},
    ),
    "from-one": (
        f"l = Sub (labels, one) {loss_of('l')}",
        "int64[N]",
        [1, 2, 3, 3, 1],
        {0: "'labels' has the label 0; expected 1 to 3", 4: "label 4"},
    ),
    "column": (
        f"s = Squeeze (labels, axis) l = Cast <to = 7> (s) {loss_of('l')}",
        "int32[N,1]",
        [[0], [1], [2], [2], [1]],
        {-1: f"'labels' has the label -1; {RANGE}"},
    ),
    "reshaped": (
        f"l = Reshape (labels, flat) {loss_of('l')}",
        "int64[N,1]",
        [[0], [1], [2], [2], [1]],
        {-1: f"label -1; {RANGE}"},
    ),
    "computed": (
        f"a = Div (labels, five) {loss_of('a')}",
        "int64[N]",
        [0, 4, 5, 9, 14],
        {-5: f"the data 'labels' make the label -1, which the model computes as 'a'; {RANGE}", 15: "label 3"},
    ),
    "of-floats": (
        f"s = Floor (labels) l = Cast <to = 7> (s) {loss_of('l')}",
        "float[N]",
        [0.5, 1, 2.9, 2, 1],
        {-0.5: "make the label -1", np.nan: "the data 'labels', from which labels are computed, are not finite"},
    ),
    "masked": (
        f"{MASKED} {loss_of('l')}",
        "int64[N]",
        [255, 1, 2, 2, 1],
        {-1: "'labels' has the label -1", 3: "label 3"},
    ),
    "masked-and-shifted": (
        f"{MASKED} k = Sub (l, one) {loss_of('k')}",
        "int64[N]",
        [1, 2, 3, 3, 1],
        {255: f"the data 'labels' make the label -1, which the model computes as 'k'; {RANGE}", 0: "label -1"},
    ),
    "masked-by-no-class": (
        f"known = Equal (labels, ignore) l = Where (known, five, labels) {loss_of('l')}",
        "int64[N]",
        [0, 2, 1, 1, 1],
        {255: f"make the label 5, which the model computes as 'l'; {RANGE}", -1: "label -1"},
    ),
    "kept-unless-masked": (
        f"known = Equal (labels, ignore) keep = Not (known) l = Where (keep, labels, zero) {loss_of('l')}",
        "int64[N]",
        [255, 2, 1, 1, 1],
        {-1: "'labels' has the label -1"},
    ),
    "picked": (
        f"l = Identity (labels) {PICKED}",
        "int64[N]",
        [0, 1, 2, 2, 1],
        {-1: f"'labels' has the index -1; {RANGE}"},
    ),
    "picked-by-floats": (f"{TO_INT} {PICKED}", "float[N]", [0, 1, 2, 2, 1], {-1: "'labels' has the index -1.0"}),
    "picked-and-masked": (f"{MASKED} {PICKED}", "int64[N]", [255, 1, 2, 2, 1], {-1: "'labels' has the index -1"}),
    "pairs": (
        f"{LOG} {PAIRS} q = GatherND (p, i) {MEAN}",
        "int64[N]",
        [0, 1, 2, 2, 1],
        {-1: f"'labels' has the index -1; {RANGE}", 3: "index 3"},
    ),
    "pairs-as-data": (
        f"{LOG} q = GatherND (p, labels) {MEAN}",
        "int64[N,2]",
        [[0, 0], [1, 2], [2, 1], [3, 2], [4, 0]],
        {-1: "'labels' has the index -1; expected 0 or more"},
    ),
    "batched-pairs": (
        f"{LOG} u = Unsqueeze (labels, axis) q = GatherND <batch_dims = 1> (p, u) {MEAN}",
        "int64[N]",
        [0, 1, 2, 2, 1],
        {-1: f"'labels' has the index -1; {RANGE}"},
    ),
    "one-hot": (
        f"{LOG} o = OneHot <axis = 1> (labels, three, off_on) {ONE_HOT} {MEAN}",
        "int64[N]",
        [0, 1, 2, 2, 1],
        {-1: f"'labels' has the index -1; {RANGE}", 3: "index 3"},
    ),
    "scattered": (
        f"""{LOG} k = Shape (p) zeros = ConstantOfShape (k) u = Unsqueeze (labels, axis) v = Shape (u)
        on = ConstantOfShape <value = float[1] {{1}}> (v) o = ScatterElements <axis = 1> (zeros, u, on)
        e = Mul (p, o) q = ReduceSum <keepdims = 0> (e, axis) {MEAN}""",
        "int64[N]",
        [0, 1, 2, 2, 1],
        {-1: "'labels' has the index -1"},
    ),
    "start-of-a-slice": (
        f"{LOG} e = Add (labels, one) q = Slice (p, labels, e, axis) {MEAN}",
        "int64[1]",
        [2],
        {-1: f"'labels' has the index -1; {RANGE}", 3: "index 3"},
    ),
    "end-of-a-slice": (
        f"{LOG} q = Slice (p, flat_zero, labels, axis) {MEAN}",
        "int64[1]",
        [3],
        {-1: "'labels' has the index -1; expected 0 to 3", 4: "index 4"},
    ),
    "start-of-several-axes": (
        f"{LOG} s = Concat <axis = 0> (flat_zero, labels) b = Add (s, one) q = Slice (p, s, b) {MEAN}",
        "int64[1]",
        [2],
        {-1: f"'labels' has the index -1; {RANGE}", 3: "index 3"},
    ),
    "embedding": (
        f"rows = Gather (w, labels) a = Add (rows, z) q = Mul (a, a) {MEAN}",
        "int64[N]",
        [0, 1, 2, 3, 1],
        {-1: "'labels' has the index -1; expected 0 to 3", 4: "index 4"},
    ),
}


def dtype_of(labels):
    return {"float": "float32"}.get(labels.partition("[")[0], labels.partition("[")[0])


@pytest.mark.parametrize("case", CHECKED)
def test_labels_are_checked(case):
    nodes, kind, good, wrong = CHECKED[case]
    trainer = bngrad.Trainer(step_of(nodes, kind), learning_rate=0.1)
    assert np.isfinite(trainer.step(x=ROWS, labels=np.array(good, dtype_of(kind))))
    for bad, message in wrong.items():
        labels = np.array(good, dtype_of(kind))
        labels.flat[0] = bad
        for call in (trainer.step, trainer.evaluate):
            with pytest.raises(InputError, match=message):
                call(x=ROWS, labels=labels)
    assert trainer.calls == 1


ADDED = f"i = Cast <to = 7> (r) j = ReduceMax <keepdims = 0> (i) l = Add (labels, j) {loss_of('l')}"
UNCHECKED = {
    "of-weights": (f"r = Identity (w) {ADDED}", "it depends on the weights"),
    "random": (f"r = RandomUniform <dtype = 1, shape = [1]> () {ADDED}", "it is computed by RandomUniform node"),
}


@pytest.mark.parametrize("case", UNCHECKED)
def test_the_step_says_why_labels_are_not_checked(case):
    nodes, reason = UNCHECKED[case]
    with pytest.warns(
        bngrad.errors.BngradWarning, match=f"'l', which .* reads as indices, is not checked: .*{reason}"
    ):
        step = step_of(nodes)
    assert [reason in label_range.unchecked for label_range in step.info.labels] == [True]


NO_LABELS = {
    "a-prediction": f"l = ArgMax <axis = 1, keepdims = 0> (z) k = Cast <to = 1> (labels) {loss_of('l')}",
    "a-comparison": f"""{LOG} c = Constant <value = int64[3] {{0, 1, 2}}> () u = Unsqueeze (labels, axis)
        k = Equal (u, c) o = Cast <to = 7> (k) {ONE_HOT} {MEAN}""",
}


@pytest.mark.parametrize("case", NO_LABELS)
def test_what_is_no_index_of_data(case):
    step = step_of(NO_LABELS[case])
    assert step.info.labels == ()
    assert np.isfinite(bngrad.Trainer(step, learning_rate=0.1).step(x=ROWS, labels=np.array([-1, 0, 1, 2, 7])))


@pytest.mark.parametrize("layout", ["named", "flat"])
def test_other_languages_read_the_range(layout):
    text = TEXT.replace("SoftmaxCrossEntropyLoss", "SoftmaxCrossEntropyLoss <ignore_index = 9>")
    step = bngrad.training_step(network(text), layout=layout)
    metadata = {entry.key: entry.value for entry in step.model.metadata_props}
    assert json.loads(metadata["bngrad.step"])["labels"] == [
        {"inputs": ["labels"], "value": "labels", "minimum": 0, "maximum": 2, "ignored": 9, "unchecked": None}
    ]
    assert step.info.labels == (LabelRange(("labels",), "labels", 0, 2, 9),)


def test_the_accuracy_of_computed_labels():
    text = """<ir_version: 9, opset_import: ["" : 18]>
    g (float[N,3] x, int64[N] labels) => (float loss, float[N,3] z)
        <float[3,3] w = {1, 0, 0, 0, 1, 0, 0, 0, 1}, int64 five = {5}> {
        z = MatMul (x, w) a = Div (labels, five) loss = SoftmaxCrossEntropyLoss (z, a)
    }"""
    trainer = bngrad.Trainer(bngrad.training_step(onnx.parser.parse_model(text), wrt=["w"]), learning_rate=0.1)
    data = {"x": np.eye(3, dtype=np.float32), "labels": np.array([0, 5, 6])}
    assert trainer.labels.correct(data, trainer.evaluate(**data)) == (2, 3)


@pytest.mark.parametrize("label", [-1, 5])
def test_labels_to_leave_out(label):
    text = TEXT.replace("SoftmaxCrossEntropyLoss", f"SoftmaxCrossEntropyLoss <ignore_index = {label}>")
    trainer = bngrad.Trainer(bngrad.training_step(network(text)), learning_rate=0.1)
    data = batch()
    data["labels"][:3] = label
    assert trainer.step(**data) > 0
    data["labels"][3] = 3
    with pytest.raises(InputError, match=rf"has the label 3; expected 0 to 2, or {label} to leave a sample out"):
        trainer.step(**data)


@pytest.mark.parametrize(
    "loss_fn", [bngrad.CrossEntropy(), bngrad.CrossEntropy(label_smoothing=0.1)], ids=["plain", "smooth"]
)
def test_labels_of_an_appended_loss(loss_fn):
    model = network()
    del model.graph.node[-1], model.graph.output[0], model.graph.input[1]
    step = bngrad.training_step(model, loss_fn=loss_fn)
    trainer = bngrad.Trainer(step, learning_rate=0.1)
    data = batch()
    data["labels"][0] = -100
    assert trainer.step(**data) > 0
    for label in (-1, 3):
        data["labels"][0] = label
        with pytest.raises(InputError, match=f"has the label {label}; expected 0 to 2, or -100 to leave a sample"):
            trainer.step(**data)


def test_labels_that_are_left_out_do_not_count():
    """Also if the scores are highest for that class."""
    labels, scores = np.array([0, 1, 1, 2]), np.eye(3)[[0, 1, 2, 1]]
    for ignored, expected in ((None, (2, 4)), (1, (1, 2))):
        class_labels = ClassLabels(LabelRange(("labels",), "labels", 0, 2, ignored), "scores", of_loss=True)
        assert class_labels.correct(labels, scores) == expected


def test_two_losses_of_the_same_labels():
    """Neither is the one whose accuracy counts."""
    text = TEXT.replace(
        "    loss = SoftmaxCrossEntropyLoss (logits, labels)",
        """    other = Neg (logits)
        first = SoftmaxCrossEntropyLoss (other, labels)
        second = SoftmaxCrossEntropyLoss (logits, labels)
        loss = Add (first, second)""",
    )
    trainer = bngrad.Trainer(bngrad.training_step(network(text)), learning_rate=0.1)
    assert trainer.labels.correct(batch(), trainer.evaluate(**batch())) == (0, 0)
    with pytest.raises(InputError, match="has the label -1"):
        trainer.step(x=batch()["x"], labels=batch()["labels"] - 1)


def test_a_batch_whose_labels_are_all_left_out():
    """Its loss is NaN, and neither the learning rate nor the state is to blame."""
    text = TEXT.replace("SoftmaxCrossEntropyLoss", "SoftmaxCrossEntropyLoss <ignore_index = -1>")
    trainer = bngrad.Trainer(bngrad.training_step(network(text)), learning_rate=0.1)
    with pytest.raises(
        TrainingError, match="nan in call 1: the loss leaves out every label of 'labels'; the state is"
    ):
        trainer.step(x=batch()["x"], labels=np.full(8, -1))
