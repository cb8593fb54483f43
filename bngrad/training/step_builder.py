"""Adds the state and the optimizer to a training graph."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from bngrad.autodiff.metadata import KEY as TRAINING_GRAPH
from bngrad.errors import InputError
from bngrad.graph.fresh_names import Names
from bngrad.graph.name_messages import unknown_name
from bngrad.graph.node_makers import NodesAtEnd, nodes_at_start
from bngrad.graph.node_reader import dtype_of
from bngrad.opset.known_shapes import known_shape, may_be_equal, shape_text
from bngrad.passes.quantize.round_values import scale_of
from bngrad.training.all_finite import all_finite, all_finite_by_op
from bngrad.training.clipping import clip_factor
from bngrad.training.data_inputs import data_input
from bngrad.training.evaluation import state_dtype, take_state
from bngrad.training.freeze_statistics import freeze_statistics
from bngrad.training.learned_scales import LearnedScales, freeze_range, masked
from bngrad.training.loss_scaling import inverse_scale, next_state
from bngrad.training.optim.group_updates import updates_by_groups
from bngrad.training.optim.groups import options_of_weights
from bngrad.training.optim.joint import Updates
from bngrad.training.optim.nodes import UpdateNodes, Weight
from bngrad.training.step_info import StateTensor, StepInfo

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from bngrad.passes.quantize.quantization import Quantization
    from bngrad.training.differentiate import Differentiated
    from bngrad.training.loss_scaling import LossScaling
    from bngrad.training.optimizers import Optimizer, ParameterGroup
    from bngrad.training.step_info import Role
    from bngrad.training.weight_averages import WeightAverages

    Array = NDArray[Any]

_INT64 = ir.DataType.INT64


class StepBuilder:
    """Turns a training graph into a training step of the named layout.

    Args:
        training_graph: The training graph, for ``stock``; its model is changed.
        values: Initial values that replace those of the model, by names of weights and running statistics.

    Raises:
        InputError: A value is for another name or does not fit, or a weight has none.
    """

    def __init__(self, training_graph: Differentiated, values: Mapping[str, Array]) -> None:
        self._training_graph, self._graph = training_graph, training_graph.model.graph
        self._names = Names(training_graph.model)
        self._make = NodesAtEnd(self._graph, self._names, "bngrad_step")
        self.initial = self._initial_values(values)
        """The weights and running statistics, in the model's types."""
        self.state: dict[str, Array] = {}
        """The initial state."""
        self._entries: dict[str, StateTensor] = {}
        self._inputs: dict[str, ir.Value] = {}
        self._new: dict[str, ir.Value] = {}
        self._extra: dict[str, ir.Value] = {}
        self.updates: Updates | None = None
        """The updates that may be joined, if every call updates all weights."""
        self._unscale: ir.Value | None = None
        self._take_initial()

    def _initial_values(self, values: Mapping[str, Array]) -> dict[str, Array]:
        graph = self._graph
        inputs = {str(value.name): value for value in graph.inputs}
        names = [*self._training_graph.gradients, *self._training_graph.running_statistics]
        for name in values:
            if name not in names:
                raise InputError(unknown_name(name, names, "a trainable weight or a running statistic"))
        result = {}
        for name in names:
            held = graph.initializers[name].const_value if name in graph.initializers else None
            if name in values:
                result[name] = _fitting(inputs[name], np.asarray(values[name]))
            elif held is not None:
                result[name] = held.numpy()
            else:
                raise InputError(
                    f"{name!r} is an input of the model without a value; expected an initializer: store its value "
                    "in the model, or give it with values= in Python; or leave it out with --wrt (wrt=)"
                )
        return result

    def _take_initial(self) -> None:
        """Converts weights and running statistics to inputs without defaults, other initializers to constants."""
        graph = self._graph
        for value in list(graph.inputs):
            if value.is_initializer() and value.name not in self.initial:
                graph.inputs.remove(value)
        take_state(self._training_graph.model, self.initial)
        inputs = {str(value.name): value for value in graph.inputs}
        for name, array in self.initial.items():
            role: Role = "weight" if name in self._training_graph.gradients else "running_statistic"
            # The zeros of a dry run need no memory: all their elements are one.
            is_one = array.ndim > 0 and not any(array.strides)
            self._add_state(inputs[name], role, array.astype(state_dtype(array.dtype), copy=not is_one))

    def add_optimizer(
        self,
        optimizer: Optimizer,
        *,
        groups: Sequence[ParameterGroup],
        clip_norm: float | None,
        accumulate: int,
        averages: WeightAverages | None = None,
        scaling: LossScaling | None = None,
        group_updates: bool = False,
        quantization: Quantization | None = None,
        freeze_ranges: int | None = None,
    ) -> None:
        """Adds the update of the state.

        Args:
            optimizer: The optimizer.
            groups: The parameter groups.
            clip_norm: The largest global norm of the gradients; None for none.
            accumulate: The number of calls of one update.
            averages: The averages of weights and running statistics; None for none.
            scaling: The loss scaling, if the training graph has an input for the scale.
            group_updates: Whether to update weights with equal options by one op, see `updates_by_groups`.
            quantization: What the step rounds; None for nothing.
            freeze_ranges: The number of updates after which its ranges stay, and its learned scales are trained;
                None for never.

        Raises:
            InputError: A parameter group names something other than a weight.
        """
        make = self._make
        outputs = {str(value.name): value for value in self._graph.outputs}
        weights = {name: self._inputs[name] for name in self._training_graph.gradients}
        gradients = {
            name: make.cast(outputs[gradient], dtype_of(weights[name]))
            for name, gradient in self._training_graph.gradients.items()
        }
        is_finite = None
        if scaling is not None:
            is_finite = self._add_scaling(scaling, list(gradients.values()), by_op=group_updates)
        scale, apply = self._unscale, None
        if accumulate > 1:
            gradients = {name: self._unscaled(gradient) for name, gradient in gradients.items()}
            gradients, apply = self._accumulated(gradients, accumulate)
            scale = None
        double = any(dtype_of(weight) == ir.DataType.DOUBLE for weight in weights.values())
        rate_type = ir.DataType.DOUBLE if double else ir.DataType.FLOAT
        self._rate = ir.val(self._names.fresh("learning_rate"), rate_type, [])
        options = options_of_weights(
            optimizer.weight_decay,
            groups,
            {name: self.state[name].ndim for name in weights},
            without_decay=() if quantization is None else quantization.scales.values(),
        )
        made_before = max((weight_options.updates_behind for weight_options in options.values()), default=0)
        count = self._new_state("step", "step", np.array(made_before, np.int64))
        self._count, self._made_before = str(count.name), made_before
        learned = self._freeze_ranges(quantization, freeze_ranges)
        gradients |= {name: learned.gradient(gradients[name]) for name in learned.used}
        if clip_norm is not None:
            scale, self._extra["gradient_norm"] = clip_factor(make, list(gradients.values()), clip_norm, scale)
        counted = make.typed("Add", count, make.int64(1))
        nodes = UpdateNodes(make, self._rate, counted, scale)
        members = []
        for name, weight in weights.items():
            self._entries[name] = replace(self._entries[name], updates_behind=options[name].updates_behind or None)
            zeros = np.zeros_like(self.state[name])
            slots = [self._new_state(f"{name}/{slot}", "optimizer", zeros, name) for slot in optimizer.slots]
            if name in learned.used:  # its moments begin where it does
                behind = options[name].updates_behind + (freeze_ranges or 0)
                options[name] = options[name]._replace(updates_behind=behind)
            members.append(Weight(learned.used.get(name, weight), gradients[name], slots, options[name]))
        updates = Updates(self._graph, make, optimizer, nodes, members)
        conditions = (apply, is_finite) if group_updates else None
        settled = self._update_weights(updates, list(weights), learned, apply, conditions)
        if apply is None and scaling is None and averages is None and not group_updates and not learned.used:
            self.updates = updates
        outputs = {str(value.name): value for value in self._graph.outputs}
        self._set(count, counted, apply)
        for name, output in self._training_graph.running_statistics.items():
            self._set(self._inputs[name], make.cast(outputs[output], dtype_of(self._inputs[name])), None)
        if averages is not None:
            number = make.typed("Sub", counted, make.int64(made_before)) if made_before else counted
            self._add_averages(averages, number, apply)
        if scaling is not None and is_finite is not None:
            self._new |= {
                name: make.where(is_finite, new, self._inputs[name])
                for name, new in self._new.items()
                if name not in settled
            }
            state = [self._inputs[name] for name in self._scaler]
            scaler = next_state(make, state, is_finite, scaling.growth_interval)
            self._new |= dict(zip(self._scaler, scaler, strict=True))

    def _update_weights(
        self,
        updates: Updates,
        names: Sequence[str],
        learned: LearnedScales,
        apply: ir.Value | None,
        by_groups: Sequence[ir.Value | None] | None,
    ) -> set[str]:
        """Sets the next values of weights and slots.

        Args:
            updates: The updates.
            names: The name of each weight in the state.
            learned: The learned scales.
            apply: True if this call updates the weights; None if every call does.
            by_groups: The conditions of all updates, which are made by one op for weights with equal options; None
                for updates by nodes for each.

        Returns:
            The names of those that stay as they are unless the conditions are True.
        """
        make, settled = self._make, set()
        new_values: Iterable[Sequence[ir.Value]]
        if by_groups is None:
            new_values = (updates.optimizer.update(updates.nodes, weight) for weight in updates.weights)
        else:
            conditions = [condition for condition in by_groups if condition is not None]
            condition = make.typed("And", *conditions) if len(conditions) > 1 else next(iter(conditions), None)
            new_values = updates_by_groups(self._training_graph.model, updates, condition)
        for name, weight, new in zip(names, updates.weights, new_values, strict=True):
            value, *slots = new
            pairs = list(zip(weight.slots, slots, strict=True))
            if name in learned.used:
                self._new[name] = learned.new(name, self._inputs[name], value, apply)
            else:
                pairs.append((weight.value, value))
            for old, next_value in pairs:
                self._set(old, next_value, apply if by_groups is None else None)
                if by_groups is not None:
                    settled.add(str(old.name))
        return settled

    def _freeze_ranges(self, quantization: Quantization | None, updates: int | None) -> LearnedScales:
        """Lets ranges stay after some updates, and returns the learned scales."""
        if quantization is None or (updates is None and not quantization.scales):
            return LearnedScales(self._make, {}, {}, None)
        is_frozen = self._after(updates) if updates else None
        outputs, of_ranges = {str(value.name): value for value in self._graph.outputs}, {}
        for tensor, name in quantization.ranges.items():
            new = outputs[self._training_graph.running_statistics[name]]
            new = freeze_range(self._names, is_frozen, self._inputs[name], new)
            if tensor in quantization.scales:
                of_ranges[quantization.scales[tensor]] = scale_of(self._make, new, quantization)[0]
        learned = {name: self._inputs[name] for name in of_ranges}
        if is_frozen is not None:
            learned = {name: masked(self._names, is_frozen, value) for name, value in learned.items()}
        return LearnedScales(self._make, of_ranges, learned, is_frozen)

    def _after(self, updates: int) -> ir.Value:
        """Returns the condition that a number of updates are made, before all nodes."""
        make = nodes_at_start(self._graph, self._names, "bngrad_freeze")
        result = make.op("GreaterOrEqual", self._inputs[self._count], make.int64(self._made_before + updates))
        result.type, result.shape = ir.TensorType(ir.DataType.BOOL), ir.Shape([])
        return result

    def freeze_statistics(self, updates: int | None, ranges: Collection[str]) -> None:
        """Lets batch norms use their running statistics after some updates.

        Args:
            updates: The number of updates; None for never.
            ranges: The running statistics that are ranges of rounded tensors, which go on.

        Raises:
            ModelError: See `freeze_statistics`.
            UnsupportedNodeError: See `freeze_statistics`.
        """
        if updates is None:
            return
        is_frozen = self._after(updates)
        outputs = {str(value.name): value for value in self._graph.outputs}
        running = {
            self._inputs[name]: outputs[output]
            for name, output in self._training_graph.running_statistics.items()
            if name not in ranges and dtype_of(self._inputs[name]).is_floating_point()
        }
        replaced = freeze_statistics(self._graph, self._names, is_frozen, self._training_graph.loss, running)
        self._new = {name: replaced.get(value, value) for name, value in self._new.items()}
        self.updates = None  # its gradients are replaced

    def _add_averages(self, averages: WeightAverages, updates: ir.Value, apply: ir.Value | None) -> None:
        """Adds averages of weights and running statistics.

        Args:
            averages: The kind of averages.
            updates: The number of updates with this one.
            apply: True if this call updates the weights; None if every call does.
        """
        make = self._make
        counted, due = averages.counted(make, updates)
        if due is not None:
            apply = due if apply is None else make.typed("And", due, apply)
        names = [name for name, entry in self._entries.items() if entry.role in ("weight", "running_statistic")]
        shares: dict[ir.DataType, ir.Value] = {}
        for name in names:
            dtype = dtype_of(self._inputs[name])
            if not dtype.is_floating_point():
                continue  # a counter
            if dtype not in shares:
                shares[dtype] = averages.share(make, counted, dtype)
            old = self._new_state(f"{name}/average", "average", self.state[name].copy(), name)
            new = self._new[name]
            distance = make.typed("Sub", new, old)
            change = make.typed("Mul", distance, make.of_rank_of(shares[dtype], old))
            self._set(old, make.typed("Add", old, change), apply)

    def _add_scaling(self, scaling: LossScaling, gradients: Sequence[ir.Value], *, by_op: bool) -> ir.Value:
        """Adds the state of loss scaling, and returns the condition that the gradients are finite."""
        inputs = {str(value.name): value for value in self._graph.inputs}
        name = self._training_graph.loss_scale
        assert name is not None, "the graph is one of mixed precision in float16"  # noqa: S101
        scale = self._add_state(inputs[name], "loss_scale", np.array(scaling.init_scale, np.float32))
        counts = [
            self._new_state(f"scaler/{role}", role, np.array(0, np.int64))
            for role in ("growth_tracker", "skipped")
        ]
        self._scaler = [str(value.name) for value in (scale, *counts)]
        self._extra["loss_scale"] = scale
        self._unscale = inverse_scale(self._make, scale, gradients)
        if by_op:
            return all_finite_by_op(self._training_graph.model, self._make, gradients)
        return all_finite(self._make, gradients)

    def _unscaled(self, gradient: ir.Value) -> ir.Value:
        """Returns a gradient of the loss from that of the loss times the scale."""
        if self._unscale is None:
            return gradient
        factor = self._make.cast(self._unscale, dtype_of(gradient))
        return self._make.typed("Mul", gradient, self._make.of_rank_of(factor, gradient))

    def _accumulated(self, gradients: Mapping[str, ir.Value], calls: int) -> tuple[dict[str, ir.Value], ir.Value]:
        """Adds the mean gradients of the calls since the last update, and the condition that this call updates."""
        make = self._make
        micro_step = self._new_state("micro_step", "micro_step", np.array(0, np.int64))
        counted = make.typed("Add", micro_step, make.int64(1))
        apply = make.op("Equal", counted, make.int64(calls))
        apply.type, apply.shape = ir.TensorType(ir.DataType.BOOL), ir.Shape([])
        self._new[str(micro_step.name)] = make.where(apply, make.int64(0), counted)
        types = dict.fromkeys(dtype_of(gradient) for gradient in gradients.values())
        numbers = {(number, dtype): make.constant(number, dtype) for number in (calls, 0) for dtype in types}
        means = {}
        for name, gradient in gradients.items():
            zeros = np.zeros_like(self.state[name])
            old = self._new_state(f"{name}/accumulated_gradient", "optimizer", zeros, name)
            total = make.typed("Add", old, gradient)
            count, zero = (numbers[number, dtype_of(old)] for number in (calls, 0))
            means[name] = make.typed("Div", total, make.of_rank_of(count, old))
            self._new[str(old.name)] = make.where(apply, make.of_rank_of(zero, old), total)
        return means, apply

    def _new_state(self, name: str, role: Role, initial: Array, weight: str | None = None) -> ir.Value:
        """Adds an input for a tensor of the state."""
        value = ir.val(self._names.fresh(name), ir.DataType.from_numpy(initial.dtype), initial.shape)
        self._graph.inputs.append(value)
        return self._add_state(value, role, initial, weight)

    def _add_state(self, value: ir.Value, role: Role, initial: Array, weight: str | None = None) -> ir.Value:
        name = str(value.name)
        self._inputs[name], self.state[name] = value, initial
        self._entries[name] = StateTensor(role, initial.dtype.name, initial.shape, weight=weight)
        return value

    def _set(self, old: ir.Value, new: ir.Value, apply: ir.Value | None) -> None:
        """Sets the next value of a tensor of the state; it is the old one in a call without an update."""
        self._new[str(old.name)] = new if apply is None else self._make.where(apply, new, old)

    def finish(self, outputs: Sequence[str], **metadata: Any) -> StepInfo:  # noqa: ANN401 - fields of StepInfo
        """Arranges inputs and outputs, and returns the metadata.

        Args:
            outputs: The outputs of the training graph to keep beside the loss.
            metadata: The fields of the metadata that record how the step was made.

        Raises:
            InputError: There is no such output.
            ModelError: An input has no type.
        """
        graph, loss = self._graph, self._training_graph.loss
        by_name = {str(value.name): value for value in graph.outputs}
        for name in outputs:
            if name not in by_name:
                raise InputError(unknown_name(name, by_name, "an output of the training graph"))
        kept = [self._kept(by_name[name]) for name in dict.fromkeys(outputs) if name != loss]
        extra = {name: self._make.name(value, self._names.fresh(name)) for name, value in self._extra.items()}
        kept += extra.values()
        new = {name: self._next(name, kept) for name in self._entries}
        data = [value for value in graph.inputs if value.name not in self._entries]
        graph.outputs.clear()
        graph.outputs.extend([by_name[loss], *kept, *new.values()])
        graph.inputs.clear()
        graph.inputs.extend([*data, self._rate, *self._inputs.values()])
        self._training_graph.model.metadata_props.pop(TRAINING_GRAPH, None)
        state = {name: replace(entry, new=str(new[name].name)) for name, entry in self._entries.items()}
        return StepInfo(
            layout="named",
            loss=loss,
            outputs=tuple(str(value.name) for value in kept),
            learning_rate=str(self._rate.name),
            learning_rate_dtype=dtype_of(self._rate).numpy().name,
            data={str(value.name): data_input(value) for value in data},
            state=state,
            flat=None,
            loss_scale=str(extra["loss_scale"].name) if "loss_scale" in extra else None,
            **metadata,
        )

    def _kept(self, output: ir.Value) -> ir.Value:
        """Returns an output of the training graph as the step has it, where gradients are not scaled."""
        name = str(output.name)
        if self._unscale is None or name not in self._training_graph.gradients.values():
            return output
        output.name = self._names.fresh(f"{name}_scaled")
        return self._make.name(self._unscaled(output), name)

    def _next(self, name: str, kept: Sequence[ir.Value]) -> ir.Value:
        """Returns the output with the next value of a tensor of the state, under a name of its own."""
        value, old = self._new[name], self._inputs[name]
        if value.is_graph_output() and value not in kept and value.producer() is not None:
            return value  # a running statistic, under the name that the model gives it
        result = self._make.name(value, self._names.fresh(f"{name}_new"))
        result.type, result.shape = old.type, old.shape
        return result


def _fitting(value: ir.Value, array: Array) -> Array:
    """Returns an initial value if it has the type and shape of an input."""
    dtype, shape = dtype_of(value).numpy(), known_shape(value)
    if array.dtype != dtype:
        raise InputError(f"the initial value of {value.name!r} is {array.dtype}; expected {dtype}")
    if shape is not None and not may_be_equal(shape, array.shape):
        raise InputError(
            f"the initial value of {value.name!r} has shape {shape_text(array.shape)}; "
            f"expected {shape_text(shape)}"
        )
    return array
