// The sweeps that sum. Included by each <isa>.cc after its verbs, inside bngrad::<isa> and an unnamed
// namespace.

// What is added for 16 elements, in which type, and which inputs are read for it. `count` is All, or First{n}
// at the end of a row: lanes past n add zero, even where the center is infinite.
struct SumX {
  static constexpr int kKind = kSumX;
  static constexpr bool kReads[kMaxInputs] = {true};
  template <class T>
  using Term = F64x16;
  template <class T, class Count>
  static void Add(F64x16* acc, const T* const* in, int64_t i, F64x16, Count count) {
    acc[0] = Add16(acc[0], Widen(in[0] + i, count));
  }
};

struct SumSquares {
  static constexpr int kKind = kSumSquares;
  static constexpr bool kReads[kMaxInputs] = {true};
  template <class T>
  using Term = F64x16;
  template <class T, class Count>
  static void Add(F64x16* acc, const T* const* in, int64_t i, F64x16 center, Count count) {
    const F64x16 d = Keep(Sub16(Widen(in[0] + i, count), center), count);
    acc[0] = Add16(acc[0], d);
    acc[1] = Add16(acc[1], Mul16(d, d));
  }
};

template <class Dy>
struct SumGrad {
  static constexpr int kKind = Dy::kRelu ? kSumReluGrad : kSumGrad;
  static constexpr bool kReads[kMaxInputs] = {true, true, Dy::kRelu};
  template <class T>
  using Term = typename TypeTraits<T>::Term;
  template <class V, class T, class Count>
  static void Add(V* acc, const T* const* in, int64_t i, const V& center, Count count) {
    const V d = Keep(Sub16(LoadTerm(in[0] + i, count), center), count);
    const V dy = Dy::Term(in, i, count);
    acc[0] = Add16(acc[0], dy);
    acc[1] = Add16(acc[1], Mul16(dy, d));
  }
};

struct SumGradGradTraining {
  static constexpr int kKind = kSumGradGradTraining;
  static constexpr bool kReads[kMaxInputs] = {true, true, true};
  template <class T>
  using Term = F64x16;
  template <class T, class Count>
  static void Add(F64x16* acc, const T* const* in, int64_t i, F64x16 center, Count count) {
    const F64x16 d = Keep(Sub16(Widen(in[0] + i, count), center), count);
    const F64x16 dy = Widen(in[1] + i, count), ddx = Widen(in[2] + i, count);
    acc[0] = Add16(acc[0], dy);
    acc[1] = Add16(acc[1], Mul16(dy, d));
    acc[2] = Add16(acc[2], ddx);
    acc[3] = Add16(acc[3], Mul16(ddx, d));
    acc[4] = Add16(acc[4], Mul16(ddx, dy));
  }
};

struct SumGradGradFrozen {
  static constexpr int kKind = kSumGradGradFrozen;
  static constexpr bool kReads[kMaxInputs] = {false, true, true};
  template <class T>
  using Term = F64x16;
  template <class T, class Count>
  static void Add(F64x16* acc, const T* const* in, int64_t i, F64x16, Count count) {
    acc[0] = Add16(acc[0], Mul16(Widen(in[2] + i, count), Widen(in[1] + i, count)));
  }
};

// Terms are added up in their own type, at most kTerms of them, and those sums in double.
template <class Sum, class T>
struct Terms {
  static constexpr int kCount = kSumCounts[Sum::kKind];
  typename Sum::template Term<T> sums[kCount];

  Terms() { Clear(); }
  void Clear() {
    const F64x16 zero = Broadcast16(0.0);
    for (int k = 0; k < kCount; ++k) Convert(zero, sums[k]);
  }
  // totals[k*stride + lane]
  template <class Count>
  void MoveTo(double* totals, int64_t stride, Count count) {
    for (int k = 0; k < kCount; ++k) {
      F64x16 sum;
      Convert(sums[k], sum);
      Store(totals + k * stride, Add16(Load(totals + k * stride, count), sum), count);
    }
    Clear();
  }
};

// What SumRows does beside: nothing, or see RowMap.
struct Nothing {
  void Begin(int64_t) {}
  template <class Sum>
  void InTurns(const int64_t&, int64_t end, const Sum& sum) {
    sum(end);
  }
  void Finish() {}
};

// Rows that are not short, of which the terms of a channel are moved once or several times each.
template <class Sum, class T, class Beside>
void SumRows(const Block& block, const void* const* inputs, const double* center, double* sums,
             Beside& beside) {
  const T* const in[] = {static_cast<const T*>(inputs[0]), static_cast<const T*>(inputs[1]),
                         static_cast<const T*>(inputs[2])};
  constexpr int64_t kElements = kBytesAhead / static_cast<int64_t>(sizeof(T));
  // What lies together of a row, and from its end to the next.
  const int64_t run = block.channels * block.length, gap = block.row_stride - run;
  for (int64_t row = 0; row < block.rows; ++row) {
    beside.Begin(row);
    for (int64_t channel = 0; channel < block.channels; ++channel) {
      const int64_t begin = channel * block.length, start = row * block.row_stride + begin;
      typename Sum::template Term<T> c;
      Convert(Broadcast16(center[channel]), c);
      double* const lanes = sums + channel * kSumCounts[Sum::kKind] * kLanes;
      Terms<Sum, T> terms;
      int64_t i = 0;
      while (i + kLanes <= block.length) {
        const int64_t whole = block.length - i < kTerms * kLanes ? block.length : i + kTerms * kLanes;
        const int64_t ahead = begin + i + kElements < run ? kElements : kElements + gap;
        beside.InTurns(i, whole, [&](int64_t end) {
          for (; i + kLanes <= end; i += kLanes) {
            for (int k = 0; k < kMaxInputs; ++k) {
              if (Sum::kReads[k]) Prefetch<1>(in[k] + start + i + ahead);
            }
            Sum::Add(terms.sums, in, start + i, c, All{});
          }
        });
        terms.MoveTo(lanes, kLanes, All{});
      }
      if (i < block.length) {
        Sum::Add(terms.sums, in, start + i, c, First{block.length - i});
        terms.MoveTo(lanes, kLanes, All{});
      }
    }
    beside.Finish();
  }
}

// Short rows, several side by side: each has few terms for a lane, and an end that is to be found.
template <int kRows, bool kAsk, class Sum, class T>
void SumRowsBeside(const Block& block, const T* const* in, const double* center, double* sums, int64_t row) {
  constexpr int64_t kElements = kBytesAheadOfShort / static_cast<int64_t>(sizeof(T));
  const int64_t length = block.length, stride = block.row_stride, channels = block.channels;
  const int64_t run = channels * length, gap = kRows * stride - run;
  const First last{length % kLanes};
  for (int64_t channel = 0; channel < channels; ++channel) {
    typename Sum::template Term<T> c;
    Convert(Broadcast16(center[channel]), c);
    Terms<Sum, T> terms;
    int64_t start = row * stride + channel * length;
    const int64_t whole = start + length - last.n;
    const int64_t ahead = channel * length + kElements < run ? kElements : kElements + gap;
    for (; start < whole; start += kLanes) {
      BNGRAD_UNROLL_4
      for (int r = 0; r < kRows; ++r) {
        const int64_t i = start + r * stride;
        for (int k = 0; k < kMaxInputs; ++k) {
          if (kAsk && Sum::kReads[k]) Prefetch<1>(in[k] + i + ahead);
        }
        Sum::Add(terms.sums, in, i, c, All{});
      }
    }
    if (last.n > 0) {
      BNGRAD_UNROLL_4
      for (int r = 0; r < kRows; ++r) Sum::Add(terms.sums, in, start + r * stride, c, last);
    }
    terms.MoveTo(sums + channel * kSumCounts[Sum::kKind] * kLanes, kLanes, All{});
  }
}

template <class Sum, class T>
void SumShortRows(const Block& block, const void* const* inputs, const double* center, double* sums) {
  const T* const in[] = {static_cast<const T*>(inputs[0]), static_cast<const T*>(inputs[1]),
                         static_cast<const T*>(inputs[2])};
  const auto several =
      block.stream ? SumRowsBeside<kRowsOfGroup, true, Sum, T> : SumRowsBeside<kRowsOfGroup, false, Sum, T>;
  const auto one = block.stream ? SumRowsBeside<1, true, Sum, T> : SumRowsBeside<1, false, Sum, T>;
  int64_t row = 0;
  for (; row + kRowsOfGroup <= block.rows; row += kRowsOfGroup) several(block, in, center, sums, row);
  for (; row < block.rows; ++row) one(block, in, center, sums, row);
}

// Strips of 16 columns (or the last few) side by side, some rows: their sums are loaded and stored once for
// all of them. What lies `ahead` of each element is asked for, to that level of cache; 0: nothing is.
template <int kRows, int kStrips, int kLevel, class Sum, class T, class Count>
void SumStrips(const T* const* in, int64_t i, int64_t row_stride, int64_t ahead, const double* center,
               double* sums, int64_t width, Count count) {
  typename Sum::template Term<T> c[kStrips];
  Terms<Sum, T> terms[kStrips];
  BNGRAD_UNROLL_4
  for (int s = 0; s < kStrips; ++s) Convert(Load(center + s * kLanes, count), c[s]);
  BNGRAD_UNROLL_4
  for (int row = 0; row < kRows; ++row, i += row_stride) {
    BNGRAD_UNROLL_4
    for (int s = 0; s < kStrips; ++s) {
      for (int k = 0; k < kMaxInputs; ++k) {
        if (kLevel > 0 && Sum::kReads[k]) Prefetch<kLevel>(in[k] + i + s * kLanes + ahead);
      }
      Sum::Add(terms[s].sums, in, i + s * kLanes, c[s], count);
    }
  }
  BNGRAD_UNROLL_4
  for (int s = 0; s < kStrips; ++s) terms[s].MoveTo(sums + s * kLanes, width, count);
}

// All columns of some rows, from one end to the other.
template <int kRows, int kStrips, int kLevel, class Sum, class T>
void SumRowsOfColumns(const Block& block, const T* const* in, const double* center, double* sums,
                      int64_t row) {
  const int64_t length = block.length, stride = block.row_stride, start = row * stride;
  // What is asked for is so far on in the same row or, past its end, in that which will be read after it.
  constexpr int64_t kElements = kBytesAhead / kRows / static_cast<int64_t>(sizeof(T));
  const int64_t past = kElements % length, rows_on = kElements / length * kRows * stride;
  const auto sum = [&](auto strips, int64_t i, auto count) {
    const int64_t ahead = i + past < length ? rows_on + past : rows_on + past - length + kRows * stride;
    SumStrips<kRows, strips.kCount, kLevel, Sum>(in, start + i, stride, ahead, center + i, sums + i,
                                                 block.width, count);
  };
  int64_t i = 0;
  if constexpr (kStrips > 1) {
    for (; i + kStrips * kLanes <= length; i += kStrips * kLanes) sum(Strips<kStrips>{}, i, All{});
  }
  for (; i + kLanes <= length; i += kLanes) sum(Strips<1>{}, i, All{});
  if (i < length) sum(Strips<1>{}, i, First{length - i});
}

template <int kRows, int kStrips, int kLevel, class Sum, class T>
void SumColumnsBy(const Block& block, const T* const* in, const double* center, double* sums) {
  int64_t row = 0;
  for (; row + kRows <= block.rows; row += kRows) {
    SumRowsOfColumns<kRows, kStrips, kLevel, Sum>(block, in, center, sums, row);
  }
  for (; row < block.rows; ++row) SumRowsOfColumns<1, kStrips, 0, Sum>(block, in, center, sums, row);
}

template <class Sum, class T>
void SumColumns(const Block& block, const void* const* inputs, const double* center, double* sums) {
  const T* const in[] = {static_cast<const T*>(inputs[0]), static_cast<const T*>(inputs[1]),
                         static_cast<const T*>(inputs[2])};
  constexpr int kRows = sizeof(typename Sum::template Term<T>) == sizeof(F64x16) ? kWideRows : kStripRows;
  const bool narrow = block.length <= kNarrow, apart = block.row_stride > block.length;
  if (narrow && apart) {
    SumColumnsBy<kStripRows, kStripsBeside, 2, Sum>(block, in, center, sums);
  } else if (narrow) {
    SumColumnsBy<kStripRows, kStripsBeside, 1, Sum>(block, in, center, sums);
  } else if (!block.stream) {
    SumColumnsBy<kRows, 1, 0, Sum>(block, in, center, sums);
  } else if (apart) {
    SumColumnsBy<kRows, 1, 2, Sum>(block, in, center, sums);
  } else {
    SumColumnsBy<kRows, 1, 1, Sum>(block, in, center, sums);
  }
}

// Short rows of several channels are so many columns, of which those of a channel are added up at the end: no
// row has an end that fills no 16 lanes.
template <class Sum, class T>
void SumRowsAsColumns(const Block& block, const void* const* inputs, const double* center, double* sums) {
  constexpr int kCount = kSumCounts[Sum::kKind];
  // Multiples of 16 channels are whole cache lines.
  const int64_t fitting = kColumnsOfRows / block.length;
  const int64_t most = fitting < kLanes ? fitting : fitting / kLanes * kLanes;
  alignas(64) double centers[kColumnsOfRows], columns[kCount * kColumnsOfRows];
  for (int64_t first = 0; first < block.channels; first += most) {
    Block part = block;
    part.channels = block.channels - first < most ? block.channels - first : most;
    part.length = part.width = part.channels * block.length;
    for (int64_t i = 0; i < kCount * part.width; ++i) columns[i] = 0.0;
    const void* begins[kMaxInputs];
    for (int k = 0; k < kMaxInputs; ++k) {
      begins[k] = Sum::kReads[k] ? static_cast<const T*>(inputs[k]) + first * block.length : nullptr;
    }
    for (int64_t channel = 0; channel < part.channels; ++channel) {
      double* const of_channel = centers + channel * block.length;
      for (int64_t i = 0; i < block.length; ++i) of_channel[i] = center[first + channel];
    }
    SumColumns<Sum, T>(part, begins, centers, columns);
    for (int64_t channel = 0; channel < part.channels; ++channel) {
      double* const lanes = sums + (first + channel) * kCount * kLanes;
      for (int k = 0; k < kCount; ++k) {
        const double* const of_channel = columns + k * part.width + channel * block.length;
        F64x16 sum = Load(lanes + k * kLanes, All{});
        int64_t i = 0;
        for (; i + kLanes <= block.length; i += kLanes) sum = Add16(sum, Load(of_channel + i, All{}));
        if (i < block.length) sum = Add16(sum, Load(of_channel + i, First{block.length - i}));
        Store(lanes + k * kLanes, sum, All{});
      }
    }
  }
}

template <class Sum, class T>
void SumRows(const Block& block, const void* const* inputs, const double* center, double* sums) {
  if (block.length > kShortRow) {
    Nothing nothing;
    SumRows<Sum, T>(block, inputs, center, sums, nothing);
  } else if (block.length <= kColumnsRow && block.rows >= kRowsOfColumns && block.whole && !block.stream) {
    SumRowsAsColumns<Sum, T>(block, inputs, center, sums);
  } else {
    SumShortRows<Sum, T>(block, inputs, center, sums);
  }
}
