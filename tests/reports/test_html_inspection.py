"""The page of an inspection: batch norms along the graph, hazards, ops; names stay in their places."""

from __future__ import annotations

import re

import onnx
import onnx_ir as ir
import pytest

from bngrad.inspection.graph_nodes import GraphNode
from bngrad.inspection.identity import Identity
from bngrad.inspection.inspect import BatchNorm, Inspection, inspect
from bngrad.inspection.trainability import GraphValue, LossChoice, Trainability
from bngrad.reports.html.graph import MOST
from bngrad.reports.html.inspection import write_html
from bngrad.reports.visible import visible
from pages import Page

PARAMETERS = "float[3] s, float[3] b, float[3] m, float[3] v"
MODEL = f"""<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1, "tf" : 1]>
g (float[N,3,4,4] x, float[N,3,4,4] dy, {PARAMETERS}) => (float[N,3,4,4] z) {{
    c = Constant<value_ints = [0]>()
    [frozen] a = BatchNormalization(x, s, b, m, v)
    r = Relu(a)
    [crashes] h = BatchNormalization<training_mode = 1>(r, s, b, m, v)
    [overwrites] i, m2, v2 = BatchNormalization<training_mode = 1>(h, s, b, m, v)
    [also] j, m3, v3 = BatchNormalization<training_mode = 1>(i, s, b, m, v)
    q = com.microsoft.ReluGrad(dy, j)
    z = Add(q, j)
}}"""
NAMES = ["<b onclick=x>", "</script><script>x</script>", "a & b", "\u202eabc", "'\"", "x" * 5000, "{{ 1 }}"]


@pytest.fixture
def page(tmp_path):
    def make(inspection, model="m.onnx", nodes=()):
        write_html(inspection, model, Identity([], 17, 8, "", 9), tmp_path / "report.html", nodes)
        html = Page(tmp_path / "report.html")
        html.check_self_contained()
        return html

    return make


def test_modes_hazards_and_places(page):
    html = page(inspect(ir.from_proto(onnx.parser.parse_model(MODEL))))
    table = html.table
    assert table["batch norm"] == ["frozen", "crashes", "overwrites", "also"]
    assert table["mode"] == ["frozen", "training", "training", "training"]
    assert table["node"] == ["1", "3", "4", "5"]  # constants are not counted
    assert table["X"][:2] == ["Nx3x4x4"] * 2
    assert [bool(text) for text in table["hazards"]] == [False, True, True, True]
    for text in (
        "4 batch norms, 3 hazards",
        "1 node of 1 op that stock ONNX Runtime does not have",
        "stock ONNX Runtime crashes: crashes",
        "overwrites running_mean and running_var: overwrites, also",
        "com.microsoft.ReluGrad 1",
        "training: 3",
        "frozen: 1",
    ):
        assert text in html.text
    assert html.count("use", class_="hazard") == 3
    assert html.count("use", class_="frozen") == 1
    places = [float(has["x"].rstrip("%")) for tag, has in html.elements if tag == "use"]
    assert places == sorted(places)


@pytest.mark.parametrize("count", [4, MOST + 5])
def test_the_graph(count, page):
    """A chain with a frozen batch norm at its second place and an op without a gradient at its third."""
    ops = ["Conv", "BatchNormalization", "Foo", *["Relu"] * (count - 3)]
    nodes = [GraphNode(f"n{i}", op, "Nx3", (i - 1,) if i else (), f"m.py:{i}: x") for i, op in enumerate(ops)]
    norm = BatchNorm("n1", "n1", "BatchNormalization", "frozen", [0], "float", "Nx3", "", position=1)
    training = Trainability([], False, 1, 1, ["no gradient"], {"Foo": 1})
    html = page(Inspection(17, 8, [norm], {}, nodes=count, training=training), nodes=nodes)
    links = [has["href"] for tag, has in html.elements if tag == "a"]
    targets = {has["id"] for _, has in html.elements if "id" in has}
    centre = "" if count == 4 else " centre"
    assert html.count("a", class_=f"node frozen{centre}") == html.count("a", class_=f"node refused{centre}") == 1
    if count == 4:
        assert len(html.drawings) == 1
        assert links == ["#nodes-0", "#batch-norms-0", "#nodes-2", "#nodes-3"]
        assert {link.removeprefix("#") for link in links} <= targets
        assert "All 4 nodes without constants" in html.text
    else:
        assert "the neighbourhoods of 2 of 2 nodes" in html.text
        assert html.text.index("Near n2") < html.text.index("Near n1")  # what is refused comes first
        assert 20 < len(links) <= 40
    assert "m.py:2: x" in html.source


def batch_norms(count, **fields):
    return [
        BatchNorm(
            f"bn{i}", f"bn{i}", "BatchNormalization", "training", [0], "float", "Nx3", "", position=i, **fields
        )
        for i in range(count)
    ]


LOSS = LossChoice("loss", None, None, "", "bngrad step m.onnx -o step.onnx")
SHOWN = {
    "none": (Inspection(17, 8, [], {}), ["No batch norms", "All ops are in stock ONNX Runtime or in bngrad."]),
    "one": (Inspection(17, 8, batch_norms(1), {}, nodes=1), ["1 batch norm", "1 training", "In graph order"]),
    "many-with-a-hazard": (
        Inspection(17, 8, batch_norms(200, hazards=["it crashes"]), {}, nodes=200),
        ["200 batch norms, 200 hazards", "it crashes: bn0, bn1, bn2 and 197 more"],
    ),
    "in-primitives": (
        Inspection(17, 8, [], {}, in_primitives={"batch norm": 4, "gradient": 2}),
        ["in primitives 6", "batch norm 4", "gradient 2"],
    ),
    "nowhere": (
        Inspection(
            0, 8, [BatchNorm("f", "f", "tf.FusedBatchNormV3", "foreign", None, "unknown", "unknown", "")], {}
        ),
        ["1 other system", "unknown", "?"],
    ),
    "warnings-and-notes": (
        Inspection(17, 8, [], {}, warnings=["folded"], notes=["put in training mode"]),
        ["No batch norms, 1 warning", "warning folded", "note put in training mode"],
    ),
    "refused": (
        Inspection(17, 8, [], {}, training=Trainability([], False, 0, 0, ["no weights"])),
        ["No batch norms, step refuses it", "no weights"],
    ),
    "several-faults": (
        Inspection(
            *(17, 8, batch_norms(1, hazards=["it crashes"]), {}),
            nodes=1,
            warnings=["folded", "tied"],
            training=Trainability([], False, 1, 1, ["no loss"]),
        ),
        ["1 batch norm, 1 hazard, 2 warnings, step refuses it"],
    ),
    "trained": (
        Inspection(17, 8, [], {}, training=Trainability([LOSS], True, 1, 1)),
        ["No batch norms", "bngrad step"],
    ),
}


@pytest.mark.parametrize("case", SHOWN)
def test_what_is_shown(case, page):
    inspection, texts = SHOWN[case]
    html = page(inspection)
    for text in texts:
        assert text in html.text
    faults = bool(inspection.warnings or any(norm.hazards for norm in inspection.batch_norms))
    faults |= inspection.training is not None and bool(inspection.training.refusals)
    (verdict,) = re.findall(r'class="verdict (\w+)"', html.source)
    (headline,) = re.findall("<h1.*?</h1>", html.source, re.DOTALL)
    assert (verdict == "warned") == faults == ("," in headline)


TRAINED = LossChoice(None, "mse", "y", "target float N", "bngrad step m.onnx -o step.onnx --loss-fn mse")
LINES = ["Foo node 'a' cannot be differentiated", "Foo node 'b' cannot be differentiated"]
TRAINING = {
    "can-be-trained": (
        Trainability([TRAINED], False, 2, 1234),
        ["can be trained", "mse of 'y', with target float N", TRAINED.command, "weights 2", "parameters 1,234"],
    ),
    "refused": (
        Trainability([TRAINED], False, 2, 1234, LINES, {"Foo": 2}),
        ["refused", *LINES, "Ops without a gradient: Foo (2)"],
    ),
}


@pytest.mark.parametrize("case", TRAINING)
def test_training(case, page):
    training, texts = TRAINING[case]
    values = [GraphValue(f"x{i}", "float", "Nx3") for i in range(8)]
    html = page(Inspection(17, 8, [], {}, inputs=values, training=training))
    for text in (*texts, "input x5 float Nx3", "and 2 more"):
        assert text in html.text
    assert (TRAINED.command in html.text) == (not training.refusals)
    assert html.count("button", class_="copy") == (not training.refusals)


@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
@pytest.mark.parametrize("refused", [False, True])
def test_a_name_stays_in_its_place(refused, name, page):
    def found(text):
        batch_norm = BatchNorm(text, text, text, "training", [0], "float", text, text, [text])
        value, loss = GraphValue(text, "float", text), LossChoice(None, "mse", text, text, text)
        training = Trainability([loss], False, 1, 1, [text] if refused else [], {text: 1})
        nodes = [GraphNode(text, text, text, (), text), GraphNode(text, text, text, (0,), text)]
        return nodes, Inspection(
            17, 8, [batch_norm], {text: 1}, {text: 2}, [text], [text], 1, None, [value], [value], training
        )

    (nodes, plain), (odd_nodes, odd) = found("n"), found(name)
    plain, html = page(plain, "n", nodes), page(odd, name, odd_nodes)
    assert html.table["batch norm"] == html.table["X"] == [visible(name)]
    assert [tag for tag, _ in html.elements if tag != "wbr"] == [tag for tag, _ in plain.elements if tag != "wbr"]
