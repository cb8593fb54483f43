"""Mutants of quantization-aware training."""

from __future__ import annotations

from metamorphic.mutants import of

_TESTS = "tests/training/test_quantize.py"
_NUMPY = (f"{_TESTS}::test_the_steps_of_numpy",)
_DEPLOYED = (f"{_TESTS}::test_the_deployed_model",)
_CHANNELS = (f"{_TESTS}::test_channels_without_a_scale",)
_ZERO = (f"{_TESTS}::test_tensors_above_0",)
_LEARNED = "tests/training/test_learned_scales.py"
_FOLDER = "bngrad/passes/quantize"

QUANTIZE_MUTANTS = (
    *of(
        f"{_FOLDER}/round_values.py",
        ("_SHARE = 0.01", "_SHARE = 0.02", "a batch moves a range twice as far", _NUMPY),
        (
            'make.op("Sub", high, low), largest - least)',
            'make.op("Sub", high, low), largest - least + 1)',
            "an activation has one integer more",
            _NUMPY,
        ),
        (
            'make.op("Min", make.op("ReduceMin", flat), zero)',
            'make.op("ReduceMin", flat)',
            "a range lacks 0",
            _ZERO,
        ),
        ("return self._stop(make, new)", "return self._stop(make, old)", "the range is the one before", _NUMPY),
        (
            'make.op("Mul", count, largest)',
            'make.op("Add", count, largest)',
            "the gradient of a scale has another factor",
            (f"{_LEARNED}::test_the_steps_of_numpy",),
        ),
    ),
    *of(
        "bngrad/training/learned_scales.py",
        (
            "make.constant(SMALLEST_SCALE, _FLOAT)",
            "make.constant(-1, _FLOAT)",
            "a learned scale becomes negative",
            (f"{_LEARNED}::test_scales_stay_above_0",),
        ),
        (
            'make.op("LessOrEqual",',
            'make.op("Greater",',
            "a range never stays",
            (f"{_LEARNED}::test_after_some_updates",),
        ),
    ),
    *of(
        f"{_FOLDER}/deploy.py",
        ("np.sign(factor) * exact / wide", "exact / wide", "a negative factor is positive", _DEPLOYED),
        (
            "shift + (bias - mean) * factor",
            "shift - mean * factor",
            "a bias before a batch norm is lost",
            _DEPLOYED,
        ),
        ("_LARGEST_BIAS = 2.0**30", "_LARGEST_BIAS = 2.0**90", "a bias overflows 32 bits", _CHANNELS),
    ),
    *of(
        f"{_FOLDER}/layers.py",
        ('return 0 if read_attribute(layer, "transB", 0) else 1', "return 1", "transB is ignored", _NUMPY),
    ),
    *of(
        f"{_FOLDER}/biases.py",
        (
            'make.op("Add", bias, share), mean)',
            'make.op("Add", bias, share), share)',
            "the mean is left out",
            _DEPLOYED,
        ),
    ),
)
