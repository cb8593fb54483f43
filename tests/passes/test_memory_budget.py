"""Steps in a number of bytes: what is computed again, the simulated peak, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

import bngrad
from bngrad.options import require_memory
from bngrad.passes.optimize.live_bytes import LiveBytes
from bngrad.validation.inputs import bind_dimensions
from pass_models import header, model

DIGITS = Path(__file__).parents[2] / "models" / "digits_resnet20.onnx"
BATCH = 64
BUDGETS = [3_500_000, 3_000_000, 2_700_000]


def fixed():
    result = ir.load(DIGITS)
    bind_dimensions(result, {"N": BATCH}, {})
    return ir.to_proto(result)


@pytest.fixture(scope="module")
def steps():
    return {memory: bngrad.training_step(fixed(), memory=memory) for memory in ("full", *BUDGETS, "lean")}


def simulated(step):
    return LiveBytes(ir.from_proto(step.model).graph, outputs_first=True).run()


def copies(step):
    return sum(node.name.startswith(("bngrad_again_B", "bngrad_again_Relu")) for node in step.model.graph.node)


def feeds_of(step):
    rng = np.random.default_rng(0)
    return {
        **step.state,
        "images": rng.standard_normal((BATCH, 1, 8, 8)).astype(np.float32),
        "labels": rng.integers(0, 10, BATCH),
        "learning_rate": np.array(0.1, np.float32),
    }


@pytest.mark.parametrize("memory", BUDGETS)
def test_the_peak_is_below_the_budget_and_the_bits_stay(steps, memory):
    step, full = steps[memory], steps["full"]
    assert simulated(step).peak <= memory < simulated(full).peak
    results, expected = (bngrad.session(s.model, threads=1).run(None, feeds_of(s)) for s in (step, full))
    assert [output.name for output in step.model.graph.output] == [o.name for o in full.model.graph.output]
    for array, other in zip(results, expected, strict=True):
        np.testing.assert_array_equal(array, other)


@pytest.mark.parametrize("options", [{"channels_last": True}, {"accumulate": 2, "optimizer": "adamw"}], ids=str)
def test_other_steps(options):
    full, lean = (bngrad.training_step(fixed(), memory=memory, **options) for memory in ("full", "lean"))
    memory = (simulated(full).peak + simulated(lean).peak) // 2
    step = bngrad.training_step(fixed(), memory=memory, **options)
    assert simulated(step).peak <= memory
    results, expected = (bngrad.session(s.model, threads=1).run(None, feeds_of(s)) for s in (step, full))
    for array, other in zip(results, expected, strict=True):
        np.testing.assert_array_equal(array, other)


@pytest.mark.parametrize("size", [8, 12], ids=["of images", "of rows"])
@pytest.mark.parametrize("options", [{"functions": False}, {"precision": "mixed"}], ids=str)
def test_gradients_of_depthwise_convolutions(size, options):
    source = onnx.parser.parse_model(
        header(17)
        + f"""g (float[2,3,{size},{size}] x, float[3,1,3,3] w) => (float loss) {{
            y = Conv <group = 3, pads = [1, 1, 1, 1]> (x, w)
            loss = ReduceSum <keepdims = 0> (y)
        }}"""
    )
    values = {"w": np.ones((3, 1, 3, 3), np.float32)}
    step = bngrad.training_step(source, wrt=["w"], values=values, memory="1GB", **options)
    assert "FusedMatMul" in {node.op_type for node in step.model.graph.node}


def test_more_bytes_have_fewer_copies(steps):
    numbers = [copies(step) for step in steps.values()]
    assert numbers == sorted(set(numbers)), "in the order of full, the budgets from large to small, and lean"
    assert numbers[0] == 0


def test_a_budget_above_the_peak_changes_nothing(steps):
    peak = simulated(steps["full"]).peak
    assert bngrad.training_step(fixed(), memory=peak).model == steps["full"].model


@pytest.mark.parametrize("function", [bngrad.differentiate, bngrad.rewrite])
def test_training_graphs_have_it_too(function):
    source = fixed() if function is bngrad.differentiate else bngrad.differentiate(fixed(), target="ort")
    full, lean = (LiveBytes(ir.from_proto(function(source, memory=m)).graph).run().peak for m in ("full", "lean"))
    memory = (full + lean) // 2
    assert lean <= LiveBytes(ir.from_proto(function(source, memory=f"{memory}B")).graph).run().peak <= memory


@pytest.mark.parametrize("memory", ["full", 3_000_000, "lean"])
def test_the_simulated_order_is_that_of_onnxruntime(steps, memory, tmp_path):
    options = onnxruntime.SessionOptions()
    bngrad.register(options)
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.enable_profiling = True
    options.profile_file_prefix = str(tmp_path / "profile")
    session = onnxruntime.InferenceSession(steps[memory].model.SerializeToString(), options)
    session.run(None, feeds_of(steps[memory]))
    events = json.loads(Path(session.end_profiling()).read_text())
    kernels = sorted((e for e in events if e["name"].endswith("_kernel_time")), key=lambda event: event["ts"])
    ran = [event["name"].removesuffix("_kernel_time") for event in kernels]
    order = [node.name for node in simulated(steps[memory]).order]
    functions = {"SoftmaxCrossEntropyLoss"}  # one of ONNX's, whose nodes have other names in a session
    inlined = {node.name for node in steps[memory].model.graph.node if node.op_type in functions}
    assert [name for name in ran if name in order] == [name for name in order if name not in inlined]


GRAPH = """g (float[4,8] x, double[8] w, float16[2] h) => (float[4,8] y, float[32] z) {{
    [a] t = Relu (x)
    [b] u = Neg (t)
    shape = Constant <value_ints = [32]> ()
    [c] v = Reshape (u, shape)
    [d] z = Exp (v)
    [e] y = Abs (x)
    {}
}}"""
INPUTS = 128 + 64 + 4 + 8


@pytest.mark.parametrize(
    ("more", "outputs_first", "bytes_of_results"),
    [
        ("", False, 2 * 128),  # t and u; u, which is v, and z; z and y
        ("", True, 4 * 128),  # y and z beside t and u
        ("[f] m = Greater (x, t) [g] n = Cast <to = 1> (m)", False, 2 * 128),  # nothing needs it
    ],
    ids=["as they are made", "outputs first", "unused"],
)
def test_bytes_of_values(more, outputs_first, bytes_of_results):
    graph = model(header(18) + GRAPH.format(more)).graph
    assert LiveBytes(graph, outputs_first=outputs_first).run().peak == INPUTS + bytes_of_results


def test_a_value_in_the_place_of_another():
    graph = model(header(18) + GRAPH.format("")).graph
    t, u = (next(node for node in graph if node.name == name).outputs[0] for name in "ab")
    run = LiveBytes(graph).run({u: t})
    assert [node.name for node in run.order] == ["a", "c", "d", "e"]


SIZES = [
    (12, 12),
    ("12", 12),
    ("700MiB", 700 * 2**20),
    ("1.5 GB", 1_500_000_000),
    ("2KiB", 2048),
    (str(10**40), 10**40),
    ("full", "full"),
]


@pytest.mark.parametrize(("memory", "expected"), SIZES)
def test_sizes(memory, expected):
    assert require_memory(memory) == expected


MALFORMED = [0, -1, "0", "0MB", "-2GB", "2gb", "2G", "", "1.5", "1e9", "GB", "1iB", True, None, 2.5]
MALFORMED += ["٣MB", f"1.{0:040}1KB", "9" * 5000, np.ones(2)]


@pytest.mark.parametrize("memory", MALFORMED, ids=lambda memory: repr(memory)[:12])
def test_malformed_sizes(memory):
    with pytest.raises(
        bngrad.InputError, match=r"memory is .*; expected full, lean, or a number of bytes above 0"
    ):
        bngrad.training_step(DIGITS, memory=memory)


def loop():
    return onnx.parser.parse_model(
        header(17)
        + """g (float[4] x, int64 n) => (float loss) <float[4] w = {1, 2, 3, 4}> {
            y = Mul (x, w)
            c = Constant <value = bool {1}> ()
            z = Loop (n, c, y) <body = b (int64 i, bool k, float[4] a) => (bool k2, float[4] a2) {
                k2 = Identity (k)
                a2 = Tanh (a)
            }>
            loss = ReduceSum <keepdims = 0> (z)
        }"""
    )


def product():
    return onnx.parser.parse_model(
        header(17)
        + """g (float[4] x) => (float loss) <float[4] w = {1, 2, 3, 4}> {
            y = Mul (x, w)
            loss = ReduceSum <keepdims = 0> (y)
        }"""
    )


REFUSED = {
    "symbolic": (
        lambda: onnx.load(DIGITS),
        {"memory": "1GB"},
        r"input 'images' is float\[N, 1, 8, 8\]; expected inputs of known sizes: .* --dim_param N --dim_value 8",
    ),
    "too little": (
        fixed,
        {"memory": 1000},
        r"memory is 1000 bytes, and the graph takes \d+ with all that is cheap computed again; expected \d+MB",
    ),
    "nothing is cheap": (product, {"memory": 60}, "memory is 60 bytes, and the graph takes [0-9]+ with all"),
    "body": (loop, {"memory": "1GB"}, "Loop .*has a body, whose values are not counted"),
}


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.filterwarnings("error::bngrad.BngradWarning")
def test_refusals_of_steps(case):
    source, options, message = REFUSED[case]
    with pytest.raises(bngrad.BngradError, match=message):
        bngrad.training_step(source(), **options)


@pytest.mark.parametrize("target", ["training", "ort"])
def test_other_targets(target):
    with pytest.raises(bngrad.InputError, match=f"memory is .* with target '{target}'; expected target stock"):
        bngrad.differentiate(fixed(), target=target, memory="1GB")


def test_the_least_is_reached():
    with pytest.raises(bngrad.InputError) as refusal:
        bngrad.training_step(fixed(), memory=1)
    least = int(str(refusal.value).split("takes ")[1].split()[0])
    assert simulated(bngrad.training_step(fixed(), memory=least)).peak == least
