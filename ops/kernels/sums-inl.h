// The sweeps that sum. Included by each <isa>.cc after its verbs, inside bngrad::<isa> and an unnamed
// namespace.

// What is added for 16 elements, and which inputs are read for it. `count` is All, or First{n} at the end of
// a row: lanes past n add zero, even where the center is infinite.
struct SumX {
  static constexpr int kKind = kSumX;
  static constexpr bool kReads[kMaxInputs] = {true};
  template <class T, class Count>
  static void Add(F64x16* acc, const T* const* in, int64_t i, F64x16, Count count) {
    acc[0] = Add16(acc[0], Widen(in[0] + i, count));
  }
};

struct SumSquares {
  static constexpr int kKind = kSumSquares;
  static constexpr bool kReads[kMaxInputs] = {true};
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
  template <class T, class Count>
  static void Add(F64x16* acc, const T* const* in, int64_t i, F64x16 center, Count count) {
    const F64x16 d = Keep(Sub16(Widen(in[0] + i, count), center), count);
    const F64x16 dy = Dy::Widened(in, i, count);
    acc[0] = Add16(acc[0], dy);
    acc[1] = Add16(acc[1], Mul16(dy, d));
  }
};

struct SumGradGradTraining {
  static constexpr int kKind = kSumGradGradTraining;
  static constexpr bool kReads[kMaxInputs] = {true, true, true};
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
  template <class T, class Count>
  static void Add(F64x16* acc, const T* const* in, int64_t i, F64x16, Count count) {
    acc[0] = Add16(acc[0], Mul16(Widen(in[2] + i, count), Widen(in[1] + i, count)));
  }
};

// Rows are taken in groups, of which the lanes of a channel are loaded and stored once: short rows have few
// elements for each lane.
template <class Sum, class T>
void SumRows(const Block& block, const void* const* inputs, const double* center, double* sums) {
  constexpr int kCount = kSumCounts[Sum::kKind];
  constexpr int64_t kAhead = kBytesAhead / sizeof(T);
  const T* const in[] = {static_cast<const T*>(inputs[0]), static_cast<const T*>(inputs[1]),
                         static_cast<const T*>(inputs[2])};
  const int64_t group = block.length < kLongRow ? kRowsOfGroup : 1;
  // What lies together of a row, and from its end to the row that is read next.
  const int64_t run = block.channels * block.length, gap = group * block.row_stride - run;
  for (int64_t first = 0; first < block.rows; first += group) {
    const int64_t rows = first + group < block.rows ? first + group : block.rows;
    for (int64_t channel = 0; channel < block.channels; ++channel) {
      const int64_t begin = channel * block.length;
      const int64_t near = begin + block.length + kAhead <= run ? block.length : run - begin - kAhead;
      const F64x16 c = Broadcast16(center[channel]);
      double* const lanes = sums + channel * kCount * kLanes;
      F64x16 acc[kCount];
      for (int k = 0; k < kCount; ++k) acc[k] = Load(lanes + k * kLanes, All{});
      for (int64_t row = first; row < rows; ++row) {
        const int64_t start = row * block.row_stride + begin;
        int64_t i = 0;
        const auto sum_until = [&](int64_t end, int64_t ahead) {
          for (; i + kLanes <= end; i += kLanes) {
            for (int k = 0; k < kMaxInputs; ++k) {
              if (Sum::kReads[k]) Prefetch(in[k] + start + i + ahead);
            }
            Sum::Add(acc, in, start + i, c, All{});
          }
        };
        sum_until(near, kAhead);
        sum_until(block.length, kAhead + gap);
        if (i < block.length) Sum::Add(acc, in, start + i, c, First{block.length - i});
      }
      for (int k = 0; k < kCount; ++k) Store(lanes + k * kLanes, acc[k], All{});
    }
  }
}

// 16 columns (or the last few), a handful of rows: the sums are loaded and stored once for all of them.
template <class Sum, class T, class Count>
void SumStrip(const Block& block, const T* const* in, const double* center, double* sums, int64_t row,
              int64_t end_row, int64_t column, Count count) {
  constexpr int kCount = kSumCounts[Sum::kKind];
  const F64x16 c = Load(center + column, count);
  F64x16 acc[kCount];
  for (int k = 0; k < kCount; ++k) acc[k] = Load(sums + k * block.width + column, count);
  for (; row < end_row; ++row) {
    for (int k = 0; k < kMaxInputs; ++k) {
      if (Sum::kReads[k]) Prefetch(in[k] + (row + kRowsAhead) * block.row_stride + column);
    }
    Sum::Add(acc, in, row * block.row_stride + column, c, count);
  }
  for (int k = 0; k < kCount; ++k) Store(sums + k * block.width + column, acc[k], count);
}

template <class Sum, class T>
void SumColumns(const Block& block, const void* const* inputs, const double* center, double* sums) {
  const T* const in[] = {static_cast<const T*>(inputs[0]), static_cast<const T*>(inputs[1]),
                         static_cast<const T*>(inputs[2])};
  for (int64_t row = 0; row < block.rows; row += kStripRows) {
    const int64_t end = row + kStripRows < block.rows ? row + kStripRows : block.rows;
    int64_t i = 0;
    for (; i + kLanes <= block.length; i += kLanes) {
      SumStrip<Sum>(block, in, center, sums, row, end, i, All{});
    }
    if (i < block.length) SumStrip<Sum>(block, in, center, sums, row, end, i, First{block.length - i});
  }
}
