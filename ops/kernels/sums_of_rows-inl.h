// The sweep that sums rows. Included by each <isa>.cc after that of columns, which short rows are sometimes,
// inside bngrad::<isa> and an unnamed namespace.

// Rows of at most so many elements that lie in the caches are summed as columns where there are so many of
// them (measured, two threads: 32x1024x7 1.36 times as fast, 32x1024x20 1.12, 32x512x36 1.03, 32x512x49
// 0.96), and of so many columns at a time as stay in the nearest cache with their sums.
constexpr int64_t kColumnsRow = 3 * kLanes;
constexpr int64_t kRowsOfColumns = 16;
constexpr int64_t kColumnsOfRows = 1024;
static_assert(kColumnsRow <= kShortRow && kShortRow <= kColumnsOfRows, "a channel of short rows");

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
