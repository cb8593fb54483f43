"""onnx's own backend models, differentiated: each is right, or refused with a reason.

    python tests/gradient_fuzz/backend_models.py
    python tests/gradient_fuzz/backend_models.py --only NAME

The first prints the table of docs/measurements/backend-models.md, the second reports one model.

The loss is a random weighting of the float outputs; it is differentiated with respect to all float inputs and
initializers that it may depend on, with the inputs of the model's first data set.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
import warnings
import zlib
from collections import Counter, defaultdict
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import click

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import numpy as np
import onnx
from onnx import helper, numpy_helper

from fuzz.campaign import run_cases
from fuzz.judge import Finding
from gradient_fuzz.cases import Case
from gradient_fuzz.interpreter import FLOATS
from gradient_fuzz.judge import judge
from gradient_fuzz.running import DISABLED, crashes_forward, session_of
from gradient_fuzz.sketch import numpy_type

if TYPE_CHECKING:
    from collections.abc import Iterator

    from onnx.backend.test.case.test_case import TestCase

STORED = ("simple", "pytorch-converted", "pytorch-operator")
"""The folders of models in onnx's package; the others are downloaded."""
NOT_TRIED = "not tried: "
HAS_WHERE = 9
"""The first opset that has Where."""
MOST_NUMBERS = 5000
"""The most elements to differentiate with respect to: differences of larger models take minutes."""


@cache
def backend_tests(every: int = 1) -> list[TestCase]:
    """onnx's backend tests, by name: of every n-th module of node tests, and every n-th stored model.

    To import a module computes what its tests expect, which takes seconds for some.
    """
    from onnx.backend.test.case import node
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        modules = sorted(module.name for module in pkgutil.walk_packages(node.__path__, f"{node.__name__}."))
        for module in modules[::every]:
            importlib.import_module(module)
        stored = sorted(
            (test for kind in STORED for test in load_model_tests(kind=kind)), key=lambda test: test.name
        )
    return sorted([*node._NodeTestCases, *stored[::every]], key=lambda test: test.name)


def _model_and_inputs(test: TestCase) -> tuple[onnx.ModelProto, list[object]]:
    """A test's model, and the inputs of its first data set."""
    if test.model is not None:
        model = onnx.ModelProto()
        model.CopyFrom(test.model)
        return model, list(test.data_sets[0][0]) if test.data_sets else []
    folder = Path(test.model_dir)
    model = onnx.load(folder / "model.onnx")
    inputs = []
    for index in range(len(model.graph.input)):
        file = folder / "test_data_set_0" / f"input_{index}.pb"
        if not file.is_file():
            break
        inputs.append(numpy_helper.to_array(onnx.load_tensor(file)))
    return model, inputs


def case_of(test: TestCase) -> Case | str:
    """A test as a case: its float outputs are weighted into a loss; or a string with the reason why it is none."""
    model, inputs = _model_and_inputs(test)
    graph = model.graph
    if any(array is None or isinstance(array, list | dict) for array in inputs):
        return "an input is no tensor"
    inputs = [
        numpy_helper.to_array(array) if isinstance(array, onnx.TensorProto) else np.asarray(array)
        for array in inputs
    ]
    _rename_loss(model)
    feeds = {value.name: array for value, array in zip(graph.input, inputs, strict=False)}
    outputs = [value for value in graph.output if _element(value) in FLOATS]
    if not outputs:
        return "no output is a float"
    initializers = {tensor.name: tensor for tensor in graph.initializer}
    wrt = [value.name for value in graph.input if _element(value) in FLOATS and value.name not in initializers]
    wrt += [name for name, tensor in initializers.items() if tensor.data_type in FLOATS]
    if not wrt:
        return "no input is a float"
    for value in graph.input:
        if value.name in feeds and _element(value):
            feeds[value.name] = np.asarray(feeds[value.name]).astype(numpy_type(_element(value)), copy=False)
    try:
        session = session_of(model.SerializeToString(), DISABLED)
        arrays = session.run([value.name for value in outputs], feeds)
    except Exception as error:  # noqa: BLE001 - ONNX Runtime raises many kinds
        return f"ONNX Runtime does not run it: {type(error).__name__}"
    element = max({_element(value) for value in outputs}, key=_width)
    _add_loss(model, list(zip(outputs, arrays, strict=True)), element, zlib.crc32(test.name.encode()))
    kept = {name: array for name, array in feeds.items() if name not in initializers}
    if sum(int(np.size(feeds.get(name, 0))) for name in wrt) > MOST_NUMBERS:
        return "it is large"
    return Case(model, kept, tuple(wrt), story=test.name)


def _rename_loss(model: onnx.ModelProto) -> None:
    """Frees the name loss for the loss that is added."""
    for node in model.graph.node:
        for field in (node.input, node.output):
            for index, name in enumerate(field):
                field[index] = "its_loss" if name == "loss" else name
    for value in model.graph.output:
        value.name = "its_loss" if value.name == "loss" else value.name


def _element(value: onnx.ValueInfoProto) -> int:
    return value.type.tensor_type.elem_type


def _width(element: int) -> int:
    order = (onnx.TensorProto.BFLOAT16, onnx.TensorProto.FLOAT16, onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE)
    return order.index(element)


def _add_loss(
    model: onnx.ModelProto, outputs: list[tuple[onnx.ValueInfoProto, np.ndarray]], element: int, seed: int
) -> None:
    """The sum of all outputs, each times random weights; elements that are not finite are replaced by 0.

    Before `HAS_WHERE` they are not, and the loss is no number.
    """
    graph, rng = model.graph, np.random.default_rng(seed)
    terms = []
    for index, (value, array) in enumerate(outputs):
        weights = rng.standard_normal(np.shape(array)).astype(numpy_type(element))
        prefix = f"bngrad_loss_{index}"
        graph.initializer.append(numpy_helper.from_array(weights, f"{prefix}_weights"))
        name = value.name
        if _element(value) != element:
            graph.node.append(helper.make_node("Cast", [name], [f"{prefix}_cast"], to=element))
            name = f"{prefix}_cast"
        if not np.isfinite(array).all() and _opset(model) >= HAS_WHERE:
            graph.initializer.append(numpy_helper.from_array(np.isfinite(array), f"{prefix}_finite"))
            graph.initializer.append(numpy_helper.from_array(np.zeros((), numpy_type(element)), f"{prefix}_zero"))
            operands = [f"{prefix}_finite", name, f"{prefix}_zero"]
            name = f"{prefix}_kept"
            graph.node.append(helper.make_node("Where", operands, [name]))
        graph.node.append(helper.make_node("Mul", [name, f"{prefix}_weights"], [f"{prefix}_product"]))
        graph.node.append(helper.make_node("ReduceSum", [f"{prefix}_product"], [f"{prefix}_sum"], keepdims=0))
        terms.append(f"{prefix}_sum")
    graph.node.append(helper.make_node("Sum", terms, ["loss"], name="bngrad_loss"))
    graph.output.append(helper.make_tensor_value_info("loss", element, []))


def _opset(model: onnx.ModelProto) -> int:
    return next((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), 0)


def making(every: int, index: int) -> Case | str:
    """The case of a test, or the reason why it is none."""
    try:
        return case_of(backend_tests(every)[index])
    except (TypeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"


def judging(case: Case | str) -> tuple[list[Finding], Counter[str]]:
    """Returns the finds of a model, and its outcome."""
    warnings.simplefilter("ignore")
    if isinstance(case, str):
        return [], Counter([NOT_TRIED + case])
    verdict = judge(case, (0, 1))
    return [Finding(case.story, find.what, find.detail) for find in verdict.finds], Counter([verdict.end])


def run(every: int = 1) -> Iterator[tuple[str, list[Finding], str]]:
    """Yields the name of each of `backend_tests`, its finds, and its outcome."""
    tests = backend_tests(every)
    for index, finds, ends in run_cases(every, range(len(tests)), judging, making):
        name = tests[index].name
        if any(find.what == "worker died" for find in finds) and _crashes(tests[index]):
            yield name, [], NOT_TRIED + "ONNX Runtime crashes at it"
        else:
            yield name, finds, next(iter(ends), "find")


def _crashes(test: TestCase) -> bool:
    case = case_of(test)
    return isinstance(case, Case) and crashes_forward(case)


def table(results: list[tuple[str, list[Finding], str]]) -> list[str]:
    """Lines of Markdown: the number of models by outcome, with some of their names."""
    names = defaultdict(list)
    for name, _, end in results:
        names[end].append(name.removeprefix("test_"))
    lines = ["| models | what came of them | among them |", "|---|---|---|"]
    for end, those in sorted(names.items(), key=lambda item: (-len(item[1]), item[0])):
        lines.append(f"| {len(those)} | {end} | {', '.join(those[:3])} |")
    return lines


@click.command()
@click.option("--only", help="The name of one test.")
@click.option("--every", default=1, help="Every n-th module and stored model alone.")
def main(only: str | None, every: int) -> None:
    """Differentiate onnx's backend models; exit 1 if something is wrong with one."""
    warnings.simplefilter("ignore")
    if only is not None:
        case = case_of(next(test for test in backend_tests() if test.name == only))
        if isinstance(case, Case):
            print(onnx.printer.to_text(case.model)[:5000], case.wrt)
            print(judge(case, range(4)))
        else:
            print(case)
        return
    results = list(run(every))
    named_finds = [(name, find) for name, finds, _ in results for find in finds]
    for name, find in named_finds:
        print(" ".join(f"FINDING {name}: {find.what}: {find.detail[:300]}".split()), file=sys.stderr)
    print("\n".join(table(results)))
    sys.exit(1 if named_finds else 0)


if __name__ == "__main__":
    main()
