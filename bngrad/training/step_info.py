"""The metadata of a training step: its data, its state, and how outputs of one step feed the next.

It is JSON under one key of the model's metadata, so that a training loop in any language can read it. For example,
for the linear layer w of one feature with momentum::

    {"version": 1, "layout": "named", "loss": "loss", "outputs": [], "learning_rate": "learning_rate",
     "data": {"x": {"dtype": "float32", "shape": ["N", 1]}},
     "state": {"w": {"role": "weight", "dtype": "float32", "shape": [1, 1], "new": "w_new"},
               "w/momentum_buffer": {"role": "optimizer", "dtype": "float32", "shape": [1, 1],
                                     "new": "w/momentum_buffer_new", "weight": "w"},
               "step": {"role": "step", "dtype": "int64", "shape": [], "new": "step_new"}},
     "optimizer": {"name": "sgd", "momentum": 0.9, "nesterov": false, "weight_decay": 0.0},
     "accumulate": 1, "clip_norm": null, "synchronized": false, "loss_scale": null, "model": "<SHA-256>"}
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from bngrad.arguments import require_no_mask
from bngrad.autodiff.metadata import STEP
from bngrad.autodiff.size_conditions import Condition, require_conditions
from bngrad.errors import InputError, ModelError
from bngrad.graph.name_messages import listed, unknown_name
from bngrad.io.documents import from_json
from bngrad.opset.known_shapes import shape_text
from bngrad.passes.quantize.quantization import Quantization
from bngrad.training.options import Layout

if TYPE_CHECKING:
    import onnx_ir as ir
    from numpy.typing import NDArray

    Array = NDArray[Any]

KEY = STEP
"""Of ``ModelProto.metadata_props``, and of the metadata of a state file."""

VERSION = 1
"""Of the format."""

Role = Literal[
    "weight",
    "running_statistic",
    "average",
    "optimizer",
    "step",
    "micro_step",
    "loss_scale",
    "growth_tracker",
    "skipped",
]

AVERAGES = ("ema", "swa", "swa_every")
"""The hyperparameters of averages, which a step without them does not record."""

_ADVICE = "make the step again with bngrad step"


@dataclass(frozen=True)
class DataInput:
    """An input that a training loop feeds with data."""

    dtype: str
    """NumPy's name of the type."""
    shape: tuple[int | str | None, ...] | None
    """Sizes, names of symbolic dimensions, and None for unknown ones; None if the rank is unknown."""


@dataclass(frozen=True)
class StateTensor:
    """A tensor of the state."""

    role: Role
    """The use of the tensor."""
    dtype: str
    """NumPy's name of the type: ``float32``, ``float64`` or ``int64``."""
    shape: tuple[int, ...]
    """The sizes of its dimensions."""
    new: str | None = None
    """The output with the next value; None in the flat layout."""
    weight: str | None = None
    """The weight that it belongs to, if its role is ``optimizer``; or that it is the ``average`` of."""
    offset: int | None = None
    """The index of its first element in the vector of the flat layout; None in the named layout."""
    updates_behind: int | None = None
    """Of a weight: the updates of the optimizer before it had the weight; None for 0."""


@dataclass(frozen=True)
class FlatState:
    """The vector that holds the whole state in the flat layout."""

    input: str
    """The input that takes the vector."""
    output: str
    """The output with its next value."""
    dtype: str
    """NumPy's name of the type."""
    size: int
    """The number of elements."""


@dataclass(frozen=True)
class StateBatchNorm:
    """The tensors of the state that a batch norm reads."""

    name: str
    """The batch norm."""
    scale: str | None
    """Its scale; None if it is no tensor of the state."""
    bias: str | None
    """Its bias; None if it is no tensor of the state."""
    mean: str | None
    """Its running mean; None if it is no tensor of the state."""
    var: str | None
    """Its running variance; None if it is no tensor of the state."""


@dataclass(frozen=True)
class LabelRange:
    """The integers that class labels, or other indices, may be: ONNX counts a negative one from the last class."""

    inputs: tuple[str, ...]
    """The data inputs that they are, or are computed from."""
    value: str
    """The value to check: the input itself, or a value that the evaluation graph computes from it."""
    minimum: int
    """The least of them."""
    maximum: int | None
    """The largest of them; None if it is unknown."""
    ignored: int | None = None
    """The label of samples that the loss leaves out, which may be outside of the range."""
    unchecked: str | None = None
    """The reason why `Trainer` does not check them; None if it does."""


@dataclass(frozen=True)
class Fingerprint:
    """Hashes (SHA-256) of the computation of a step; the same for both layouts and on every machine."""

    graph: str
    """Of the loss and the new state."""
    forward: str
    """Of the loss of the forward model in inference mode."""


@dataclass(frozen=True)
class StepInfo:
    """The description of a training step that a training loop needs."""

    layout: Layout
    """The form in which the step takes its state."""
    loss: str
    """The output that holds the loss."""
    outputs: tuple[str, ...]
    """The other outputs, which are not state."""
    learning_rate: str
    """The input that takes the learning rate, a scalar."""
    learning_rate_dtype: str
    """NumPy's name of the type of the learning rate."""
    data: Mapping[str, DataInput]
    """The inputs that take data, by name."""
    state: Mapping[str, StateTensor]
    """The state, by the names of the inputs of the named layout."""
    flat: FlatState | None
    """The vector of the flat layout; None in the named layout."""
    optimizer: Mapping[str, Any]
    """The optimizer's name and hyperparameters."""
    accumulate: int
    """The number of calls for one update of the weights."""
    clip_norm: float | None
    """The largest global norm of the gradients; None if they are not clipped."""
    synchronized: bool = False
    """True if the step exchanges statistics, gradients and the loss with the other ranks of a distributed run."""
    size_conditions: tuple[Condition, ...] = ()
    """Conditions on the sizes of symbolic dimensions in the step, as lists of an operator and its operands."""
    evaluation_size_conditions: tuple[Condition, ...] = ()
    """Conditions on these sizes in the evaluation graph."""
    fingerprint: Fingerprint | None = None
    """Hashes of the computation; None for a step of an older bngrad."""
    labels: tuple[LabelRange, ...] = ()
    """The ranges of class labels and other indices among the data."""
    batch_norms: tuple[StateBatchNorm, ...] = ()
    """The batch norms that read a tensor of the state; none for a step of an older bngrad."""
    ema: float | None = None
    """The decay of the moving averages of weights and running statistics; None if there are none."""
    swa: int | None = None
    """The first update that equal averages of weights and running statistics have; None if there are none."""
    swa_every: int | None = None
    """The number of updates from one that they have to the next; None if there are none."""
    quantization: Quantization | None = None
    """The tensors and weights that the step rounds to 8 bits; None for none."""
    loss_scale: str | None = None
    """The output with the factor of the loss in float16; None without loss scaling."""

    @property
    def model(self) -> str:
        """A fingerprint of the state's names, types and shapes; a state of another model has another."""
        text = json.dumps([[name, entry.dtype, list(entry.shape)] for name, entry in sorted(self.state.items())])
        return hashlib.sha256(text.encode()).hexdigest()

    def names(self, *roles: Role) -> list[str]:
        """The names of the state with some roles."""
        return [name for name, entry in self.state.items() if entry.role in roles]

    @property
    def averages(self) -> dict[str, str]:
        """The names of the averages, by those of the weights and running statistics."""
        return {str(entry.weight): name for name, entry in self.state.items() if entry.role == "average"}

    def averaged(self, arrays: "Mapping[str, Array]") -> "dict[str, Array]":
        """Returns a state with the averages in place of weights and running statistics."""
        return {**arrays, **{name: arrays[average] for name, average in self.averages.items()}}

    def require_state(self, arrays: "Mapping[str, Array]") -> "dict[str, Array]":
        """Returns arrays as the state, in its order.

        Raises:
            InputError: An array is missing, superfluous, or of another type or shape.
        """
        unknown = next((name for name in arrays if name not in self.state), None)
        if unknown is not None:
            raise InputError(unknown_name(unknown, self.state, "in the state"))
        missing = [name for name in self.state if name not in arrays]
        if missing:
            raise InputError(
                f"the state lacks {listed(missing)}; expected all {len(self.state)} tensors of the step"
            )
        result = {}
        for name, entry in self.state.items():
            require_no_mask(name, arrays[name])
            array = np.asarray(arrays[name])
            if array.dtype != entry.dtype:
                raise InputError(f"state {name!r} is {array.dtype}; expected {entry.dtype}")
            if array.shape != entry.shape:
                raise InputError(
                    f"state {name!r} has shape {shape_text(array.shape)}; expected {shape_text(entry.shape)}"
                )
            result[name] = array
        self._require_count(result)
        return result

    def _require_count(self, arrays: "Mapping[str, Array]") -> None:
        """Refuses fewer updates than the optimizer made before it had a weight."""
        behind = max((entry.updates_behind or 0 for entry in self.state.values()), default=0)
        for name in self.names("step"):
            if behind and int(arrays[name]) < behind:
                raise InputError(
                    f"state {name!r} counts {int(arrays[name])} updates; expected {behind} or more, those before "
                    "the last weight was added"
                )

    def flatten(self, arrays: "Mapping[str, Array]") -> "Array":
        """Returns the state as the vector of the flat layout.

        Raises:
            InputError: The step has the named layout, or `require_state` refuses the arrays.
        """
        flat = self._require_flat()
        state = self.require_state(arrays)
        return np.concatenate([array.reshape(-1).astype(flat.dtype) for array in state.values()])

    def unflatten(self, vector: "Array") -> "dict[str, Array]":
        """Returns the tensors of a vector of the flat layout; the opposite of `flatten`.

        Raises:
            InputError: The step has the named layout, or the vector has another type or size.
        """
        flat = self._require_flat()
        if vector.shape != (flat.size,) or vector.dtype != flat.dtype:
            raise InputError(
                f"the state is {vector.dtype}{shape_text(vector.shape)}; expected {flat.dtype}[{flat.size}]"
            )
        result = {}
        for name, entry in self.state.items():
            start = entry.offset or 0
            part = vector[start : start + int(np.prod(entry.shape, dtype=np.int64))]
            result[name] = part.reshape(entry.shape).astype(entry.dtype)
        return result

    def _require_flat(self) -> FlatState:
        if self.flat is None:
            raise InputError("the step has the named layout; expected one made with the flat layout")
        return self.flat


def write_step_info(model: "ir.Model", info: StepInfo) -> None:
    """Writes the metadata of a training step into a model."""
    document: dict[str, Any] = {
        "version": VERSION,
        "layout": info.layout,
        "loss": info.loss,
        "outputs": list(info.outputs),
        "learning_rate": info.learning_rate,
        "learning_rate_dtype": info.learning_rate_dtype,
        "data": {name: {"dtype": spec.dtype, "shape": spec.shape} for name, spec in info.data.items()},
        "state": {name: _set_fields(entry) for name, entry in info.state.items()},
        "optimizer": dict(info.optimizer),
        "accumulate": info.accumulate,
        "clip_norm": info.clip_norm,
        "synchronized": info.synchronized,
        "loss_scale": info.loss_scale,
        "size_conditions": list(info.size_conditions),
        "evaluation_size_conditions": list(info.evaluation_size_conditions),
        "labels": [vars(label_range) for label_range in info.labels],
        "batch_norms": [vars(batch_norm) for batch_norm in info.batch_norms],
        "model": info.model,
    }
    if info.flat is not None:
        document["flat"] = _set_fields(info.flat)
    if info.fingerprint is not None:
        document["fingerprint"] = vars(info.fingerprint)
    document |= {name: value for name in AVERAGES if (value := getattr(info, name)) is not None}
    if info.quantization is not None:
        document["quantization"] = vars(info.quantization)
    model.metadata_props[KEY] = json.dumps(document)


def read_step_info(metadata: Mapping[str, str]) -> StepInfo:
    """Reads the metadata of a training step.

    Args:
        metadata: The metadata of a model: ``metadata_props``, or the session's ``custom_metadata_map``.

    Raises:
        ModelError: The metadata of a training step is missing, or cannot be read.
    """
    if KEY not in metadata:
        raise ModelError(f"the model has no metadata {KEY!r}; expected a training step that bngrad step made")
    try:
        document = json.loads(metadata[KEY])
        if document["version"] != VERSION:
            raise ModelError(
                f"the training step has format {document['version']}, of another bngrad; expected {VERSION}: "
                f"{_ADVICE}"
            )
        return _parsed(document)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        what = f"{type(error).__name__}: {error}"
        raise ModelError(f"the model's metadata {KEY!r} cannot be read ({what}); {_ADVICE}") from error


def _parsed(document: Mapping[str, Any]) -> StepInfo:
    # A step of the named layout has no member `flat`; steps of an older bngrad lack the later ones.
    info = from_json(StepInfo, {"flat": None, **document})
    sizes = {size for spec in info.data.values() for size in spec.shape or () if isinstance(size, str)}
    for conditions in (info.size_conditions, info.evaluation_size_conditions):
        require_conditions(list(conditions), sizes)
    if info.model != document["model"]:
        raise ValueError("its fingerprint is not that of its state")
    _require_consistent(info)
    kinds = [] if info.quantization is None else [info.quantization.ranges, info.quantization.scales]
    for names, kind, shape in zip(kinds, ("range", "scale"), ((2,), ()), strict=False):
        for name in names.values():
            if (entry := info.state.get(name)) is None or (entry.dtype, entry.shape) != ("float32", shape):
                size = "2 float32 numbers" if shape else "a float32 number"
                raise ValueError(f"the {kind} {name!r} is not {size} of its state")
    return info


def _require_consistent(info: StepInfo) -> None:
    place = "new" if info.flat is None else "offset"
    if info.layout != ("named" if info.flat is None else "flat"):
        raise ValueError(f"its layout is {info.layout!r}")
    if not isinstance(info.optimizer.get("name"), str):
        raise ValueError("its optimizer has no name")  # noqa: TRY004 - one kind of fault
    if info.accumulate < 1:
        raise ValueError(f"accumulate is {info.accumulate!r}")
    if info.loss_scale is not None and info.loss_scale not in info.outputs:
        raise ValueError(f"the output {info.loss_scale!r} of its loss scale is none of its outputs")
    for name, entry in info.state.items():
        if getattr(entry, place) is None:
            raise ValueError(f"{name!r} has no {place}")
        if min(entry.shape, default=0) < 0:
            raise ValueError(f"{name!r} has shape {list(entry.shape)}")
    dtypes = {spec.dtype for spec in info.data.values()} | {entry.dtype for entry in info.state.values()}
    for dtype in dtypes | {info.learning_rate_dtype}:
        np.dtype(dtype)  # raises a TypeError


def _set_fields(record: StateTensor | FlatState) -> dict[str, Any]:
    return {name: value for name, value in vars(record).items() if value is not None}
