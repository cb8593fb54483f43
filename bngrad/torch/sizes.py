"""The sizes for which an exported program is right, from the assumptions of `torch.export` while it traced."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

import sympy
import torch
from torch._subclasses import FakeTensor
from torch.fx.experimental import _config as symbolic_config
from torch.nn import functional
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

from bngrad.autodiff.size_conditions import holds, names_in
from bngrad.errors import ModelError
from bngrad.graph.fresh_names import free_name
from bngrad.torch.fixed_sizes import symbols_to_fix

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager

    from torch.export import ExportedProgram

    from bngrad.autodiff.size_conditions import Condition
    from bngrad.torch.dynamic_shapes import Dynamic
    from bngrad.torch.example import Example

_OPERATORS = {
    "Equality": "==",
    "Unequality": "!=",
    "StrictLessThan": "<",
    "LessThan": "<=",
    "StrictGreaterThan": ">",
    "GreaterThan": ">=",
    "And": "and",
    "Or": "or",
    "Not": "not",
    "Mul": "*",
    "FloorDiv": "//",
    "CleanDiv": "//",
    "Mod": "%",
    "PythonMod": "%",
    "IntTrueDiv": "/",
    "FloatTrueDiv": "/",
    "Max": "max",
    "Min": "min",
    "ceiling": "ceil",
    "CeilToInt": "ceil",
    "floor": "floor",
    "FloorToInt": "floor",
    "TruncToInt": "floor",
}
"""The operators of conditions, by the names of SymPy's and PyTorch's classes. Sizes are not negative."""
_LARGEST = 2**62


class Sizes(NamedTuple):
    """The symbolic dimensions of a program, and the sizes for which it is right."""

    symbols: dict[str, str]
    """The names of dimensions, by those of PyTorch's symbols."""
    axes: list[dict[int, str]]
    """The names of the symbolic dimensions, by their index, for each tensor of the example."""
    fixed: list[tuple[str, int, int]]
    """The dimensions that are fixed although they were to be symbolic: input, index, size."""
    conditions: list[Condition]
    """The conditions that the sizes must fulfil."""
    in_training: list[Condition]
    """The further conditions in training mode."""


class TrainingChecks:
    """The checks that PyTorch runs only in training mode, kept apart from the conditions of evaluation mode."""

    def __init__(self) -> None:
        self.batches: list[Any] = []
        """The numbers of values for each channel of batch norms in training mode."""

    @contextmanager
    def collected(self) -> Iterator[None]:
        """While it is active, batch norms do not check that they have more than one value for each channel."""
        check: Any = functional._verify_batch_size

        def collect(size: Sequence[Any]) -> None:
            values = size[0]
            for dimension in size[2:]:
                values = values * dimension
            if isinstance(values, torch.SymInt):
                self.batches.append(values.node.expr)
            else:
                check(size)

        functional._verify_batch_size = collect
        try:
            yield
        finally:
            functional._verify_batch_size = check


def exact_sizes() -> AbstractContextManager[None]:
    """While it is active, PyTorch assumes only what the module's branches ask of symbolic sizes.

    Otherwise it assumes that they are 2 or more, so that a branch on ``x.shape[0] > 1`` leaves no trace.
    """
    if not hasattr(symbolic_config, "backed_size_oblivious"):
        return nullcontext()
    patch: AbstractContextManager[None] = symbolic_config.patch(backed_size_oblivious=True)
    return patch


def read_sizes(program: ExportedProgram, example: Example, dynamic: Dynamic, checks: TrainingChecks) -> Sizes:
    """Reads the symbolic dimensions of a program, and the conditions on their sizes.

    Args:
        program: The result of `torch.export.export`.
        example: The arguments.
        dynamic: The dimensions that were to be symbolic, and their names.
        checks: The checks of training mode while it was traced.

    Raises:
        ModelError: A condition on sizes cannot be written as JSON.
    """
    inputs = set(map(str, program.graph_signature.user_inputs))
    values = [
        node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder" and node.name in inputs
    ]
    tensors = [tensor for tensor in values if isinstance(tensor, torch.Tensor)]
    names = _Names(example, dynamic, tensors)
    environment = next((tensor.fake_mode.shape_env for tensor in tensors if isinstance(tensor, FakeTensor)), None)
    if environment is None or not names.of_symbols:
        return Sizes({}, names.axes, names.fixed, [], [])
    guards = [environment.replace(guard.expr) for guard in environment.guards]
    guards += [sympy.Ne(size, 1) for size in _squeezed(program)]
    to_fix = symbols_to_fix(program, guards)
    guards = [guard for guard in guards if not guard.free_symbols <= to_fix]
    conditions = [*names.fix(to_fix, example), *names.derived, *names.conditions(guards), *dynamic.limits]
    for symbol, limits in program.range_constraints.items():
        conditions += names.limits(symbol, limits, conditions)
    in_training = names.conditions(sympy.Ne(environment.replace(values), 1) for values in checks.batches)
    return Sizes(
        {str(symbol): name for symbol, name in names.of_symbols.items()},
        names.axes,
        names.fixed,
        _unique(conditions),
        _unique(condition for condition in in_training if condition not in conditions),
    )


class _Names:
    """The names of the symbolic dimensions of a program's inputs, and conditions in terms of them.

    Args:
        example: The arguments.
        dynamic: The names that users chose.
        tensors: The inputs of the program.
    """

    def __init__(self, example: Example, dynamic: Dynamic, tensors: Sequence[torch.Tensor]) -> None:
        self.of_symbols: dict[sympy.Symbol, str] = {}
        self.axes: list[dict[int, str]] = [{} for _ in tensors]
        self.fixed: list[tuple[str, int, int]] = []
        self.derived: list[Condition] = []
        """The conditions that state a dimension as a function of others."""
        later: list[tuple[int, int, str, sympy.Expr]] = []
        taken = {name for names in dynamic.axes for name in names.values() if name is not None}
        for index, (input_name, tensor, names) in enumerate(
            zip(example.names, tensors, dynamic.axes, strict=True)
        ):
            for axis, dynamic_name in names.items():
                size = tensor.shape[axis]
                expression = size.node.expr if isinstance(size, torch.SymInt) else sympy.Integer(size)
                if expression.is_Integer:
                    self.fixed.append((input_name, axis, int(expression)))
                    continue
                if expression in self.of_symbols:
                    self.axes[index][axis] = self.of_symbols[expression]
                    continue
                name = free_name(f"{input_name}_dim_{axis}", taken) if dynamic_name is None else dynamic_name
                taken.add(name)
                self.axes[index][axis] = name
                if expression.is_Symbol:
                    self.of_symbols[expression] = name
                else:
                    later.append((index, axis, name, expression))
        for _, _, name, expression in later:
            self.derived.append(["==", name, self._operand(expression)])

    def fix(self, symbols: Iterable[sympy.Basic], example: Example) -> list[Condition]:
        """Fixes sizes at those of the example; returns these as conditions."""
        fixed = {self.of_symbols[symbol] for symbol in symbols if symbol in self.of_symbols}
        conditions = []
        for input_name, tensor, axes in zip(example.names, example.flat, self.axes, strict=True):
            for axis, name in axes.items():
                if name in fixed:
                    size = int(tensor.shape[axis])
                    self.fixed.append((input_name, axis, size))
                    conditions.append(["==", name, size])
        return conditions

    def conditions(self, guards: Iterable[sympy.Basic]) -> list[Condition]:
        """The guards that sizes above 0 may violate, as conditions."""
        ranges = {symbol: ValueRanges(1, int_oo) for symbol in self.of_symbols}
        conditions = []
        for guard in guards:
            if not guard.free_symbols or not guard.free_symbols <= ranges.keys():
                continue  # it holds, or is on sizes that depend on values
            always = bound_sympy(guard, ranges)
            if not (always.is_singleton() and always.lower):
                conditions.append(self._operand(guard))
        return conditions

    def limits(
        self, symbol: sympy.Symbol, limits: ValueRanges, conditions: Sequence[Condition]
    ) -> Iterator[Condition]:
        """The smallest and the largest size of a dimension, as conditions that do not follow from others."""
        name = self.of_symbols.get(symbol)
        for operator, limit, beyond in ((">=", limits.lower, -1), ("<=", limits.upper, 1)):
            if name is None or not isinstance(limit, sympy.Integer) or not 1 < limit < _LARGEST:
                continue
            outside = {name: int(limit) + beyond}
            if all(names_in(condition) != [name] or holds(condition, outside) for condition in conditions):
                yield [operator, name, int(limit)]

    def _operand(self, expression: sympy.Basic) -> Any:  # noqa: ANN401 - an integer, a name or a list
        """An expression of SymPy as an operand of a condition.

        Raises:
            ModelError: It has an operator that conditions lack.
        """
        kind, operands = type(expression).__name__, expression.args
        result: Any = None
        if isinstance(expression, sympy.Symbol):
            result = self.of_symbols.get(expression)
        elif isinstance(expression, sympy.Integer):
            result = int(expression) if abs(expression) < _LARGEST else None
        elif isinstance(expression, sympy.Rational | sympy.Float):
            number = float(expression) if isinstance(expression, sympy.Float) else expression
            result = ["/", *map(int, number.as_integer_ratio())]
        elif kind in ("ToFloat", "Identity"):
            result = self._operand(operands[0])
        elif kind == "Add":
            result = self._sum(operands)
        elif kind in ("Pow", "PowByNatural") and operands[1].is_Integer and 1 < operands[1] < 10:
            result = ["*", *[self._operand(operands[0])] * int(operands[1])]
        elif kind == "ModularIndexing":
            result = ["%", ["//", *map(self._operand, operands[:2])], self._operand(operands[2])]
        elif kind in _OPERATORS:
            result = [_OPERATORS[kind], *map(self._operand, operands)]
        if result is not None:
            return result
        raise ModelError(
            f"the module computes with a symbolic size in a way that a training step cannot check ({expression}); "
            "fix the size: leave it out of dynamic_shapes, or pass dynamic_batch=False"
        )

    def _sum(self, terms: Sequence[sympy.Basic]) -> Any:  # noqa: ANN401
        less = [term for term in terms if term.could_extract_minus_sign()]
        more = [self._operand(term) for term in terms if term not in less]
        total = 0 if not more else more[0] if len(more) == 1 else ["+", *more]
        for term in less:
            total = ["-", total, self._operand(-term)]
        return total


def _squeezed(program: ExportedProgram) -> Iterator[sympy.Expr]:
    """The symbolic sizes that `squeeze` would remove if they were 1; PyTorch assumes that they are not."""
    for node in program.graph.nodes:
        if node.op == "call_function" and str(node.target).startswith("aten.squeeze."):
            source = node.args[0].meta["val"]
            chosen = node.args[1] if len(node.args) > 1 else range(source.ndim)
            for axis in chosen if isinstance(chosen, Iterable) else [chosen]:
                if isinstance(source.shape[axis], torch.SymInt):
                    yield source.shape[axis].node.expr


def _unique(conditions: Iterable[Condition]) -> list[Condition]:
    unique: list[Condition] = []
    for condition in conditions:
        if condition not in unique:
            unique.append(condition)
    return unique
