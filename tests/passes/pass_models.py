"""Models as text, and what the tests of every pass do with them."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
from onnx_ir.passes.common import ShapeInferencePass

from bngrad.graph.nodes import all_nodes
from bngrad.opset import ort_dialect, schemas  # noqa: F401 - shape inference must know the ops

AXES_OF_RANK = {rank: [0, *range(2, rank)] for rank in range(2, 9)}


def header(opset=17, *domains, ir_version=8):
    imports = [f'"" : {opset}', *(f'"{domain}" : 1' for domain in domains)]
    return f"<ir_version: {ir_version}, opset_import: [{', '.join(imports)}]>\n"


def proto(text, opset=17, *domains):
    """Parses a graph; it imports com.microsoft."""
    if not text.lstrip().startswith("<"):
        text = header(opset, "com.microsoft", *domains) + text
    return onnx.parser.parse_model(text)


def model(text, opset=17, *domains):
    """Parses a graph and infers the shapes in it, as the pipeline does before its passes."""
    result = ir.from_proto(proto(text, opset, *domains))
    ShapeInferencePass(check_type=False, strict_mode=False)(result)
    return result


def content(graph):
    return ir.to_proto(graph).SerializeToString(deterministic=True)


def ops(graph):
    """The ops of a model, its subgraphs and its functions, but those of bngrad's own functions."""
    scopes = [graph.graph, *(function for function in graph.functions.values() if function.domain != "bngrad")]
    nodes = (node for scope in scopes for node in ir.traversal.RecursiveGraphIterator(scope))
    return [f"{node.domain}.{node.op_type}" if node.domain else node.op_type for node in nodes]


def find(graph, op_type):
    (node,) = (node for node in all_nodes(graph) if node.op_type == op_type)
    return node


def axes_of(node):
    return ir.convenience.get_const_tensor(node.inputs[-1]).numpy().tolist()


def attributes_of(node):
    return {name: attribute.value for name, attribute in node.attributes.items()}


def dims(rank, channels=3):
    """As text: N, then the channels, then 2, 3, ..."""
    return ",".join(["N", str(channels), *map(str, range(2, rank))])


def internal_and_grad(rank, dtype="float"):
    """The graph that ORT's builder writes for a batch norm, of any rank."""
    data, c = f"{dtype}[{dims(rank)}]", f"{dtype}[3]"
    return f"""g ({data} dy, {data} x, {c} scale, {c} bias, {c} mean, {c} var)
        => ({data} y, {c} new_mean, {c} new_var, {data} dx, {c} dscale, {c} dbias) {{
        [forward] y, new_mean, new_var, saved_mean, saved_inv_std = com.microsoft.BatchNormInternal
            <epsilon = 0.001, momentum = 0.8, training_mode = 1>(x, scale, bias, mean, var)
        [backward] dx, dscale, dbias = com.microsoft.BatchNormalizationGrad<epsilon = 0.001>
            (dy, x, scale, saved_mean, saved_inv_std)
    }}"""


def feeds_for(graph, rng, dtype=np.float32, **sizes):
    """Numbers of about 1 for every float input of a proto; variances positive."""
    feeds = {}
    for value in graph.graph.input:
        tensor = value.type.tensor_type
        if tensor.elem_type not in (onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE):
            continue
        shape = [d.dim_value if d.HasField("dim_value") else sizes.get(d.dim_param, 4) for d in tensor.shape.dim]
        drawn = rng.uniform(0.5, 2, shape) if "var" in value.name else rng.standard_normal(shape)
        feeds[value.name] = drawn.astype(dtype)
    return feeds


def close(got, want, tolerance=1e-5):
    assert set(got) == set(want)
    for name, value in want.items():
        np.testing.assert_allclose(got[name], value, rtol=tolerance, atol=tolerance, err_msg=name)


def run(graph, feeds, implementation="function"):
    """Runs a proto on the installed, stock ONNX Runtime."""
    from bngrad.runtime.session import session

    names = [output.name for output in graph.graph.output]
    return dict(zip(names, session(graph, implementation).run(names, feeds), strict=True))


def lines(graph):
    """A model as text with everything that a rewrite may change, one node a line."""
    imports = ", ".join(f"{domain or 'ai.onnx'} {version}" for domain, version in graph.opset_imports.items())
    result = [f"IR version {graph.ir_version}; imports {imports}"]
    scopes = [("graph", graph.graph), *((f"function {f.domain}.{f.name}", f) for f in graph.functions.values())]
    for what, scope in scopes:
        if what.startswith("function bngrad."):
            result.append(what)
            continue
        result.append(f"{what} ({_values(scope.inputs)}) => ({_values(scope.outputs)})")
        for node in ir.traversal.RecursiveGraphIterator(scope):
            attributes = ", ".join(f"{a.name}={_attribute(a)}" for a in node.attributes.values())
            op = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
            depth = "    " if node.graph is getattr(scope, "graph", scope) else "        "
            result.append(
                f"{depth}[{node.name}] {_values(node.outputs)} = {op}<{attributes}>({_values(node.inputs)})"
            )
    return "\n".join(result) + "\n"


def _values(values):
    return ", ".join("''" if value is None else value.name or "''" for value in values)


def _attribute(attribute):
    if attribute.type == ir.AttributeType.TENSOR:
        return attribute.value.numpy().tolist()
    if attribute.type == ir.AttributeType.GRAPH:
        return "graph"
    return f"{attribute.value:.6g}" if isinstance(attribute.value, float) else attribute.value
