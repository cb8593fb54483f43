"""Mutants of mixed precision: which nodes have 16 bits, their casts, and the scale of the loss."""

from __future__ import annotations

from metamorphic.mutants import of

_OF_NODES = "tests/passes/precision/test_mixed_precision_pass.py"
_OF_STEP = "tests/training/test_mixed_precision.py"
_OF_SCALE = "tests/training/test_loss_scaling.py"
_NODES = (f"{_OF_NODES}::test_the_nodes_in_16_bits",)
_EXACT = (f"{_OF_STEP}::test_in_float64_it_is_the_step_of_the_model",)
_OVERFLOW = (f"{_OF_SCALE}::test_a_call_with_an_overflow_changes_only_the_scale",)

PRECISION_MUTANTS = [
    *of(
        "bngrad/passes/precision/sixteen_bit_ops.py",
        (
            "_BATCH_NORM = SixteenBitOp(outputs=(0,))",
            "_BATCH_NORM = SixteenBitOp()",
            "statistics in 16 bits",
            (f"{_OF_NODES}::test_the_network",),
        ),
        ("data=None, one_shape=True", "data=None, one_shape=False", "a broadcast is added in 16 bits", _NODES),
    ),
    *of(
        "bngrad/passes/precision/mixed_precision.py",
        ("and not all(value in", "and not any(value in", "some of the data decide", _NODES),
        (
            "if value not in self._casts:",
            "if value is not None:",
            "each reader casts a value",
            (f"{_OF_NODES}::test_each_value_is_cast_once",),
        ),
        (
            "replace_all_uses_with(wide, replace_graph_outputs=True)",
            "replace_all_uses_with(wide, replace_graph_outputs=False)",
            "an output has 16 bits",
            _NODES,
        ),
    ),
    *of(
        "bngrad/training/all_finite.py",
        (
            '"ReduceSum", differences)',
            '"ReduceSum", differences[:1])',
            "only the first gradient is looked at",
            (f"{_OF_SCALE}::test_elements_decide_and_not_their_sum", *_OVERFLOW),
        ),
        (
            'make.typed("Sub", gradient, gradient)',
            'make.typed("Abs", gradient)',
            "large gradients overflow together",
            (f"{_OF_SCALE}::test_elements_decide_and_not_their_sum",),
        ),
    ),
    *of(
        "bngrad/training/optim/group_updates.py",
        (
            "condition = is_applied if conditional else None",
            "condition = None",
            "a group is updated where gradients overflow",
            ("tests/training/test_group_updates.py",),
        ),
    ),
    *of(
        "bngrad/training/loss_scaling.py",
        ("make.constant(0.5, _FLOAT)", "make.constant(0.25, _FLOAT)", "the scale falls too fast", _OVERFLOW),
        ("zero, counted), zero)", "zero, counted), counted)", "a skipped call counts as good", _OVERFLOW),
        (
            "make.constant(LARGEST, _FLOAT))",
            'make.constant(float("inf"), _FLOAT))',
            "the scale grows without end",
            (f"{_OF_SCALE}::test_the_largest_scale_stays",),
        ),
    ),
    *of(
        "bngrad/training/step_builder.py",
        ("scale, apply = self._unscale, None", "scale, apply = None, None", "updates are scaled", _EXACT),
        ("self._make.name(self._unscaled(output), name)", "output", "a fetched gradient is scaled", _EXACT),
        (
            "make.where(is_finite, new, self._inputs[name])",
            "make.where(is_finite, new, new)",
            "a call that overflows updates the state",
            _OVERFLOW,
        ),
    ),
    *of(
        "bngrad/training/clipping.py",
        ('norm = make.typed("Mul", norm, scale)', "pass", "the scaled norm is clipped", _EXACT),
    ),
    *of(
        "bngrad/training/state_buffers.py",
        (
            "info.accumulate + micro_step + skipped",
            "info.accumulate + micro_step",
            "skipped calls are not counted",
            (f"{_OF_SCALE}::test_a_resumed_run_counts_skipped_calls",),
        ),
    ),
]
