"""Times the recognition of batch norms, by their number and by the size of the data.

    python tests/bench/bench_recognition.py
    python tests/bench/bench_recognition.py 10 100 --profile

The graph is a chain of residual blocks ``x + Relu(BatchNorm(x))``, forward and backward spelled in primitives, as
PyTorch decomposes them.
"""

from __future__ import annotations

import cProfile
import pstats
import resource
import time

import click
import numpy as np
import onnx_ir as ir

from bngrad.passes.imports.decomposed.recognize import ImportDecomposedPass, candidates_of
from bngrad.passes.pipeline import rewrite
from bngrad.passes.prepare.infer_types import InferTypesPass

SIZES = (10, 30, 100, 300, 1000, 3000, 10_000)
SHAPES = (
    (8, 64, 112, 112),
    (8, 256, 56, 56),
    (64, 64, 112, 112),
    (256, 64, 112, 112),
    (8, 2048, 7, 7),
    (4096, 1024),
)


class Chain:
    """A chain of blocks with its gradients.

    Args:
        length: The number of its batch norms.
        shape: The shape of its data.
    """

    def __init__(self, length: int, shape: tuple[int | str, ...]) -> None:
        self._shape = shape
        self._over = [axis for axis in range(len(shape)) if axis != 1]
        self._column = [-1, *[1] * (len(shape) - 2)]
        x, dy = (self._value(name, shape) for name in ("x", "dy"))
        self.graph = ir.Graph([x, dy], [], nodes=[], name="chain", opset_imports={"": 18})
        self._axes, self._to_column = self._integers("axes", self._over), self._integers("column", self._column)
        self._epsilon = self._constant("epsilon", 1e-5)
        self._zero = self._constant("zero", 0.0)
        self._share = self._inverse_count(x)
        saved = []
        for index in range(length):
            scale, bias = (self._parameter(f"{name}{index}") for name in ("scale", "bias"))
            x, keep = self._forward(x, scale, bias)
            saved.append((index, scale, *keep))
        for index, scale, centered, inv_std, positive in reversed(saved):
            dy, dscale, dbias = self._backward(dy, scale, centered, inv_std, positive)
            for name, value in ((f"dscale{index}", dscale), (f"dbias{index}", dbias)):
                value.name = name
                self._output(value, [int(shape[1])])
        dy.name = "dx"
        self._output(x, shape)
        self._output(dy, shape)

    def _inverse_count(self, x: ir.Value) -> ir.Value:
        """1 / N: a constant if it is known, else of the shape."""
        sizes = [size for axis, size in enumerate(self._shape) if axis != 1]
        if all(isinstance(size, int) for size in sizes):
            return self._constant("share", 1 / np.prod(sizes))
        shape = self._op("Gather", self._op("Shape", x), self._integers("places", self._over))
        count = self._op("ReduceProd", shape, self._integers("first", [0]))
        floating = ir.node("Cast", [count], {"to": ir.DataType.FLOAT})
        self.graph.append(floating)
        return self._op("Reciprocal", floating.outputs[0])

    def _forward(self, x: ir.Value, scale: ir.Value, bias: ir.Value) -> tuple[ir.Value, tuple[ir.Value, ...]]:
        mean = self._op("ReduceMean", x, self._axes)
        centered = self._op("Sub", x, mean)
        variance = self._op("ReduceMean", self._op("Mul", centered, centered), self._axes)
        inv_std = self._op("Reciprocal", self._op("Sqrt", self._op("Add", variance, self._epsilon)))
        wide = [self._op("Reshape", value, self._to_column) for value in (scale, bias)]
        scaled = self._op("Mul", self._op("Mul", centered, inv_std), wide[0])
        y = self._op("Relu", self._op("Add", scaled, wide[1]))
        return self._op("Add", x, y), (centered, inv_std, self._op("Greater", y, self._zero))

    def _backward(
        self, dy: ir.Value, scale: ir.Value, centered: ir.Value, inv_std: ir.Value, positive: ir.Value
    ) -> tuple[ir.Value, ir.Value, ir.Value]:
        masked = self._op("Where", positive, dy, self._zero)
        total = self._op("ReduceSum", masked, self._axes)
        product = self._op("ReduceSum", self._op("Mul", masked, centered), self._axes)
        square = self._op("Mul", inv_std, inv_std)
        projection = self._op("Mul", self._op("Mul", product, self._share), square)
        through = self._op("Sub", masked, self._op("Mul", centered, projection))
        through = self._op("Sub", through, self._op("Mul", total, self._share))
        factor = self._op("Mul", inv_std, self._op("Reshape", scale, self._to_column))
        dx = self._op("Add", dy, self._op("Mul", through, factor))
        dscale = self._op("Squeeze", self._op("Mul", product, inv_std), self._axes)
        return dx, dscale, self._op("Squeeze", total, self._axes)

    def _op(self, kind: str, *inputs: ir.Value) -> ir.Value:
        node = ir.node(kind, inputs)
        self.graph.append(node)
        (output,) = node.outputs
        node.name = output.name
        return output

    def _value(self, name: str, shape: tuple[int | str, ...]) -> ir.Value:
        return ir.Value(name=name, type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(shape))

    def _output(self, value: ir.Value, shape: list[int] | tuple[int | str, ...]) -> None:
        value.type, value.shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape(shape)
        self.graph.outputs.append(value)

    def _parameter(self, name: str) -> ir.Value:
        value = self._value(name, (int(self._shape[1]),))
        self.graph.inputs.append(value)
        return value

    def _constant(self, name: str, number: float) -> ir.Value:
        return self._initializer(name, np.asarray(number, np.float32))

    def _integers(self, name: str, numbers: list[int]) -> ir.Value:
        return self._initializer(name, np.asarray(numbers, np.int64))

    def _initializer(self, name: str, array: np.ndarray) -> ir.Value:
        tensor = ir.tensor(array, name=name)
        value = ir.Value(name=name, const_value=tensor, type=ir.TensorType(tensor.dtype), shape=tensor.shape)
        self.graph.register_initializer(value)
        return value


def model_of(length: int, shape: tuple[int | str, ...]) -> ir.Model:
    """A chain as a model."""
    return ir.Model(Chain(length, shape).graph, ir_version=10)


def seconds_of(model: ir.Model) -> float:
    """The seconds that the pass takes; it has to accept all batch norms."""
    expected = sum(node.op_type == "Sqrt" for node in model.graph)
    InferTypesPass()(model)
    start = time.process_time()
    ImportDecomposedPass()(model)
    seconds = time.process_time() - start
    candidates = candidates_of(model)
    assert len(candidates) == 2 * expected, f"{len(candidates)} of {2 * expected}"
    missed = [candidate for candidate in candidates if not candidate.taken]
    assert not missed, missed[:3]
    return seconds


@click.command()
@click.argument("sizes", nargs=-1, type=int)
@click.option("--symbolic", is_flag=True, help="Leave the size of the batch open.")
@click.option("--profile", is_flag=True, help="Print what the pass spends its time on.")
def main(sizes: tuple[int, ...], symbolic: bool, profile: bool) -> None:
    """Print the two tables."""
    profiler = cProfile.Profile()
    shape = ("N" if symbolic else 4, 3, 2)
    print("batch norms   the pass        each   the whole rewrite        each   peak memory")
    for size in sizes or SIZES:
        model = model_of(size, shape)
        if profile:
            profiler.enable()
        ours = seconds_of(model)
        profiler.disable()
        start = time.process_time()
        rewrite(model_of(size, shape))
        whole = time.process_time() - start
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(
            f"{size:11} {ours:8.2f} s {1e3 * ours / size:8.2f} ms {whole:17.2f} s {1e3 * whole / size:8.2f} ms"
            f" {peak:10.0f} MB",
            flush=True,
        )
    if profile:
        pstats.Stats(profiler).sort_stats("tottime").print_stats(40)
        return
    if sizes:
        return
    print("data of one batch norm   the pass")
    for shape in SHAPES:
        print(f"{'x'.join(map(str, shape)):22} {seconds_of(model_of(1, shape)):8.2f} s", flush=True)


if __name__ == "__main__":
    main()
