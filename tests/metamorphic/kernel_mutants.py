"""Mutants of the C++ kernels: formulas, tails, lanes and roundings."""

from __future__ import annotations

from metamorphic.mutants import Mutant, kernel_tests, of

MAPS = [
    *of(
        "ops/kernels/map_formulas-inl.h",
        (
            "Sub16(Sub16(Load(in[0] + i, count), f[0]), f[1]);",
            "Sub16(Load(in[0] + i, count), f[0]);",
            "what rounding took from the mean is forgotten",
            kernel_tests("test_far_from_zero", "test_ten_million_to_one"),
        ),
        ("out[0] = Add16(Mul16(d, f[2]), f[3]);", "out[0] = Sub16(Mul16(d, f[2]), f[3]);", "Y has minus the bias"),
        (
            "Sub16(centered_dy, Add16(Mul16(d, f[4]), f[3]))",
            "Sub16(centered_dy, Mul16(d, f[4]))",
            "what rounding took from mean(dY) is forgotten",
            kernel_tests("test_gradient_about_1000"),
        ),
        (
            "Sub16(Dy::template LoadDy<V>(in, i, count), f[2])",
            "Add16(Dy::template LoadDy<V>(in, i, count), f[2])",
            "mean(dY) is added",
        ),
        ("Add16(Mul16(d, f[4]), f[3])", "Sub16(f[3], Mul16(d, f[4]))", "the part of xhat has the other sign"),
        (
            "out[0] = Mul16(f[0], Dy::template LoadDy<V>(in, i, count));",
            "out[0] = Mul16(f[0], Load(in[1] + i, count));",
            "a frozen dX goes past the ReLU",
        ),
        (
            "out[0] = Add16(Mul16(f[1], centered_ddx)",
            "out[0] = Sub16(Mul16(f[1], centered_ddx)",
            "d_dY has minus the part of ddscale",
        ),
        (
            "Mul16(f[6], centered_ddx)), Add16(",
            "Mul16(f[6], centered_dy)), Add16(",
            "d_X takes dY for ddX",
        ),
        (
            "Add16(Mul16(d, f[7]), f[8])",
            "Mul16(d, f[7])",
            "what rounding took from the means is forgotten in d_X",
            kernel_tests("test_gradients_about_1000_in_grad_grad"),
        ),
        (
            "out[1] = Mul16(f[2], Load(in[1] + i, count));",
            "out[1] = Mul16(f[2], Load(in[2] + i, count));",
            "d_X of ddX",
        ),
    ),
    *of(
        "ops/kernels/map_arrays-inl.h",
        (
            "Map::Apply(in_, i + r * stride, factors.f, results[r], count);",
            "Map::Apply(in_, i, factors.f, results[r], count);",
            "rows that are mapped together are all made of the first",
        ),
        (
            "Put(out_[k] + i + r * stride,",
            "Put(out_[k] + i,",
            "of rows that are mapped together only the first is written",
        ),
        (
            "MapAt(i + r * stride + s * kLanes, factors, policy, count);",
            "MapAt(i + r * stride, factors, policy, count);",
            "of the two strips of a line past the caches only the first is written",
            kernel_tests("test_16_bits_past_the_caches"),
        ),
        (
            "Blend(factors.f[k], later.f[k], before);",
            "Blend(later.f[k], factors.f[k], before);",
            "channels of a strip exchange their factors",
        ),
        (
            "factors_[k * width_ + channel]",
            "factors_[k * width_]",
            "all channels of rows are mapped with the factors of the first",
        ),
        (
            "Load(factors_ + k * width_ + column, count);",
            "Load(factors_ + k * width_, count);",
            "all columns are mapped with the factors of the first",
        ),
    ),
    *of(
        "ops/kernels/alignment-inl.h",
        (
            "block.row_stride * sizeof(T) % kCacheLine == 0;",
            "true;",
            "rows that begin anywhere are written past the cache",
            kernel_tests("test_outputs_too_large_for_the_cache"),
        ),
    ),
    *of(
        "ops/kernels/map_rows-inl.h",
        (
            "const FirstN before{end_ - i_};",
            "const FirstN before{end_ - i_ - 1};",
            "a channel loses its last element of a run",
        ),
        (
            "for (int64_t row = block.rows - 1; row >= first; --row)",
            "for (int64_t row = block.rows - 1; row > first; --row)",
            "the first row of a block is not written",
        ),
    ),
    *of(
        "ops/kernels/map_short_rows-inl.h",
        (
            "const FirstN before{end - i};",
            "const FirstN before{end - i - 1};",
            "a short channel loses its last element to the next",
        ),
        (
            "while (end < i + count) {",
            "if (end < i + count) {",
            "a strip has the factors of two channels at most",
        ),
        (
            "map_several(run - i, FirstN{run - i});",
            "map_several(run - i, FirstN{run - i - 1});",
            "the last element of short rows is not written",
        ),
        (
            "for (int64_t row = grouped; row > 0;) {",
            "for (int64_t row = grouped; row > kMapRows;) {",
            "the first short rows that are mapped together are not written",
        ),
    ),
    *of(
        "ops/kernels/map_columns-inl.h",
        (
            "map(Constant<1>{}, i, FirstN{length - i});",
            "map(Constant<1>{}, i, FirstN{length - i - 1});",
            "the last column is not written",
        ),
        (
            "at + r * stride + s * kLanes, factors[s]",
            "at + r * stride, factors[s]",
            "of the two strips of a line past the caches wide rows have the first one written",
            kernel_tests("test_16_bits_past_the_caches"),
        ),
        (
            "at + r * stride + s * kLanes, factors[s]",
            "at + s * kLanes, factors[s]",
            "of wide rows that are mapped together only the first is written",
            kernel_tests("test_16_bits_past_the_caches"),
        ),
    ),
    *of(
        "ops/kernels/map_columns-inl.h",
        (
            "const StorePolicy policy = block.stream && arrays.RowsAreLines(block) ? kNonTemporal : kTemporal;",
            "const StorePolicy policy = block.stream ? kNonTemporal : kTemporal;",
            "columns that begin anywhere are written past the caches",
            kernel_tests("test_outputs_too_large_for_the_cache"),
        ),
    ),
    *of(
        "ops/kernels/fused_sum_map-inl.h",
        (
            "const StorePolicy policy = block.stream && arrays.RowsAreLines(block) ? kNonTemporal : kTemporal;",
            "const StorePolicy policy = block.stream ? kNonTemporal : kTemporal;",
            "frozen, columns that begin anywhere are written past the caches",
            kernel_tests("test_outputs_too_large_for_the_cache"),
        ),
        (
            "block.stream ? arrays.RowsAreLines(block) :",
            "block.stream ? true :",
            "frozen, short rows that begin anywhere are written past the caches",
            kernel_tests("test_large_outputs_that_begin_anywhere"),
        ),
    ),
    Mutant(
        "ops/kernels/map_rows-inl.h",
        "MapSome(head < run_ ? head : run_);",
        "MapSome(head);",
        "the head may be longer than the row",
        kernel_tests("test_outputs_too_large_for_the_cache", "test_row_lengths"),
        equivalent="a head is below 16 elements, and only rows of 512 and more are written past the cache",
    ),
]

SUMS = [
    *of(
        "ops/kernels/sum_formulas-inl.h",
        (
            "acc[0] = Add16(acc[0], LoadAs<V>(in[0] + i, count));",
            "acc[0] = Sub16(acc[0], LoadAs<V>(in[0] + i, count));",
            "-mean",
        ),
        ("acc[1] = Add16(acc[1], Mul16(d, d));", "acc[1] = Add16(acc[1], Mul16(d, center));", "no squares"),
        (
            "acc[0] = Add16(acc[0], d);",
            "acc[0] = Add16(acc[0], Sub16(d, d));",
            "what the mean's rounding left is forgotten",
        ),
        (
            "return ZeroTail(Sub16(x, center), count);",
            "return Sub16(x, center);",
            "lanes after the end of a row count",
            kernel_tests("test_infinite_mean_at_a_tail"),
        ),
        (
            "const V dy = Dy::template LoadDy<V>(in, i, count);",
            "const V dy = LoadAs<V>(in[1] + i, count);",
            "the sums go past the ReLU",
        ),
        (
            "sizeof(V) == sizeof(F64x16) && sizeof(T) < sizeof(double);",
            "sizeof(V) == sizeof(F64x16);",
            "products of doubles are taken for exact",
            kernel_tests("test_far_from_zero"),
        ),
        ("acc[2] = Add16(acc[2], ddx);", "acc[2] = Add16(acc[2], dy);", "mean(dY) for mean(ddX)"),
        ("AddProduct<T>(acc[3], ddx, d);", "AddProduct<T>(acc[3], dy, d);", "dY for ddX in a sum"),
        ("AddProduct<T>(acc[4], ddx, dy);", "AddProduct<T>(acc[4], ddx, d);", "X for dY in a sum"),
    ),
    *of(
        "ops/kernels/sum_rows-inl.h",
        (
            "Sum::Add(terms.sums, in, start + i, c, FirstN{length - i});",
            "Sum::Add(terms.sums, in, start + i, c, FirstN{length - i - 1});",
            "the last element of a row is not summed",
        ),
        (
            "if (kTwo) terms.TakeFrom(odd);",
            "if (kTwo) odd.Clear();",
            "odd vectors of 16 bits are not summed",
        ),
        (
            "if constexpr (Map::kMaps) map.Finish();",
            "",
            "the rest of a row that is mapped beside is not written",
        ),
        (
            "const int64_t whole = length - i < kTerms * kLanes ? length : i + kTerms * kLanes;",
            "const int64_t whole = length;",
            "16-bit terms of whole rows are added up in float",
            kernel_tests(
                "test_row_lengths", "test_ten_million_to_one", "test_instruction_set_does_not_change_a_bit"
            ),
        ),
    ),
    *of(
        "ops/kernels/sum_totals-inl.h",
        (
            "i < channels_ * kCount; ++i) Store(",
            "i < channels_; ++i) Store(",
            "totals of a long row's later quantities begin with what lay there",
        ),
        (
            "sums[channel] += SumOfLanes(",
            "sums[channel] = SumOfLanes(",
            "blocks of a segment forget those before",
            kernel_tests("test_outer_dimensions"),
        ),
        (
            "channel + 4 <= channels_;",
            "channel < channels_;",
            "sums of channels that do not exist are added to the memory after them",
        ),
    ),
    *of(
        "ops/kernels/verbs/x86.h",
        (
            "_mm256_add_pd(_mm256_loadu_pd(sums), of1));",
            "of1);",
            "four channels of a segment's blocks forget those before",
            kernel_tests("test_outer_dimensions"),
        ),
        (
            "_mm256_permute2f128_pd(of4[k], of4[k + 2], 0x31));",
            "_mm256_permute2f128_pd(of4[k], of4[k + 2], 0x20));",
            "of four channels half of the lanes are added twice",
        ),
    ),
    *of(
        "ops/kernels/sum_short_rows-inl.h",
        (
            "while (row + rows > block.rows) rows /= 2;",
            "",
            "a last group of short rows reaches beyond the block",
        ),
        (
            "for (; row < block.rows; row += rows) {",
            "for (; row + 1 < block.rows; row += rows) {",
            "a short row that makes no group is not summed",
        ),
        (
            "Terms<Sum, T>::kDouble && first_row == 0;",
            "Terms<Sum, T>::kDouble;",
            "of groups of short rows only the last is summed",
        ),
        (
            "epilogue.template MapRowsAt<some.kValue>(start",
            "epilogue.template MapRowsAt<1>(start",
            "frozen, of short rows side by side only the first is mapped",
            kernel_tests("test_resnet_shapes"),
        ),
        (
            "map(i, factors, count);",
            "",
            "frozen, strips of short rows in which a channel ends are not mapped",
        ),
        (
            "in, start + at + (row + r) * stride,",
            "in, start + at,",
            "of short rows side by side all sum the first",
        ),
        (
            "sum_several(FirstN{run - i});",
            "sum_several(FirstN{run - i - 1});",
            "the last element of a short row is not summed",
        ),
        (
            "c = Blend(c, center_of(next), FirstN{at - i});",
            "c = Blend(c, center_of(next), FirstN{at - i + 1});",
            "a short channel's first element has the center of the one before",
        ),
        (
            "const FirstN of_channel{end - i};",
            "const FirstN of_channel{end - i - 1};",
            "a short channel's last element goes to the next",
        ),
        (
            "++strips < most_strips",
            "++strips > 0",
            "16-bit terms of a channel's rows are added up in float",
            kernel_tests(
                "test_row_lengths", "test_ten_million_to_one", "test_instruction_set_does_not_change_a_bit"
            ),
        ),
        (
            "of_channel[i] = center[first + channel];",
            "of_channel[i] = center[channel];",
            "the later of many short channels have the center of others",
            kernel_tests("test_many_short_rows"),
        ),
        (
            "? static_cast<const T*>(inputs[k]) + first * block.length",
            "? static_cast<const T*>(inputs[k])",
            "the later of many short channels are the first ones again",
            kernel_tests("test_many_short_rows"),
        ),
        (
            "sum = Add16(sum, Load(of_channel + i, FirstN{block.length - i}));",
            "sum = Add16(sum, Load(of_channel + i, FirstN{block.length - i - 1}));",
            "the last element of many short rows is not summed",
            kernel_tests("test_many_short_rows"),
        ),
    ),
    *of(
        "ops/kernels/sum_columns-inl.h",
        (
            "while (row < block.rows) {",
            "while (row + 1 < block.rows) {",
            "the last row of columns is not summed",
        ),
        (
            "const bool group = row + rows <= block.rows;",
            "const bool group = true;",
            "the last rows of columns reach beyond the block",
        ),
        (
            "if (i < length) sum(Constant<1>{}, Constant<1>{}, FirstN{length - i});",
            "if (i + 1 < length) sum(Constant<1>{}, Constant<1>{}, FirstN{length - i - 1});",
            "the last column is not summed",
        ),
        (
            "Sum::Add(terms[s].sums, in, i + s * kLanes + r * stride, c[s], count);",
            "Sum::Add(terms[s].sums, in, i + r * stride, c[s], count);",
            "of strips side by side all sum the first",
        ),
        (
            "Sum::Add(terms[s].sums, in, i + s * kLanes + r * stride, c[s], count);",
            "Sum::Add(terms[s].sums, in, i + s * kLanes, c[s], count);",
            "of rows that are summed together all are the first",
        ),
        (
            "terms[s].Flush(sums + column + s * kLanes, width, count);",
            "terms[s].Flush(sums + column + s * kLanes, stride, count);",
            "sums of a tile's later quantities land at its rows' distance",
        ),
        (
            "terms[s].Resume(sums + column + s * kLanes, width, count);",
            "",
            "sums of columns forget the rows before",
        ),
        (
            "factors[s] = epilogue.OfColumns(column + s * kLanes, count);",
            "factors[s] = epilogue.OfColumns(s * kLanes, count);",
            "frozen, all columns are mapped with the factors of the first",
        ),
    ),
]

VERBS = (
    of(
        "ops/kernels/verbs/avx2.h",
        (
            "_mm256_cmp_ps(z.v[k], _mm256_setzero_ps(), _CMP_GT_OQ)",
            "_mm256_cmp_ps(z.v[k], _mm256_setzero_ps(), _CMP_GE_OQ)",
            "a ReLU lets through where Z is 0, in float",
        ),
        (
            "_mm256_cmp_pd(z.v[k], _mm256_setzero_pd(), _CMP_GT_OQ)",
            "_mm256_cmp_pd(z.v[k], _mm256_setzero_pd(), _CMP_GE_OQ)",
            "a ReLU lets through where Z is 0, in double",
        ),
        (
            "_mm_maskload_ps(AddressOf(p, 4 * k), QuarterMask(n, k))",
            "_mm_maskload_ps(AddressOf(p, 4 * k), QuarterMask(n, 0))",
            "a tail's quarter",
        ),
        (
            "_mm256_maskstore_pd(AddressOf(p, 4 * k), DoubleMask(n, k), a.v[k])",
            "_mm256_storeu_pd(AddressOf(p, 4 * k), a.v[k])",
            "a tail is written whole, over the memory after it",
        ),
        (
            "_mm256_cvtps_pd(_mm_maskload_ps(AddressOf(p, 4 * k), QuarterMask(n, k)))",
            "_mm256_cvtps_pd(_mm_loadu_ps(p + 4 * k))",
            "a tail is read whole",
        ),
        (
            "_mm256_cvtps_ph(a.v[1], _MM_FROUND_TO_NEAREST_INT)",
            "_mm256_cvtps_ph(a.v[1], _MM_FROUND_TO_ZERO)",
            "every other 8 lanes of float16 are cut off",
            kernel_tests("test_every_16_bit_value_is_read_and_rounded_as_numpy_does"),
        ),
        (
            "_mm256_add_epi32(bits, half)",
            "_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff))",
            "bfloat16 in the middle goes down, not to even",
            kernel_tests("test_every_16_bit_value_is_read_and_rounded_as_numpy_does"),
        ),
        ("_mm256_blendv_ps(b.v[k], a.v[k],", "_mm256_blendv_ps(a.v[k], b.v[k],", "two channels are exchanged"),
        (
            "_mm256_fmadd_pd(a.v[k], b.v[k], sum.v[k])",
            "_mm256_fmadd_pd(a.v[k], b.v[0], sum.v[k])",
            "exact products are of others' elements",
        ),
        ("_mm256_add_pd(a.v[1], a.v[3])", "_mm256_add_pd(a.v[1], a.v[1])", "the tree over lanes forgets four"),
        (
            "permute4x64_epi64(packed, _MM_SHUFFLE(3, 1, 2, 0))",
            "permute4x64_epi64(packed, _MM_SHUFFLE(3, 2, 1, 0))",
            "bfloat16 elements change places",
        ),
    )
    + of(
        "ops/kernels/verbs/x86.h",
        ("_mm256_extract_epi16(pair, 0)", "_mm256_extract_epi16(pair, 1)", "the odd last element of 16 bits"),
        (
            "static_cast<int>(first.n / 2)), lane)",
            "static_cast<int>(first.n)), lane)",
            "twice the tail of 16 bits",
        ),
    )
    + of(
        "ops/kernels/verbs/scalar.h",
        ("z.v[i] > 0 ? a.v[i] : 0", "z.v[i] >= 0 ? a.v[i] : 0", "a ReLU lets through where Z is 0, in plain C++"),
        ("p[i] = a.v[i];", "p[i] = static_cast<float>(a.v[i]);", "doubles are stored as floats, in plain C++"),
    )
    + of(
        "ops/kernels/float16-inl.h",
        (
            "0xfff + (magnitude >> 13 & 1)) >> 13",
            "0xfff) >> 13",
            "float16 in the middle goes down, not to even",
            kernel_tests(
                "test_every_16_bit_value_is_read_and_rounded_as_numpy_does", "test_parameters_are_rounded_once"
            ),
        ),
        ("kRebias = (127 - 15) << 23", "kRebias = (127 - 16) << 23", "float16 is read as half of itself"),
    )
)

KERNEL_MUTANTS = [*MAPS, *SUMS, *VERBS]
