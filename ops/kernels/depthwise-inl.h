// The planes of depthwise convolutions, see core/depthwise.hpp. Included by table-inl.h.

template <class T>
BNGRAD_INLINE T* PhaseRow(const PhaseLayout& layout, T* phases, int64_t row) {
  const int64_t at = row + layout.row_begin;
  return phases + at % layout.row_step * layout.row_phase + at / layout.row_step * layout.row_stride;
}

// The place of a row's first element of those that have the phase of element `first`.
BNGRAD_INLINE int64_t PhaseColumn(const PhaseLayout& layout, int64_t first) {
  const int64_t at = first + layout.column_begin;
  return at % layout.column_step * layout.column_phase + at / layout.column_step;
}

// What a vector writes past the end of a row is zero, and is written before the next row.
template <class T>
BNGRAD_INLINE void SplitRow(const PhaseLayout& layout, const T* from, T* to) {
  int64_t i = 0;
  if (layout.column_step == 1) {
    to += layout.column_begin;
    for (; i + kLanes <= layout.columns; i += kLanes) Store(to + i, Load(from + i, All{}), All{});
    if (i < layout.columns) Store(to + i, Load(from + i, FirstN{layout.columns - i}), All{});
    return;
  }
  if (layout.column_step == 2 && layout.column_phases == 2) {
    T* const even = to + PhaseColumn(layout, 0);
    T* const odd = to + PhaseColumn(layout, 1);
    typename TypeTraits<T>::Vector evens, odds;
    for (; i + 2 * kLanes <= layout.columns; i += 2 * kLanes) {
      Deinterleave(Load(from + i, All{}), Load(from + i + kLanes, All{}), evens, odds);
      Store(even + i / 2, evens, All{});
      Store(odd + i / 2, odds, All{});
    }
    const int64_t left = layout.columns - i;
    if (left == 0) return;
    const FirstN low = {left < kLanes ? left : kLanes}, high = {left < kLanes ? 0 : left - kLanes};
    Deinterleave(Load(from + i, low), Load(AddressOf(from, i + kLanes), high), evens, odds);
    Store(even + i / 2, evens, All{});
    Store(odd + i / 2, odds, All{});
    return;
  }
  const int64_t step = layout.column_step;
  for (int64_t first = 0; first < step && first < layout.columns; ++first) {
    if ((first + layout.column_begin) % step >= layout.column_phases) continue;
    T* const phase = to + PhaseColumn(layout, first);
    int64_t j = 0;
    for (i = first; i < layout.columns; i += step) phase[j++] = from[i];
  }
}

template <class T>
void SplitPhases(const PhaseLayout& layout, const void* plane, void* phases) {
  const T* const from = static_cast<const T*>(plane);
  for (int64_t row = 0; row < layout.rows; ++row) {
    if ((row + layout.row_begin) % layout.row_step >= layout.row_phases) continue;
    SplitRow(layout, from + row * layout.columns, PhaseRow(layout, static_cast<T*>(phases), row));
  }
}

// `room`: elements from `to` on that may be written.
template <class T>
BNGRAD_INLINE void MergeRow(const PhaseLayout& layout, const T* from, T* to, int64_t room) {
  const int64_t step = layout.column_step, columns = layout.columns;
  if (step == 1) {
    for (int64_t i = 0; i < columns; i += kLanes) {
      const auto v = Load(from + i, All{});
      if (i + kLanes <= room) {
        Store(to + i, v, All{});
      } else {
        Store(to + i, v, FirstN{columns - i});
      }
    }
    return;
  }
  if (step == 2 && layout.column_phases == 2) {
    typename TypeTraits<T>::Vector low, high;
    for (int64_t i = 0; i < columns; i += 2 * kLanes) {
      Interleave(Load(from + i / 2, All{}), Load(from + layout.column_phase + i / 2, All{}), low, high);
      if (i + 2 * kLanes <= room) {
        Store(to + i, low, All{});
        Store(to + i + kLanes, high, All{});
        continue;
      }
      const int64_t left = columns - i;
      Store(to + i, low, FirstN{left < kLanes ? left : kLanes});
      if (left > kLanes) Store(to + i + kLanes, high, FirstN{left < 2 * kLanes ? left - kLanes : kLanes});
    }
    return;
  }
  for (int64_t first = 0; first < step && first < columns; ++first) {
    const T* const phase = from + PhaseColumn(layout, first);
    int64_t j = 0;
    for (int64_t i = first; i < columns; i += step) to[i] = phase[j++];
  }
}

template <class T>
void MergePhases(const PhaseLayout& layout, const void* phases, void* plane) {
  T* const to = static_cast<T*>(plane);
  for (int64_t row = 0; row < layout.rows; ++row) {
    const int64_t room = (layout.rows - row) * layout.columns;
    MergeRow(layout, PhaseRow(layout, static_cast<const T*>(phases), row), to + row * layout.columns, room);
  }
}

// kRows rows, 16 columns from `in` and `out` on.
template <int kRows, class T, class Count>
BNGRAD_INLINE void CorrelateStrip(const Correlation& c, const T* in, T* out, const Count& count_of_row) {
  typename TypeTraits<T>::Vector sums[kRows];
  const auto bias = Broadcast16(c.bias == nullptr ? T(0) : *static_cast<const T*>(c.bias));
  BNGRAD_UNROLL for (int r = 0; r < kRows; ++r) sums[r] = bias;
  const T* const weights = static_cast<const T*>(c.weights);
  for (int64_t k = 0; k < c.elements; ++k) {
    const auto weight = Broadcast16(weights[k]);
    const T* const met = in + c.offsets[k];
    BNGRAD_UNROLL for (int r = 0; r < kRows; ++r) {
      sums[r] = Add16(sums[r], Mul16(weight, Load(met + r * c.in_stride, All{})));
    }
  }
  BNGRAD_UNROLL for (int r = 0; r < kRows; ++r) Store(out + r * c.out_stride, sums[r], count_of_row);
}

// The last strip of a row begins so that it ends with the row. In narrower rows it ends in the next one,
// which is written later.
template <class T>
void Correlate(const Correlation& c, const void* data, void* result) {
  ForRows<kRowsTogether>(c.rows, [&](int64_t row, auto some) {
    constexpr int kRows = decltype(some)::kValue;
    const T* const in = static_cast<const T*>(data) + row * c.in_stride;
    T* const out = static_cast<T*>(result) + row * c.out_stride;
    if (c.columns >= kLanes) {
      int64_t i = 0;
      for (; i + kLanes <= c.columns; i += kLanes) CorrelateStrip<kRows>(c, in + i, out + i, All{});
      if (i < c.columns) {
        i = c.columns - kLanes;
        CorrelateStrip<kRows>(c, in + i, out + i, All{});
      }
    } else if ((c.rows - row - kRows + 1) * c.out_stride >= kLanes) {
      CorrelateStrip<kRows>(c, in, out, All{});
    } else {
      CorrelateStrip<kRows>(c, in, out, FirstN{c.columns});
    }
  });
}

// Adds to 16 doubles for each kernel element.
template <int kElements, class T>
BNGRAD_INLINE void CorrelateSome(const Correlation& c, const int64_t* offsets, const T* in, const T* dy,
                                 double* lanes) {
  using Vector = typename TypeTraits<T>::Vector;
  Vector sums[kElements];
  BNGRAD_UNROLL for (int k = 0; k < kElements; ++k) sums[k] = Broadcast16(T(0));
  int64_t terms = 0;
  const auto flush = [&]() BNGRAD_INLINE_LAMBDA {
    BNGRAD_UNROLL for (int k = 0; k < kElements; ++k) {
      F64x16 wide;
      Convert(sums[k], wide);
      Store(lanes + k * kLanes, Add16(Load(lanes + k * kLanes, All{}), wide), All{});
      sums[k] = Broadcast16(T(0));
    }
    terms = 0;
  };
  for (int64_t row = 0; row < c.rows; ++row) {
    const T* const gradient = dy + row * c.out_stride;
    const T* const met = in + row * c.in_stride;
    int64_t i = 0;
    for (; i + kLanes <= c.columns; i += kLanes) {
      const Vector g = Load(gradient + i, All{});
      BNGRAD_UNROLL for (int k = 0; k < kElements; ++k) {
        sums[k] = Add16(sums[k], Mul16(g, Load(met + offsets[k] + i, All{})));
      }
      if (++terms == kTerms) flush();
    }
    if (i == c.columns) continue;
    const FirstN left = {c.columns - i};
    const Vector g = Load(gradient + i, left);
    BNGRAD_UNROLL for (int k = 0; k < kElements; ++k) {
      sums[k] = Add16(sums[k], ZeroTail(Mul16(g, Load(met + offsets[k] + i, All{})), left));
    }
    if (++terms == kTerms) flush();
  }
  flush();
}

template <class T>
void CorrelateWeights(const Correlation& c, const void* data, const void* gradient, double* lanes) {
  const T* const in = static_cast<const T*>(data);
  const T* const dy = static_cast<const T*>(gradient);
  ForRows<kElementsTogether>(c.elements, [&](int64_t k, auto some) {
    CorrelateSome<decltype(some)::kValue>(c, c.offsets + k, in, dy, lanes + k * kLanes);
  });
}
