"""Mutants of the C++ library around the kernels: factors, statistics, layouts, reductions, the two interfaces."""

from __future__ import annotations

from metamorphic.mutants import Mutant, kernel_tests, of

GRAD = of(
    "ops/core/grad.cc",
    ("= inv_std[i] * dscale[i] / m;", "= dscale[i] / m;", "the part of xhat without its inv_std"),
    ("(0, c, scale_[channel] * inv_std_[channel])", "(0, c, scale_[channel])", "a frozen dX without inv_std"),
    ("return scale[i] * inv_std[i];", "return scale[i];", "dX without inv_std"),
    ("sum_dyd[i] * inv_std[i] : 0", "sum_dyd[i] : 0", "dscale of D, not of xhat"),
    ("mean_dy[i] = dbias[i] / m;", "mean_dy[i] = dbias[i] / (m - 1);", "mean(dY) divides by M - 1"),
    ("dbias_.Write(first, count, dbias);", "dbias_.Write(first, count, sum_dyd);", "dbias is dscale"),
    (
        "{ FinishBatch(channels, c, count); }",
        "{ FinishBatch(channels, 0, count); }",
        "later channels are the first",
    ),
    (
        "(mean_dy[i]).low",
        "(0 * mean_dy[i]).low",
        "what rounding took from mean(dY)",
        kernel_tests("test_gradient_about_1000"),
    ),
    (
        "mean_.Read(channels.first, channels.count, channels.center);",
        "mean_.Read(0, channels.count, channels.center);",
        "later tiles have the mean of the first",
    ),
    (
        "training_ || dscale_.requested() || dbias_.requested()",
        "training_ || dscale_.requested()",
        "a frozen dbias that is the only request is not computed",
        ("tests/ops/test_ort_op.py::test_grad_outputs_left_out", "tests/ops/test_c_abi.py"),
    ),
    (
        "bool fuses_map() const override { return !training_; }",
        "bool fuses_map() const override { return true; }",
        "dX is computed before the sums that it needs",
        (),
        "the table has no kernel that sums and maps in training mode",
    ),
)

GRAD_GRAD = of(
    "ops/core/grad_grad.cc",
    ("- ddx_xhat * dy_xhat;", "+ ddx_xhat * dy_xhat;", "ddX P(dY) has the wrong sign of a part"),
    ("(ddscale_[channel] - gain * ddx_xhat)", "(ddscale_[channel] + gain * ddx_xhat)", "slope has the wrong sign"),
    ("inv_std * ddx_p_dy * m_ : 0", "inv_std * ddx_p_dy : 0", "d_scale is a mean"),
    ("of_ddx = inv_std * gain * dy_xhat;", "of_ddx = gain * dy_xhat;", "a part of d_X without inv_std"),
    (
        "slope * dy_xhat - of_ddx * ddx_xhat",
        "slope * dy_xhat + of_ddx * ddx_xhat",
        "the part of D has a wrong sign",
    ),
    ("(3, c, ddbias_[channel])", "(3, c, 0)", "a frozen d_dY without ddbias"),
    (
        "ddbias_[channel] - gain * k1.low",
        "ddbias_[channel]",
        "what rounding took from mean(ddX)",
        kernel_tests("test_gradients_about_1000_in_grad_grad"),
    ),
    (
        "inv_std_[channel] * channels.Sum(4, c) : 0",
        "inv_std_[channel] * channels.Sum(0, c) : 0",
        "a frozen d_scale of dY",
    ),
    ("inv_std_[channel] * channels.Sum(4, c) : 0", "channels.Sum(4, c) : 0", "a frozen d_scale without inv_std"),
)

TRAINING = of(
    "ops/core/training.cc",
    ("1 / std::sqrt(var + a_.epsilon)", "1 / (std::sqrt(var) + a_.epsilon)", "epsilon beside the root"),
    ("- rest * rest);", ");", "the variance about the rounded mean"),
    ("low, scale_[channel] * inv_std,", "low, inv_std,", "Y without its scale"),
    (
        "(center - high) + rest : 0",
        "(center - high) : 0",
        "the rest of the mean is left out of Y",
        kernel_tests("test_ten_million_to_one"),
    ),
    ("saved_mean_.Set(channel, mean);", "saved_mean_.Set(channel, rest);", "the saved mean is its rest"),
) + of(
    "ops/core/statistics_program.hpp",
    (
        "keep = momentum_, take = 1 - momentum_",
        "keep = 1 - momentum_, take = momentum_",
        "PyTorch's momentum",
    ),
    ("var * m / std::max(m - 1, 1.0)", "var * (m + 1) / m", "a wrong Bessel's correction"),
    ("unbiased_var_ ? var", "!unbiased_var_ ? var", "the correction where there should be none"),
    ("keep * var_[channel]", "keep * mean_[channel]", "the running mean for the variance"),
    (
        "channels.center[c] = channels.Sum(0, c) / m_;",
        "channels.center[c] = channels.Sum(0, c) / (m_ + 1);",
        "a mean over M + 1, which the second sweep should repair, and does for all but digits",
        ("tests/ops/test_synchronized.py",),
    ),
)

LAYOUT = [
    *of(
        "ops/core/layout.cc",
        ("axis < 0 ? axis + rank : axis", "axis < 0 ? -axis - 1 : axis", "negative axes count from the front"),
        ("merged.back().dim.size *= shape[i];", "merged.back().dim.size += shape[i];", "sizes are added"),
        (
            "index /= dims[i].size;",
            "",
            "all outer dimensions have one index",
            kernel_tests("test_every_choice_of_axes"),
        ),
        (
            "layout.channel = TakeInnermost(layout.outer_kept);",
            "layout.channel = TakeInnermost(layout.outer_reduced);",
            "rows take a reduced dimension for their channels",
            kernel_tests("test_every_choice_of_axes"),
        ),
        (
            "(reduced[i] ? layout.reduced : layout.channels) *= shape[i];",
            "(reduced[i] ? layout.channels : layout.reduced) *= shape[i];",
            "M and C are exchanged",
        ),
    ),
    Mutant(
        "ops/core/layout.cc",
        "if (shape[i] == 1) continue;",
        "",
        "dimensions of one element stay",
        kernel_tests("test_dimensions_of_extent_1"),
        equivalent="they only keep their neighbours apart: more blocks of the same elements, in another order",
    ),
]

SYNCHRONIZED = of(
    "ops/core/synchronized.cc",
    *(
        (old, new, what, ("tests/ops/test_synchronized.py",))
        for old, new, what in (
            ("return n * (m - first[i]);", "return m - first[i];", "ranks of any size count alike"),
            ("- m_ * rest * rest)", "- rest * rest)", "M2 about the rounded mean"),
            ("return m2 + n * (deviation * deviation);", "return m2;", "the means of ranks do not differ"),
            ("n[i] == 0 ? 0 : term", "term", "a rank without elements counts"),
        )
    ),
)

DRIVERS = (
    of(
        "ops/core/partition.cc",
        (
            "return (a + b - 1) / b;",
            "return a / b;",
            "the last tiles and segments are left out",
            kernel_tests("test_row_lengths"),
        ),
    )
    + of(
        "ops/core/sweep.cc",
        (
            "with_x[c] -= channels.center[c] * sum[c];",
            "with_x[c] += channels.center[c] * sum[c];",
            "sums of products with X move away from the center",
        ),
        (
            "for (int k = 1; k < count; k += 2) {",
            "for (int k = 1; k < count; k += 4) {",
            "ddX's sums of products stay about zero",
        ),
        ("sums[c] += sums[i + c];", "sums[c] += sums[c];", "the places of a folded channel are one, many times"),
        (
            "item / adjacent % segments);",
            "item % segments);",
            "some segments of adjacent tiles are left out",
            kernel_tests("test_column_counts"),
        ),
        (
            "const int64_t end = (task + 1) * partition_.tiles / tasks;",
            "const int64_t end = (task + 1) * partition_.tiles / tasks - (task > 0);",
            "the last tile of each task but the first is left out",
            kernel_tests("test_several_tiles_in_a_task"),
        ),
        (
            "separate_map_ = has_outputs && sum_and_map_ == nullptr;",
            "separate_map_ = has_outputs && program.steps() == 0;",
            "elements that are not mapped in the loop that sums are not mapped at all",
        ),
    )
    + of(
        "ops/core/pairwise.hpp",
        ("to[i] += from[i];", "to[i] = from[i];", "the tree over segments forgets one side"),
    )
    + of(
        "ops/core/threads.hpp",
        ("(part + 1) * count / parts - 1 - i);", "(part + 1) * count / parts - i);", "backward, all one later"),
        (
            "((i + 1) * parts - 1) / count;",
            "i * parts / count;",
            "backward, uneven parts start in the previous one",
            kernel_tests("test_instruction_set_does_not_change_a_bit"),
        ),
    )
    + of(
        "ops/core/scratch.hpp",
        ("slot * slot_size_ + offset);", "offset);", "every thread writes its sums to one place"),
        ("factors_at_(center_at_ + Lines(center * kDouble)),", "factors_at_(center_at_),", "factors over means"),
    )
    + of(
        "ops/core/sweep.hpp",
        (
            "low(value - high)",
            "low(high - value)",
            "a low part of the wrong sign",
            kernel_tests("test_gradient_about_1000", "test_gradients_about_1000_in_grad_grad"),
        ),
    )
    + of(
        "ops/core/element_type.cc",
        (
            "return ToFloat(static_cast<const Float16*>(data_)[i]);",
            "return ToFloat(static_cast<const BFloat16*>(data_)[i]);",
            "float16 parameters are read as bfloat16",
            kernel_tests("test_every_combination_of_types"),
        ),
        (
            "--bits;",
            "",
            "parameters of 16 bits are rounded twice",
            kernel_tests("test_parameters_are_rounded_once"),
        ),
    )
)

INTERFACES = (
    of(
        "ops/c_api/api.cc",
        ('arrays.DataInput("z", z);', 'arrays.DataInput("z", dz);', "dZ for Z"),
    )
    + of(
        "ops/ort/grad.cc",
        ("c.ChannelData(kX + 2),", "c.ChannelData(kX + 3),", "inv_std for the mean"),
        ("kRelu ? c.DataLikeX(1) : nullptr", "kRelu ? c.DataLikeX(2) : nullptr", "X for Z"),
    )
    + of("ops/ort/grad_grad.cc", ("c.ChannelData(1),", "c.ChannelData(2),", "ddbias for ddscale"))
    + of("ops/ort/training.cc", ('GetFloat("momentum")', 'GetFloat("epsilon")', "epsilon for the momentum"))
    + of("ops/ort/statistics.cc", ("{types, epsilon_,", "{types, 2 * epsilon_,", "twice epsilon"))
)

DRIVER_MUTANTS = [*GRAD, *GRAD_GRAD, *TRAINING, *SYNCHRONIZED, *LAYOUT, *DRIVERS, *INTERFACES]
