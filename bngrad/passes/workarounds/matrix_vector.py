"""MatMul(Transpose(A), b) -> MatMul(b, A), for a vector b and a Transpose of the last two axes.

ONNX Runtime fuses the two nodes into FusedMatMul with transA = 1, which ignores transA if b is a vector: the
result is A b instead of A' b, without an error where A is square.
"""

from __future__ import annotations

import onnx_ir as ir

from bngrad.graph.nodes import all_nodes


class MatrixVectorPass(ir.passes.InPlacePass):
    """Swaps the operands of a product of a transposed matrix and a vector.

    Guarantees: no MatMul of a vector has a Transpose of the last two axes before its matrix.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Runs the pass."""
        modified = False
        for node in all_nodes(model):
            matrix = _transposed(node)
            if matrix is not None:
                node.replace_input_with(0, node.inputs[1])
                node.replace_input_with(1, matrix)
                modified = True
        return ir.passes.PassResult(model, modified=modified)

    def ensures(self, model: ir.Model) -> None:
        """No such product is left."""
        for node in all_nodes(model):
            if _transposed(node) is not None:
                raise ir.passes.PostconditionError(f"{node.name} still has a transposed matrix")


def _transposed(node: ir.Node) -> ir.Value | None:
    """The matrix whose transpose a node multiplies a vector by; None if it is not such a product."""
    if (node.domain, node.op_type) != ("", "MatMul") or node.inputs[0] is None or node.inputs[1] is None:
        return None
    transpose, vector = node.inputs[0].producer(), node.inputs[1]
    if transpose is None or (transpose.domain, transpose.op_type) != ("", "Transpose"):
        return None
    if vector.shape is None or len(vector.shape) != 1:
        return None
    matrix = transpose.inputs[0]
    if "perm" not in transpose.attributes:  # then it reverses the axes
        return matrix if matrix is not None and matrix.shape is not None and len(matrix.shape) == 2 else None
    perm = list(transpose.attributes["perm"].as_ints())
    axes = list(range(len(perm)))
    return matrix if perm == [*axes[:-2], *reversed(axes[-2:])] else None
