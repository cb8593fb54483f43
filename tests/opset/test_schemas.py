"""Tests the ops with onnx's checker and shape inference."""

from __future__ import annotations

import itertools
import pkgutil
import re
import subprocess
import sys

import onnx
import pytest
from onnx import TensorProto

import bngrad.opset
from bngrad.opset import batched_conv, depthwise, overloaded, quantities, schemas
from bngrad.opset.functions import DOMAIN, FUNCTIONS, VERSION, function_proto
from bngrad.opset.onnx_registry import schema_in
from bngrad.opset.quantities import QUANTITIES
from op_models import (
    ADAM,
    CASES,
    FIXED_TYPES,
    GRAD,
    STATISTICS,
    TRAINING,
    function_opsets,
    op_model,
    opset_versions,
)

ATTRIBUTES = dict(CASES.values())

HEADER = '<ir_version: 8, opset_import: ["" : 17, "bngrad" : 1]>\n'
AXES = "axes = Constant<value = int64[3] {0, 2, 3}>()"
OP = {
    GRAD: """dX, dscale, dbias = bngrad.BatchNormalizationGrad<training_mode = 1>
        (dY, X, scale, mean, inv_std, axes)""",
    TRAINING: """Y, new_running_mean, new_running_var, saved_mean, saved_inv_std =
        bngrad.BatchNormalizationTraining<epsilon = 0.001, momentum = 0.9, unbiased_running_var = 0>
        (X, scale, bias, running_mean, running_var, axes)""",
    ADAM: """w, m, v = bngrad.AdamUpdate(weight, gradient, exp_avg, exp_avg_sq, coefficients)""",
    STATISTICS: "mean, inv_std = bngrad.BatchNormalizationStatistics<epsilon = 0.001>(X, axes)",
}


def parse(text, functions=()):
    model = onnx.parser.parse_model(HEADER + text)
    model.functions.extend(function_proto(name, 17) for name in functions)
    return model


def inferred(model):
    """Returns the types and dimensions of all inferred values by name; dimensions are None if unknown."""
    result = onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True)
    types = {}
    for value in (*result.graph.value_info, *result.graph.output):
        tensor = value.type.tensor_type
        dims = [d.dim_value if d.HasField("dim_value") else d.dim_param or None for d in tensor.shape.dim]
        types[value.name] = (tensor.elem_type, dims if tensor.HasField("shape") else None)
    return types


def error_of(model):
    with pytest.raises((onnx.checker.ValidationError, onnx.shape_inference.InferenceError)) as error:
        onnx.checker.check_model(model, full_check=True)
    return str(error.value)


@pytest.mark.parametrize("version", opset_versions())
def test_the_checker_accepts_every_op(version):
    for op, function in itertools.product(FUNCTIONS, (True, False)):
        if version in function_opsets(op):
            try:
                check_accepted(op, version, function=function)
            except Exception as error:
                error.add_note(f"{op}, {'with' if function else 'without'} its function")
                raise


def check_accepted(op, version, *, function):
    for shape, axes in (((2, 3, 4, 5), (0, 2, 3)), (("N", 3), (0,)), ((2, 3, 4), (-1, 0)), ((5,), ())):
        sizes = tuple(7 if isinstance(e, str) else e for e in shape)
        model = op_model(op, ATTRIBUTES[op], opset=version, function=function, shape=sizes, axes=axes)
        for value in (*model.graph.input, *model.graph.output):
            for dim in value.type.tensor_type.shape.dim:
                if dim.dim_value == 7:
                    dim.dim_param = "N"
        onnx.checker.check_model(model, full_check=True)
        onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True)


F = TensorProto.FLOAT
D = TensorProto.DOUBLE
# The declared types of the other values do not matter.
INFERRED = {
    "grad": (
        f"""g (float[N,3,H,W] dY, float[N,3,H,W] X, float[3] scale, float[3] mean, float[3] inv_std)
            => (float[a,b,c,d] dX) {{ {AXES} {OP[GRAD]} }}""",
        {"dscale": (F, [3]), "dbias": (F, [3])},
    ),
    "grad-double-symbolic-channels": (
        f"""g (double[2,C,4,4] dY, double[2,C,4,4] X, double[C] scale, double[C] mean, double[C] inv_std)
            => (double[a,b,c,d] z) {{ {AXES} {OP[GRAD]} z = Identity(dX) }}""",
        {"dX": (D, [2, "C", 4, 4]), "dscale": (D, ["C"]), "dbias": (D, ["C"])},
    ),
    "grad-axes-are-an-input": (
        f"""g (float[2,3] dY, float[2,3] X, float[3] scale, float[3] mean, float[3] inv_std, int64[K] axes)
            => (float[a,b] z) {{ {OP[GRAD]} z = Identity(dX) }}""",
        {"dX": (F, [2, 3]), "dscale": (F, [3])},
    ),
    "training": (
        f"""g (float[N,3,4,4] X, float[3] scale, float[3] bias, float[3] running_mean, float[3] running_var)
            => (float[a,b,c,d] z) {{ {AXES} {OP[TRAINING]} z = Identity(Y) }}""",
        {
            "Y": (F, ["N", 3, 4, 4]),
            **dict.fromkeys(("new_running_mean", "new_running_var", "saved_mean", "saved_inv_std"), (F, [3])),
        },
    ),
    "statistics": (
        f"g (float[N,C,4,4] X) => (float[a] z) {{ {AXES} {OP[STATISTICS]} z = Identity(mean) }}",
        {"mean": (F, ["C"]), "inv_std": (F, ["C"])},
    ),
    "statistics-negative-axes": (
        f"""g (float[N,C,4,5] X) => (float[a,b] z)
            {{ axes = Constant<value = int64[2] {{-1, -4}}>() {OP[STATISTICS]} z = Identity(mean) }}""",
        {"mean": (F, ["C", 4]), "inv_std": (F, ["C", 4])},
    ),
    "statistics-no-axes": (
        f"""g (float[N,5] X) => (float[a,b] z)
            {{ axes = Constant<value = int64[0] {{}}>() {OP[STATISTICS]} z = Identity(mean) }}""",
        {"inv_std": (F, ["N", 5])},
    ),
    "statistics-all-axes": (
        f"""g (double[N,5] X) => (double z)
            {{ axes = Constant<value = int64[2] {{1, 0}}>() {OP[STATISTICS]} z = Identity(mean) }}""",
        {"inv_std": (D, [])},
    ),
    "statistics-axes-are-an-initializer": (
        f"""g (float[N,5] X) => (float[a] z) <int64[1] axes = {{0}}> {{ {OP[STATISTICS]} z = Identity(mean) }}""",
        {"inv_std": (F, [5])},
    ),
    "statistics-unknown-axes": (
        f"g (float[N,5] X, int64[K] axes) => (float[a] mean) {{ {OP[STATISTICS]} z = Neg(inv_std) }}",
        {"inv_std": (F, None), "z": (F, None)},
    ),
    "adam": (
        f"""g (double[N,5] weight, double[N,5] gradient, double[N,5] exp_avg, double[N,5] exp_avg_sq,
            double[9] coefficients) => (double[a,b] z) {{ {OP[ADAM]} z = Identity(w) }}""",
        {"w": (D, ["N", 5]), "m": (D, ["N", 5]), "v": (D, ["N", 5])},
    ),
    "adam-scalar": (
        f"""g (float weight, float gradient, float exp_avg, float exp_avg_sq, double[K] coefficients)
            => (float z) {{ {OP[ADAM]} z = Identity(w) }}""",
        {"w": (F, []), "m": (F, []), "v": (F, [])},
    ),
    "statistics-unknown-rank": (
        f"""g (float[N,5] A, int64[K] to) => (float[a] mean)
            {{ X = Reshape(A, to) {AXES} {OP[STATISTICS]} z = Neg(inv_std) }}""",
        {"inv_std": (F, None)},
    ),
}


@pytest.mark.parametrize("functions", [FUNCTIONS, ()], ids=["functions", "no-functions"])
@pytest.mark.parametrize("case", INFERRED)
def test_inferred_shapes(case, functions):
    text, want = INFERRED[case]
    got = inferred(parse(text, functions))
    assert {name: got.get(name, (want[name][0], None)) for name in want} == want


REFUSED = {
    "missing-attribute": (
        "g (float[2,3] X, int64[K] axes) => (float[3] m) { m, i = bngrad.BatchNormalizationStatistics(X, axes) }",
        "Required attribute 'epsilon' is missing",
    ),
    "unknown-attribute": (
        """g (float[2,3] X, int64[K] axes) => (float[3] m)
           { m, i = bngrad.BatchNormalizationStatistics<epsilon = 0.1, momentum = 0.9>(X, axes) }""",
        "Unrecognized attribute: momentum",
    ),
    "attribute-of-another-type": (
        """g (float[2,3] X, int64[K] axes) => (float[3] m)
           { m, i = bngrad.BatchNormalizationStatistics<epsilon = 1>(X, axes) }""",
        "epsilon",
    ),
    "missing-input": (
        """g (float[2,3] X) => (float[3] m)
           { m, i = bngrad.BatchNormalizationStatistics<epsilon = 0.1>(X) }""",
        "has input size 1 not in range [min=2, max=2]",
    ),
    "omitted-input": (
        """g (float[2,3] X, float[3] s, float[3] m, int64[K] axes) => (float[2,3] d)
           { d = bngrad.BatchNormalizationGrad<training_mode = 1>(X, X, s, m, , axes) }""",
        "input 4 is marked single but has an empty string",
    ),
    "too-many-inputs": (
        """g (float[2,3] X, int64[K] axes) => (float[3] m)
           { m, i = bngrad.BatchNormalizationStatistics<epsilon = 0.1>(X, axes, axes) }""",
        "has input size 3 not in range [min=2, max=2]",
    ),
    "too-many-outputs": (
        """g (float[2,3] X, int64[K] axes) => (float[3] m)
           { m, i, j = bngrad.BatchNormalizationStatistics<epsilon = 0.1>(X, axes) }""",
        "has output size 3 not in range",
    ),
    "integer-data": (
        """g (int64[2,3] X, int64[K] axes) => (int64[3] m)
           { m, i = bngrad.BatchNormalizationStatistics<epsilon = 0.1>(X, axes) }""",
        "X typestr: T, has unsupported type: tensor(int64)",
    ),
    "float-axes": (
        """g (float[2,3] X, float[K] axes) => (float[3] m)
           { m, i = bngrad.BatchNormalizationStatistics<epsilon = 0.1>(X, axes) }""",
        "axes typestr: tensor(int64), has unsupported type: tensor(float)",
    ),
    "x-and-dy-of-different-types": (
        """g (float[2,3] dY, double[2,3] X, float[3] s, int64[K] axes) => (float[2,3] d)
           { d = bngrad.BatchNormalizationGrad<training_mode = 1>(dY, X, s, s, s, axes) }""",
        "has inconsistent type tensor(double)",
    ),
    "adam-16-bit": (
        f"""g (float16[5] weight, float16[5] gradient, float16[5] exp_avg, float16[5] exp_avg_sq,
            double[9] coefficients) => (float16[5] w) {{ {OP[ADAM]} }}""",
        "weight typestr: W, has unsupported type: tensor(float16)",
    ),
    "adam-float-coefficients": (
        f"""g (float[5] weight, float[5] gradient, float[5] exp_avg, float[5] exp_avg_sq, float[9] coefficients)
            => (float[5] w) {{ {OP[ADAM]} }}""",
        "coefficients typestr: tensor(double), has unsupported type: tensor(float)",
    ),
    "adam-mixed": (
        f"""g (float[5] weight, double[5] gradient, float[5] exp_avg, float[5] exp_avg_sq, double[9] coefficients)
            => (float[5] w) {{ {OP[ADAM]} }}""",
        "has inconsistent type tensor(double)",
    ),
    "adam-shapes": (
        f"""g (float[5] weight, float[4] gradient, float[5] exp_avg, float[5] exp_avg_sq, double[9] coefficients)
            => (float[5] w) {{ {OP[ADAM]} }}""",
        "weight has shape [5] and gradient [4]; expected equal shapes",
    ),
    "adam-8-coefficients": (
        f"""g (float[5] weight, float[5] gradient, float[5] exp_avg, float[5] exp_avg_sq, double[8] coefficients)
            => (float[5] w) {{ {OP[ADAM]} }}""",
        "coefficients has shape [8]; expected [9]",
    ),
    "declared-shape-is-wrong": (
        f"g (float[2,3,4,4] X) => (float[4] mean) {{ {AXES} {OP[STATISTICS]} }}",
        "4",
    ),
}


@pytest.mark.parametrize("functions", [FUNCTIONS, ()], ids=["functions", "no-functions"])
@pytest.mark.parametrize("case", REFUSED)
def test_the_checker_refuses(case, functions):
    text, reason = REFUSED[case]
    assert reason in error_of(parse(text, functions))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_node_may_leave_out_all_but_the_first_output(name):
    model = op_model(name, ATTRIBUTES[name], function=False, shape=(2, 3), axes=(0,))
    node = model.graph.node[-1]
    assert node.op_type == name
    del model.graph.output[1:]
    for kept in range(len(node.output), 0, -1):
        del node.output[kept:]
        onnx.checker.check_model(model, full_check=True)
    node.output[0] = ""
    assert error_of(model)


def test_registering_again_changes_nothing():
    before = len(onnx.defs.get_all_schemas_with_history())
    schemas.register_schemas()
    schemas.register_schemas()
    assert len(onnx.defs.get_all_schemas_with_history()) == before
    registered = {s.name for s in onnx.defs.get_all_schemas_with_history() if s.domain == DOMAIN}
    assert registered == {*FUNCTIONS, *overloaded.SIGNATURES, *depthwise.SIGNATURES, *batched_conv.SIGNATURES}


def test_a_process_ends_with_none_of_them():
    """onnx 1.19 would free them too late, and the process would hang at exit."""
    code = f"""
import atexit, onnx
ours = ({DOMAIN!r}, "com.microsoft")
atexit.register(lambda: print([s.name for s in onnx.defs.get_all_schemas() if s.domain in ours]))
import bngrad.opset.ort_dialect, bngrad.opset.schemas
print(onnx.defs.has({GRAD!r}, domain={DOMAIN!r}), end=" ")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "True []\n"


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_schema_is_that_of_the_function(name):
    schema = onnx.defs.get_schema(name, VERSION, DOMAIN)
    proto = function_proto(name, 17)
    assert [i.name for i in schema.inputs] == list(proto.input)
    assert [o.name for o in schema.outputs] == list(proto.output)
    assert set(schema.attributes) == set(proto.attribute)
    assert all(attribute.required for attribute in schema.attributes.values())
    assert schemas.signature(name)[:2] == (list(proto.input), list(proto.output))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_name_is_a_documented_quantity(name):
    inputs, outputs, attributes = schemas.signature(name)
    schema = schemas.schema(name)
    assert set(inputs + outputs) <= set(QUANTITIES)
    assert "axes" not in inputs[:-1]
    assert set(attributes) <= set(quantities.ATTRIBUTES)
    assert re.match(r"[A-Z].*\.$", schema.doc, re.DOTALL)
    parameters = (*schema.inputs, *schema.outputs, *schema.attributes.values())
    assert all(parameter.description for parameter in parameters)
    assert {c.type_param_str for c in schema.type_constraints} == {
        q.type_constraint
        for n, q in QUANTITIES.items()
        if n in inputs + outputs and q.type_constraint not in FIXED_TYPES
    }


def test_every_quantity_and_attribute_is_used():
    signatures = [schemas.signature(name) for name in FUNCTIONS]
    assert set(QUANTITIES) == {n for inputs, outputs, _ in signatures for n in inputs + outputs}
    assert set(quantities.ATTRIBUTES) == {a for *_, attributes in signatures for a in attributes}


@pytest.mark.parametrize(
    ("axes", "reason"),
    [
        ([2], "axis 2 is out of range for X of rank 2"),
        ([-3], "axis -3 is out of range for X of rank 2"),
        ([0, 0], "axes [0, 0] name a dimension of X twice"),
        ([0, -2], "axes [0, -2] name a dimension of X twice"),
    ],
    ids=str,
)
def test_inference_refuses_axes_that_x_does_not_have(axes, reason):
    """If only the axes determine the shape of the statistics, wrong axes must not give a wrong shape."""
    text = f"""g (float[2,3] X) => (float[a] z) {{
        axes = Constant<value = int64[{len(axes)}] {{{", ".join(map(str, axes))}}}>()
        {OP[STATISTICS]} z = Identity(mean) }}"""
    assert reason in error_of(parse(text))


@pytest.mark.parametrize(
    ("opset", "since"),
    [(-(2**62), None), (-(2**31), None), (0, None), (5, 1), (13, 13), (2**31, None), (2**62, None)],
)
def test_the_schema_of_an_op_in_any_opset(opset, since):
    schema = schema_in("ReduceSum", opset)
    assert (schema and schema.since_version) == since


def test_the_reference_evaluator_loads_after_all_schemas():
    """It refuses to if two domains have an op of one name."""
    modules = [module.name for module in pkgutil.iter_modules(bngrad.opset.__path__, "bngrad.opset.")]
    program = f"import importlib\nfor name in {modules}: importlib.import_module(name)\nimport onnx.reference"
    subprocess.run([sys.executable, "-c", program], check=True)
