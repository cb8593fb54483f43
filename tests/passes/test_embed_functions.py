"""The definitions of the ops in use, inside the model."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest

from bngrad.opset.functions import FUNCTIONS, MIN_IR_VERSION, function_proto
from bngrad.passes.embed_functions import EmbedFunctionsPass
from pass_models import content, header, proto

STATISTICS = (
    "axes = Constant<value = int64[1] {0}>()  y, i = bngrad.BatchNormalizationStatistics<epsilon = 0.1>(x, axes)"
)
GRAPH = f"g (float[N,3] x) => (float[3] y) {{ {STATISTICS} }}"
NAMES = sorted(FUNCTIONS)


def model(text=GRAPH, opset=17, ir_version=8, embedded=()):
    if not text.lstrip().startswith("<"):
        text = header(opset, ir_version=ir_version) + text
    parsed = onnx.parser.parse_model(text)
    parsed.functions.extend(function_proto(name, opset) for name in embedded)
    return ir.from_proto(parsed)


def ours(graph):
    return sorted(name for domain, name, _ in graph.functions if domain == "bngrad")


def embedded(graph, **options):
    modified = EmbedFunctionsPass(**options)(graph).modified
    after = content(graph)
    assert not EmbedFunctionsPass(**options)(graph).modified
    assert content(graph) == after
    return modified


@pytest.mark.parametrize("opset", range(15, 24))
def test_the_function_imports_the_opset_of_the_model(opset):
    graph = model(opset=opset)
    assert embedded(graph)
    assert ours(graph) == ["BatchNormalizationStatistics"]
    (function,) = graph.functions.values()
    assert dict(function.opset_imports) == {"": opset}
    assert graph.opset_imports == {"": opset, "bngrad": 1}
    onnx.checker.check_model(ir.to_proto(graph), full_check=True)


def test_only_what_is_used_is_embedded_and_every_op_of_it():
    graph = model(f"""g (float[N,3] x) => (float[3] y) {{
        {STATISTICS}
        d, s, b = bngrad.BatchNormalizationGrad<training_mode = 1>(x, x, y, y, i, axes)
        e, t, c = bngrad.BatchNormalizationGrad<training_mode = 0>(x, x, y, y, i, axes) }}""")
    assert embedded(graph)
    assert ours(graph) == ["BatchNormalizationGrad", "BatchNormalizationStatistics"]


def test_without_functions_only_the_domain_is_imported():
    graph = model()
    assert embedded(graph, functions=False)
    assert not graph.functions
    assert graph.opset_imports == {"": 17, "bngrad": 1}


def test_a_model_without_our_ops_is_left_alone():
    graph = model("g (float[N,3] x) => (float[N,3] y) { y = Neg(x) }", ir_version=7)
    before = content(graph)
    assert not embedded(graph)
    assert content(graph) == before


@pytest.mark.parametrize("functions", [True, False], ids=["functions", "no-functions"])
def test_functions_that_are_not_used_any_more_go(functions):
    graph = model(embedded=NAMES)
    assert ours(graph) == NAMES
    assert embedded(graph, functions=functions)
    assert ours(graph) == (["BatchNormalizationStatistics"] if functions else [])


def test_a_definition_that_is_not_ours_is_replaced():
    graph = model(embedded=["BatchNormalizationStatistics"])
    (function,) = graph.functions.values()
    right = function.doc_string
    function.doc_string = "of some other version"
    assert embedded(graph)
    assert [f.doc_string for f in graph.functions.values()] == [right]
    assert not embedded(graph)


IN_A_FUNCTION = f"""<ir_version: 8, opset_import: ["" : 17, "f" : 1]>
g (float[N,3] x) => (float[3] y) {{ y = f.Block(x) }}
<domain: "f", opset_import: ["" : 17]>
Block (x) => (y) {{ {STATISTICS.replace("epsilon", "epsilon: float")} }}
<domain: "f", opset_import: ["" : 17]>
Other (x) => (y) {{ y = Neg(x) }}"""


@pytest.mark.parametrize("functions", [True, False], ids=["functions", "no-functions"])
def test_a_function_with_our_nodes_imports_the_domain_and_no_other_does(functions):
    graph = model(IN_A_FUNCTION)
    assert embedded(graph, functions=functions)
    imports = {name: dict(f.opset_imports) for (domain, name, _), f in graph.functions.items() if domain == "f"}
    assert imports == {"Block": {"": 17, "bngrad": 1}, "Other": {"": 17}}
    assert graph.opset_imports["bngrad"] == 1
    assert ours(graph) == (["BatchNormalizationStatistics"] if functions else [])
    onnx.checker.check_model(ir.to_proto(graph), full_check=True)


def test_a_function_without_the_default_domain_gets_it():
    """Its axes are a Constant."""
    graph = model(IN_A_FUNCTION)
    function = graph.functions["f", "Block", ""]
    del function.opset_imports[""]
    embedded(graph)
    assert function.opset_imports == {"": 17, "bngrad": 1}


def test_a_node_in_a_subgraph_counts():
    graph = model(f"""g (bool c, float[N,3] x) => (float[3] z) {{
        z = If(c) <then_branch = t () => (float[3] y) {{ {STATISTICS} }},
                   else_branch = e () => (float[3] w) <float[3] w = {{1, 2, 3}}> {{ }}> }}""")
    assert embedded(graph)
    assert ours(graph) == ["BatchNormalizationStatistics"]
    onnx.checker.check_model(ir.to_proto(graph), full_check=True)


def test_functions_of_others_stay():
    graph = model(IN_A_FUNCTION)
    embedded(graph)
    assert sorted(name for domain, name, _ in graph.functions if domain == "f") == ["Block", "Other"]


@pytest.mark.parametrize(("before", "after"), [(7, MIN_IR_VERSION), (8, 8), (9, 9), (10, 10)])
def test_the_ir_version_is_raised_to_one_that_has_functions(before, after):
    graph = model(ir_version=before)
    embedded(graph)
    assert graph.ir_version == after


def test_the_ir_version_stays_without_functions():
    graph = model(ir_version=7)
    embedded(graph, functions=False)
    assert graph.ir_version == 7


@pytest.mark.parametrize("opset", [7, 13, 14])
def test_an_opset_that_is_too_old_is_refused(opset):
    with pytest.raises(ir.passes.PreconditionError, match=f"imports ai.onnx {opset}; the functions need 15"):
        EmbedFunctionsPass()(model(opset=opset))
    assert embedded(model(opset=opset), functions=False)


def test_the_import_of_another_version_of_the_domain_is_kept():
    graph = ir.from_proto(proto(GRAPH, 17, "bngrad"))
    embedded(graph)
    assert graph.opset_imports == {"": 17, "com.microsoft": 1, "bngrad": 1}
