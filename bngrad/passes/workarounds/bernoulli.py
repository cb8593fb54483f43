"""A Bernoulli, which ONNX Runtime draws with the probability of the opposite.

Its implementation (seen in 1.32) is ONNX's function body, ``Cast(Greater(RandomUniformLike(p), p))``, which gives
1 with probability 1 - p. ::

    y = Bernoulli(p)  =>  u = RandomUniformLike(p);  y = Cast(Less(u, Cast(p)))
"""

from __future__ import annotations

import onnx_ir as ir

from bngrad.graph.fresh_names import Names
from bngrad.graph.nodes import all_nodes, owner


class BernoulliPass(ir.passes.InPlacePass):
    """Computes every Bernoulli from uniform numbers.

    Guarantees: values and their names stay; no Bernoulli is left.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Runs the pass."""
        nodes = [node for node in all_nodes(model) if (node.domain, node.op_type) == ("", "Bernoulli")]
        names = Names(model) if nodes else None
        for node in nodes:
            assert names is not None, "there is a node"  # noqa: S101
            _compute(node, names)
        return ir.passes.PassResult(model, modified=bool(nodes))

    def ensures(self, model: ir.Model) -> None:
        """No Bernoulli is left."""
        for node in all_nodes(model):
            if (node.domain, node.op_type) == ("", "Bernoulli"):
                raise ir.passes.PostconditionError(f"{node.name} is still a Bernoulli")


def _compute(node: ir.Node, names: Names) -> None:
    (p,), (y,) = node.inputs, node.outputs
    drawn = ir.node("RandomUniformLike", [p], {"dtype": ir.DataType.FLOAT}, name=names.fresh(f"{y.name}_uniform"))
    if "seed" in node.attributes:
        drawn.attributes["seed"] = node.attributes["seed"]
    rate = ir.node("Cast", [p], {"to": ir.DataType.FLOAT}, name=names.fresh(f"{y.name}_rate"))
    less = ir.node("Less", [drawn.outputs[0], rate.outputs[0]], name=names.fresh(f"{y.name}_less"))
    if "dtype" in node.attributes:
        typed = ir.node("Cast", [less.outputs[0]], {"to": node.attributes["dtype"].as_int()}, name=node.name)
    else:
        typed = ir.node("CastLike", [less.outputs[0], p], name=node.name)
    for new, dtype in ((drawn, ir.DataType.FLOAT), (rate, ir.DataType.FLOAT), (less, ir.DataType.BOOL)):
        new.outputs[0].name, new.outputs[0].dtype, new.outputs[0].shape = new.name, dtype, y.shape
    typed.outputs[0].type, typed.outputs[0].shape = y.type, y.shape
    name, new_nodes = y.name, [drawn, rate, less, typed]
    ir.convenience.replace_nodes_and_values(owner(node), node, [node], new_nodes, [y], typed.outputs)
    typed.outputs[0].name = name
