"""Compares a step on ONNX Runtime with TensorFlow's own: the loss, each gradient and each variable that changes.

The model in inference mode is compared likewise: the outputs and the loss.

TensorFlow computes them with `tf.GradientTape`, as `model.fit` does, from the model as it is, and a second time
from weights and data that are changed by about a rounding. The distance of the training graph is measured in units
of the effect, see `bngrad.validation.float32_error`. Dropouts drop nothing in this.
"""

from __future__ import annotations

from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bngrad.errors import BngradError, ModelError
from bngrad.graph.fresh_names import Names
from bngrad.io.files import to_proto
from bngrad.keras.loss import cannot_be_called, loss_of
from bngrad.keras.packages import import_exporter
from bngrad.opset.gradient_names import gradient_name
from bngrad.runtime.session import session
from bngrad.training.differentiate import differentiate
from bngrad.training.evaluation import take_state
from bngrad.training.to_inference import drop_dropout, random_nodes
from bngrad.validation.float32_error import Results, float32_error
from bngrad.validation.report import Check

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import onnx_ir as ir
    from numpy.typing import NDArray

    from bngrad.keras.data import DataInputs

    Arrays = dict[str, NDArray[Any]]

LIMIT = 100.0
"""The largest distance that passes."""
_LOSS = "loss"
_NO_LOSS = object()
_NEW = "_new"
_ROUNDING = {"float16": 1e-3}
"""The relative size of a change of about a rounding, by the type that a layer computes in."""
_VARIED = 1e-3
"""The relative size of the changes from which a doubtful step is repeated."""


class _State(NamedTuple):
    variables: Arrays
    data: Arrays


def compare_step(
    model: Any,  # noqa: ANN401
    loss: Any,  # noqa: ANN401
    data: DataInputs,
    forward: ir.Model,
    options: Mapping[str, Any],
) -> Check:
    """Compares one step of an exported model with TensorFlow, on the example.

    Args:
        model: The Keras model; its variables have their values again afterwards.
        loss: See `bngrad.keras.export`.
        data: The example.
        forward: The exported model.
        options: The options of `differentiate` for it.

    Raises:
        ModelError: ONNX Runtime cannot run the training graph.
    """
    run_graph = _graph_runner(forward, options)
    with _restored(model), _no_dropout():
        run_keras = _step_runner(model, loss, data)
        state = _State({variable.path: np.array(variable) for variable in model.variables}, data.arrays())
        return _compared(model, data, state, run_graph, run_keras)


def compare_inference(model: Any, loss: Any, data: DataInputs, evaluation: ir.Model) -> Check:  # noqa: ANN401
    """Compares a model in inference mode with TensorFlow's ``model(x, training=False)``, on the example.

    The moving statistics are changed, so that those of the batch would be seen.

    Args:
        model: The Keras model; its variables have their values again afterwards.
        loss: See `bngrad.keras.export`.
        data: The example.
        evaluation: The exported model, whose variables are initializers; it may lack the loss.

    Raises:
        ModelError: ONNX Runtime cannot run the exported model.
    """
    graph = evaluation.clone()
    variables = {variable.path: np.array(variable) for variable in model.variables}
    take_state(graph, {name: array for name, array in variables.items() if name in graph.graph.initializers})
    outputs = {str(value.name): str(value.name) for value in graph.graph.outputs}
    run_graph = _runner(graph, outputs)
    random = np.random.default_rng(0)
    for layer in model._flatten_layers():  # noqa: SLF001 - no public name lists nested layers
        for statistic in [getattr(layer, name, None) for name in ("moving_mean", "moving_variance")]:
            if path := getattr(statistic, "path", None):
                value = variables[path]
                changed = value * (1 + 0.5 * random.random(value.shape)) + 0.1 * random.random(value.shape)
                variables[path] = np.asarray(changed, value.dtype)
    with _restored(model), _no_dropout():
        run_keras = _inference_runner(model, loss if _LOSS in outputs else _NO_LOSS, data)
        return _compared(model, data, _State(variables, data.arrays()), run_graph, run_keras)


def _compared(
    model: Any,  # noqa: ANN401
    data: DataInputs,
    state: _State,
    run_graph: Callable[[Arrays], Arrays],
    run_keras: Callable[[_State], Arrays],
) -> Check:
    check = Check("TensorFlow", unit="x the effect of a rounding", limit=LIMIT, required=True)
    layers = model._flatten_layers()  # noqa: SLF001 - no public name lists nested layers
    rounding = max((_ROUNDING.get(layer.compute_dtype, 1e-6) for layer in layers), default=1e-6)

    def run(state: _State) -> Results:
        exact = run_keras(state)
        got = run_graph({**state.variables, **state.data})
        expected = {name: array for name, array in exact.items() if name in got or _is_needed(name, array, state)}
        return Results(got, run_keras(_moved(model, state, 0, rounding, data)), expected)

    for seed in range(1, 4):
        if all(np.isfinite(array).all() for array in run_keras(state).values()):
            break
        state = _moved(model, state, seed, _VARIED, data)
    else:
        check.skipped = "TensorFlow's results are not finite on the example"
        return check
    float32_error(
        check,
        run,
        state,
        steps=1,
        following=lambda last, _: last,
        varied=lambda last, seed: _moved(model, last, seed, _VARIED, data),
        kind_of=_kind,
        implementation="native",
        against="TensorFlow",
    )
    return check


def _kind(name: str) -> str:
    return "loss" if name == _LOSS else "buffer" if name.endswith(_NEW) else "gradient"


def require_equal(check: Check, what: str) -> None:
    """Refuses a step or another model with other results than TensorFlow's; ``what`` names it.

    Raises:
        ModelError: A value differs by more than the limit of the check.
    """
    if check.failures:
        worst = check.failures[0]
        raise ModelError(
            f"{what} differs from TensorFlow's on the example: {worst.tensor} is {worst.relative_l2:.1e} off "
            f"({len(check.failures)} of {len(check.rows)} values are); a layer or the loss does something that "
            "the export loses: leave out layers of your own to find it, or pass check=False to continue"
        )


def _graph_runner(forward: ir.Model, options: Mapping[str, Any]) -> Callable[[Arrays], Arrays]:
    quiet = forward.clone()
    names = Names(quiet)
    for node in random_nodes(quiet):
        drop_dropout(node, quiet.opset_imports[""], names)
    training_graph = differentiate(quiet, defaults=False, **options)
    outputs = {training_graph.loss: _LOSS}
    outputs |= {output: gradient_name(name) for name, output in training_graph.gradients.items()}
    outputs |= {output: f"{name}{_NEW}" for name, output in training_graph.running_statistics.items()}
    return _runner(training_graph.model, outputs)


def _runner(model: ir.Model, outputs: Mapping[str, str]) -> Callable[[Arrays], Arrays]:
    """Returns a function that runs a model with all its inputs by name; ``outputs`` renames its outputs."""
    proto = to_proto(model)
    try:
        started = session(proto)
    except BngradError:
        raise
    except Exception as error:  # of ONNX Runtime, which has no base class for them
        raise ModelError(
            f"ONNX Runtime refuses the graph, perhaps for a type that it has no kernel for: "
            f"{' '.join(str(error).split())}"
        ) from error
    inputs = [value.name for value in started.get_inputs()]

    def run(feeds: Arrays) -> Arrays:
        values = started.run(list(outputs), {name: feeds[name] for name in inputs})
        return dict(zip(outputs.values(), values, strict=True))

    return run


def _step_runner(model: Any, loss: Any, data: DataInputs) -> Callable[[_State], Arrays]:  # noqa: ANN401
    keras, tf, _ = import_exporter()
    trainable = list(model.trainable_variables)

    def traced(*tensors: Any) -> tuple[Any, list[Any]]:  # noqa: ANN401
        x, y = data.structured(tensors)
        with tf.GradientTape() as tape:
            total = loss_of(keras, tf, model, loss, x, y, model(x, training=True), training=True)
        gradients = tape.gradient(total, [variable.value for variable in trainable])
        return total, [
            tf.zeros(variable.shape, variable.dtype) if value is None else tf.convert_to_tensor(value)
            for variable, value in zip(trainable, gradients, strict=True)
        ]

    function = _function(tf, model, data, traced)

    def run(state: _State) -> Arrays:
        total, gradients = function(state)
        results = {_LOSS: np.array(total)}
        results |= {
            gradient_name(variable.path): np.array(value)
            for variable, value in zip(trainable, gradients, strict=True)
        }
        return results | {
            f"{variable.path}{_NEW}": np.array(variable) for variable in model.non_trainable_variables
        }

    return run


def _inference_runner(model: Any, loss: Any, data: DataInputs) -> Callable[[_State], Arrays]:  # noqa: ANN401
    keras, tf, _ = import_exporter()

    def traced(*tensors: Any) -> dict[str, Any]:  # noqa: ANN401
        x, y = data.structured(tensors)
        y_pred = model(x, training=False)
        outputs = {name: tf.convert_to_tensor(tensor) for name, tensor in data.named("y_pred", y_pred).items()}
        if loss is not _NO_LOSS:
            outputs[_LOSS] = loss_of(keras, tf, model, loss, x, y, y_pred, training=False)
        return outputs

    function = _function(tf, model, data, traced)

    def run(state: _State) -> Arrays:
        return {name: np.array(tensor) for name, tensor in function(state).items()}

    return run


def _function(tf: Any, model: Any, data: DataInputs, traced: Callable[..., Any]) -> Callable[[_State], Any]:  # noqa: ANN401
    """Returns a function from a state to the results of a traced one; the model has the state's variables then."""
    arrays = data.arrays()
    specs = [tf.TensorSpec(arrays[name].shape, arrays[name].dtype) for name in data.names]
    try:
        function: Callable[..., Any] = tf.function(traced, autograph=False).get_concrete_function(*specs)
    except BngradError:
        raise
    except Exception as error:
        raise cannot_be_called(model, error) from error

    def called(state: _State) -> Any:  # noqa: ANN401
        for variable in model.variables:
            variable.assign(state.variables[variable.path])
        return function(*(tf.constant(state.data[name]) for name in data.names))

    return called


def _is_needed(name: str, value: NDArray[Any], state: _State) -> bool:
    """Tests whether a graph must have an output: the loss, a gradient that is not 0, a variable that changes."""
    old = state.variables.get(name.removesuffix(_NEW)) if name.endswith(_NEW) else None
    changes = bool(value.any()) if old is None else not np.array_equal(old, value, equal_nan=True)
    return name == _LOSS or changes


def _moved(model: Any, state: _State, seed: int, size: float, data: DataInputs) -> _State:  # noqa: ANN401
    """Returns a state with other weights and float inputs; targets stay."""
    random = np.random.default_rng(seed)

    def near(array: NDArray[Any], extra: float) -> NDArray[Any]:
        noise = random.standard_normal(array.shape)
        return np.asarray(array * (1 + size * noise) + extra * noise, array.dtype)

    trained = {variable.path for variable in model.trainable_variables}
    # Equal data, as of zeros, get differences that are large enough to undo ties.
    extra = size if size == _VARIED else 0.0
    return _State(
        {path: near(array, 0.0) if path in trained else array for path, array in state.variables.items()},
        {
            name: near(array, extra) if name in data.x_names and array.dtype.kind == "f" else array
            for name, array in state.data.items()
        },
    )


@contextmanager
def _restored(model: Any) -> Iterator[None]:  # noqa: ANN401
    variables = [*model.variables, *model.metrics_variables]
    values = [np.array(variable) for variable in variables]
    try:
        yield
    finally:
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)


@contextmanager
def _no_dropout() -> Iterator[None]:
    random: Any = import_module("keras.src.backend").random  # where layers look for dropout
    dropout = random.dropout
    random.dropout = lambda inputs, *_, **__: inputs
    try:
        yield
    finally:
        random.dropout = dropout
