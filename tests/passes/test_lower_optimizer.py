"""ORT's optimizers and gradient clipping, lowered, against the kernels of its training build."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest

from bngrad.errors import ModelError, UnsupportedNodeError
from bngrad.passes.pipeline import rewrite, unknown_to_stock
from passes.pass_models import ops, proto

ADAMW_INPUTS = "float[1] lr, int64[1] t, seq(float[]) w, seq(float[]) g, seq(float[]) m, seq(float[]) v"
SHAPES = [(3, 4), (), (5,), (2, 0), (1,)]
ADAMW = "AdamWOptimizer"
SGD = "SGDOptimizerV2"
CLIP = "InplaceClipGradNorm"
SEQUENCES = {ADAMW: ("w", "g", "m", "v"), SGD: ("w", "g"), CLIP: ("g",)}
UPDATED = {ADAMW: ("w", "m", "v"), SGD: ("w",), CLIP: ("g",)}
SCALARS = {ADAMW: {"lr": "float[1]", "t": "int64[1]"}, SGD: {"lr": "float[1]"}, CLIP: {}}


class Case(NamedTuple):
    """A node: its op, its attributes as text, and the values of its scalar inputs."""

    op: str
    attributes: str = ""
    lr: float = 0.01
    step: int = 1
    signal: bool | None = None
    gradients: float = 1.0


CASES = {
    "adamw": Case(ADAMW),
    "adamw-transformers": Case(ADAMW, "adam_mode = 1, weight_decay = 0.0, epsilon = 1e-6"),
    "adamw-transformers-decay": Case(ADAMW, "adam_mode = 1, weight_decay = 0.1", step=3),
    "adamw-transformers-uncorrected": Case(ADAMW, "adam_mode = 1, correct_bias = 0", step=3),
    "adamw-transformers-large-epsilon": Case(ADAMW, "adam_mode = 1, epsilon = 0.1", step=3),
    "adamw-pytorch": Case(ADAMW, "adam_mode = 0, alpha = 0.8, beta = 0.95, epsilon = 1e-4", step=7),
    "adamw-pytorch-undecayed": Case(ADAMW, "adam_mode = 0, weight_decay = 0.0", step=7),
    "adamw-late": Case(ADAMW, "adam_mode = 1", step=100_000),
    "adamw-rate-0": Case(ADAMW, lr=0.0),
    "adamw-on": Case(ADAMW, signal=True),
    "adamw-off": Case(ADAMW, signal=False),
    "adamw-nan": Case(ADAMW, gradients=np.nan),
    "sgd": Case(SGD),
    "sgd-on": Case(SGD, signal=True),
    "sgd-off": Case(SGD, signal=False),
    "sgd-inf": Case(SGD, gradients=np.inf),
    "clip": Case(CLIP, "max_norm = 0.5"),
    "clip-default": Case(CLIP),
    "clip-not": Case(CLIP, "max_norm = 1000.0"),
    "clip-tiny": Case(CLIP, "max_norm = 0.000001", gradients=1e-6),
    "clip-zeros": Case(CLIP, gradients=0.0),
    "clip-nan": Case(CLIP, gradients=np.nan),
    "clip-inf": Case(CLIP, gradients=np.inf),
}


def feeds_of(case, rng):
    feeds = {}
    for sequence in SEQUENCES[case.op]:
        for i, shape in enumerate(SHAPES):
            scale = case.gradients if sequence == "g" else 1
            feeds[f"{sequence}{i}"] = np.asarray(np.abs(rng.normal(size=shape)) * scale, "f")
    feeds |= {"lr": np.array([case.lr], "f"), "t": np.array([case.step])}
    if case.signal is not None:
        feeds["signal"] = np.array([case.signal])
    kept = {*SCALARS[case.op], "signal"}
    return {name: value for name, value in feeds.items() if name[-1].isdigit() or name in kept}


def node_text(case):
    """The node, and the sequences of its new tensors."""
    reads = ["lr", "t", *SEQUENCES[ADAMW]] if case.op == ADAMW else [*SCALARS[case.op], *SEQUENCES[case.op]]
    signal = [] if case.signal is None else ["signal"]
    outputs = [f"new_{name}" for name in UPDATED[case.op]]
    done = [] if case.op == CLIP else ["done"]
    attributes = f"<{case.attributes}>" if case.attributes else ""
    return f"[n] {', '.join(done + outputs)} = com.microsoft.{case.op} {attributes} ({', '.join(reads + signal)})"


def scalar_inputs(case):
    signal = {} if case.signal is None else {"signal": "bool[1]"}
    return [f"{type_} {name}" for name, type_ in (SCALARS[case.op] | signal).items()]


def unrolled(case):
    """The node between tensors: the graph builds its sequences from tensors, and takes them apart."""
    types = {f"{s}{i}": f"float{list(shape) or ''}" for s in SEQUENCES[case.op] for i, shape in enumerate(SHAPES)}
    inputs = [*scalar_inputs(case), *(f"{type_} {name}" for name, type_ in types.items())]
    outputs = [f"float{list(shape) or ''} out_{s}{i}" for s in UPDATED[case.op] for i, shape in enumerate(SHAPES)]
    if case.op != CLIP:
        outputs.append("bool[1] done")
    sequences = [
        f"{s} = SequenceConstruct ({', '.join(f'{s}{i}' for i in range(len(SHAPES)))})" for s in SEQUENCES[case.op]
    ]
    apart = [
        f"i_{s}{i} = Constant<value = int64 {{{i}}}>() out_{s}{i} = SequenceAt (new_{s}, i_{s}{i})"
        for s in UPDATED[case.op]
        for i in range(len(SHAPES))
    ]
    body = "\n".join([*sequences, node_text(case), *apart])
    return proto(f"g ({', '.join(inputs)}) => ({', '.join(outputs)}) {{\n{body}\n}}", 16)


def looped(case):
    """The node between sequences, which are the inputs and outputs of the graph."""
    inputs = [*scalar_inputs(case), *(f"seq(float[]) {name}" for name in SEQUENCES[case.op])]
    outputs = [f"seq(float[]) new_{name}" for name in UPDATED[case.op]]
    if case.op != CLIP:
        outputs.append("bool[1] done")
    return proto(f"g ({', '.join(inputs)}) => ({', '.join(outputs)}) {{ {node_text(case)} }}", 16)


def lists(feeds):
    """The tensors of each sequence together."""
    result = {}
    for name, value in feeds.items():
        if name[-1].isdigit():
            result.setdefault(name[:-1], []).append(value)
        else:
            result[name] = value
    return result


def session(model):
    return ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


def run(model, feeds):
    opened = session(model)
    return dict(zip([o.name for o in opened.get_outputs()], opened.run(None, feeds), strict=True))


@pytest.fixture(scope="module")
def expected(oracle):
    """The results of ONNX Runtime's own kernels, by case."""
    results = {}
    for name, case in CASES.items():
        feeds = feeds_of(case, np.random.default_rng(1))
        results[name] = (feeds, oracle.run(unrolled(case), feeds))
    return results


def lowered(model):
    result = rewrite(ir.from_proto(model))
    assert not unknown_to_stock(result.model)
    return result, ir.to_proto(result.model)


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
@pytest.mark.parametrize("case", CASES)
def test_unrolled(case, expected):
    feeds, want = expected[case]
    result, model = lowered(unrolled(CASES[case]))
    got = run(model, feeds)
    assert {"Loop", "SequenceEmpty"}.isdisjoint(ops(result.model))
    for name, value in want.items():
        np.testing.assert_allclose(got[name], value, rtol=1e-6, atol=1e-14, err_msg=name)
        assert got[name].shape == value.shape
    updated = {f"{s}{i}" for s in UPDATED[CASES[case].op] for i in range(len(SHAPES))}
    assert result.state == {name: f"{name}_new" for name in updated}
    for name in updated:
        np.testing.assert_array_equal(got[f"{name}_new"], got[f"out_{name}"])


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
@pytest.mark.parametrize("case", CASES)
def test_looped(case, expected):
    feeds, want = expected[case]
    result, model = lowered(looped(CASES[case]))
    got = run(model, lists(feeds))
    assert result.state == {name: f"new_{name}" for name in UPDATED[CASES[case].op]}
    for name in result.state:
        for i, value in enumerate(got[f"new_{name}"]):
            np.testing.assert_allclose(value, want[f"out_{name}{i}"], rtol=1e-6, atol=1e-14)
            assert value.shape == SHAPES[i]


def test_state_without_outputs():
    """As generate_artifacts writes it: clipped gradients go to the optimizer, whose only output is its flag."""
    text = f"""g ({ADAMW_INPUTS}) => (bool[1] d) {{
        c = com.microsoft.InplaceClipGradNorm <max_norm = 0.5> (g)
        d = com.microsoft.AdamWOptimizer <adam_mode = 1> (lr, t, w, c, m, v)
    }}"""
    result, model = lowered(proto(text, 15))
    assert result.state == {"g": "c", "w": "w_new", "m": "m_new", "v": "v_new"}
    ones = [np.ones(4, "f")]
    got = run(model, {"lr": np.float32([0.1]), "t": np.array([1]), "w": ones, "g": ones, "m": ones, "v": ones})
    assert got["d"].tolist() == [True]
    np.testing.assert_allclose(got["c"][0], 0.25, rtol=1e-5)
    assert len(got["w_new"]) == 1


@pytest.mark.parametrize("short", ["w", "g"])
def test_sequences_of_different_lengths_fail_at_run_time(short):
    _, model = lowered(looped(CASES["sgd"]))
    feeds = {"lr": np.float32([0.1]), "w": [np.ones(2, "f")] * 2, "g": [np.ones(2, "f")] * 2}
    feeds[short] = feeds[short][:1]
    with pytest.raises(Exception, match="Invalid sequence index"):
        run(model, feeds)


def test_a_gradient_of_another_shape_fails_at_run_time():
    _, model = lowered(looped(CASES["sgd"]))
    with pytest.raises(Exception, match="cannot be reshaped"):
        run(model, {"lr": np.float32([0.1]), "w": [np.ones((2, 3), "f")], "g": [np.ones(3, "f")]})


def test_an_empty_sequence():
    _, model = lowered(looped(CASES["sgd"]))
    assert run(model, {"lr": np.float32([0.1]), "w": [], "g": []})["new_w"] == []


@pytest.mark.parametrize("shapes", [[(3, 4)], [(2,), (), (1, 3)]], ids=["one", "three"])
def test_reduce_all_l2(shapes, rng, oracle):
    names = [f"x{i}" for i in range(len(shapes))]
    inputs = ", ".join(f"float{list(shape) or ''} {name}" for name, shape in zip(names, shapes, strict=True))
    model = proto(f"g ({inputs}) => (float y) {{ y = com.microsoft.ReduceAllL2 ({', '.join(names)}) }}", 16)
    feeds = {name: rng.normal(size=shape).astype("f") for name, shape in zip(names, shapes, strict=True)}
    got = run(lowered(model)[1], feeds)["y"]
    want = oracle.run(model, feeds)["y"]
    np.testing.assert_allclose(got, want, rtol=1e-6)
    assert got.shape == want.shape


REFUSED = {
    "sgd-without-gradients": (
        "g (float[1] lr, seq(float[]) w) => (bool[1] d) { [n] d = com.microsoft.SGDOptimizerV2 (lr, w) }",
        "lacks an input; expected 3",
    ),
    "double": (
        """g (float[1] lr, seq(double[]) w, seq(double[]) g) => (bool[1] d) {
            [n] d = com.microsoft.SGDOptimizerV2 (lr, w, g) }""",
        "its tensors are double and float; expected one type",
    ),
    "double-gradients": (
        "g (seq(double[]) g) => (seq(double[]) c) { [n] c = com.microsoft.InplaceClipGradNorm (g) }",
        "its input 'g' is a sequence of double; expected float",
    ),
    "mode-0-uncorrected": (
        f"""g ({ADAMW_INPUTS}) => (bool[1] d) {{
            [n] d = com.microsoft.AdamWOptimizer <correct_bias = 0> (lr, t, w, g, m, v) }}""",
        "it has adam_mode = 0 and correct_bias = 0, which ONNX Runtime refuses",
    ),
    "weights-read-elsewhere": (
        """g (float[1] lr, seq(float[]) w, seq(float[]) g) => (bool[1] d, int64 l) {
            [n] d = com.microsoft.SGDOptimizerV2 (lr, w, g) l = SequenceLength (w) }""",
        "its input 'w', which it updates in place, is read by another node too",
    ),
    "mode": (
        f"""g ({ADAMW_INPUTS}) => (bool[1] d) {{
            [n] d = com.microsoft.AdamWOptimizer <adam_mode = 2> (lr, t, w, g, m, v) }}""",
        "it has adam_mode = 2; expected one of 0, 1",
    ),
    "attribute": (
        "g (seq(float[]) g) => (seq(float[]) c) { [n] c = com.microsoft.InplaceClipGradNorm <norm_type = 1> (g) }",
        "it has the attribute 'norm_type'; expected only max_norm",
    ),
    "lengths": (
        """g (float[1] lr, float[2] w, float[2] g) => (bool[1] d) {
            a = SequenceConstruct (w)
            b = SequenceConstruct (g, g)
            [n] d = com.microsoft.SGDOptimizerV2 (lr, a, b) }""",
        "its sequences have 1 and 2 tensors; expected one number",
    ),
    "in-a-subgraph": (
        """g (bool c, float[1] lr, seq(float[]) w, seq(float[]) g) => (bool[1] d) {
            d = If (c) <
                then_branch = t () => (bool[1] a) { [n] a = com.microsoft.SGDOptimizerV2 (lr, w, g) },
                else_branch = e () => (bool[1] b) { b = Constant<value = bool[1] {0}> () }> }""",
        "it is in a subgraph or a function, which cannot return the new value",
    ),
    **{
        op: (f"g (float[2] w, float[2] g) => (float[2] y) {{ [n] y = com.microsoft.{op} (w, g) }}", message)
        for op, message in (
            ("AdamOptimizer", "is an optimizer that bngrad does not rewrite"),
            ("LambOptimizer", "is an optimizer that bngrad does not rewrite"),
            ("SGDOptimizer", "is an optimizer that bngrad does not rewrite"),
        )
    },
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case):
    text, message = REFUSED[case]
    with pytest.raises(UnsupportedNodeError) as caught:
        rewrite(ir.from_proto(proto(text, 16)))
    assert message in str(caught.value)
    assert "node 'n'" in str(caught.value)


def test_the_training_build_keeps_its_kernels():
    with pytest.raises(ModelError, match="no other training op"):
        rewrite(ir.from_proto(looped(CASES["sgd"])), target="training")
