#include "sweep.hpp"

#include <algorithm>
#include <memory>
#include <type_traits>

#include "blocks.hpp"
#include "partition.hpp"

namespace bngrad {
namespace {

// Enough to share evenly among many threads, few enough to keep scratch small.
constexpr int64_t kMaxTasks = 256;

// Numbers for slots of at least so many that no two of them, which are of different threads, share a pair of
// cache lines: a core that writes to one takes it from the other.
constexpr int64_t Apart(int64_t numbers) { return (numbers + 31) / 32 * 32 + 32; }

// The arrays of a kernel call, each from the block's first element on. Null stays null.
template <class Pointer, size_t kCount>
struct Advanced {
  Advanced(const Pointer (&arrays)[kCount], int64_t bytes) {
    using Byte = std::conditional_t<std::is_same_v<Pointer, void*>, char*, const char*>;
    for (size_t i = 0; i < kCount; ++i) {
      pointers[i] = arrays[i] == nullptr ? nullptr : static_cast<Byte>(arrays[i]) + bytes;
    }
  }
  Pointer pointers[kCount];
};

// Halves are added until one is left; the sizes are constants so that this is straight code.
template <int64_t kSize>
double SumOfLanes(double* lanes) {
  if constexpr (kSize == 1) {
    return lanes[0];
  } else {
    for (int64_t i = 0; i < kSize / 2; ++i) lanes[i] += lanes[i + kSize / 2];
    return SumOfLanes<kSize / 2>(lanes);
  }
}

template <class Arithmetic>
class Sweeper {
 public:
  Sweeper(const Layout& layout, const KernelTable& table, const Operands& operands, const Program& program)
      : layout_(layout),
        partition_(MakePartition(layout)),
        kernels_(KernelsFor(table, operands.type)),
        operands_(operands),
        program_(program),
        element_size_(static_cast<int64_t>(SizeOf(operands.type))),
        blocks_(layout, partition_, element_size_) {
    int counts = 1;
    for (int step = 0; step < program.steps(); ++step)
      counts = std::max(counts, kSumCounts[program.sum(step)]);
    // The tree needs one slot even where there is nothing to sum.
    sums_size_ = Apart(std::max<int64_t>(partition_.segments, 1) * counts * partition_.width);
    center_size_ = Apart(partition_.width);
    factors_size_ = Apart(kFactorCounts[program.map()] * partition_.width);
    const bool wanted = std::any_of(std::begin(operands.outputs), std::end(operands.outputs),
                                    [](const void* output) { return output != nullptr; });
    maps_at_once_ = wanted && program.maps_at_once() && program.steps() == 1;
    maps_later_ = wanted && !maps_at_once_;
  }

  void Run(Parallel& parallel) {
    if (partition_.tiles == 0) return;
    if (partition_.tile_at_a_time) {
      RunTileAtATime(parallel);
    } else {
      RunPhases(parallel);
    }
  }

 private:
  // Scratch for `slots` tiles, all of it allocated before any task runs: tasks do not throw.
  void Allocate(int64_t slots) {
    sums_.reset(new double[static_cast<size_t>(slots * sums_size_)]);
    center_.reset(new double[static_cast<size_t>(slots * center_size_)]);
    factors_.reset(new Arithmetic[static_cast<size_t>(slots * factors_size_)]);
  }

  void RunTileAtATime(Parallel& parallel) {
    const int64_t tasks = std::min(partition_.tiles, kMaxTasks);
    Allocate(partition_.one_thread ? 1 : tasks);
    ForEach(parallel, partition_.one_thread, tasks, [&](int64_t task) {
      const int64_t slot = partition_.one_thread ? 0 : task;
      const int64_t end = (task + 1) * partition_.tiles / tasks;
      for (int64_t tile = task * partition_.tiles / tasks; tile < end; ++tile) {
        Begin(tile, slot);
        for (int step = 0; step < program_.steps(); ++step) {
          for (int64_t segment = 0; segment < partition_.segments; ++segment) Sum(step, tile, slot, segment);
          Finish(step, tile, slot);
        }
        if (!maps_later_) continue;
        // Backwards, see maps-inl.h.
        for (int64_t segment = partition_.segments - 1; segment >= 0; --segment) Map(tile, slot, segment);
      }
    });
  }

  void RunPhases(Parallel& parallel) {
    const int64_t tiles = partition_.tiles, segments = partition_.segments;
    Allocate(tiles);
    const auto for_each_segment = [&](const auto& task) {
      const int64_t items = tiles * segments, tasks = std::min(items, kMaxTasks);
      ForEach(parallel, false, tasks, [&](int64_t i) {
        const int64_t end = (i + 1) * items / tasks;
        for (int64_t item = i * items / tasks; item < end; ++item) task(item / segments, item % segments);
      });
    };
    for (int64_t tile = 0; tile < tiles; ++tile) Begin(tile, tile);
    for (int step = 0; step < program_.steps(); ++step) {
      for_each_segment([&](int64_t tile, int64_t segment) { Sum(step, tile, tile, segment); });
      ForEach(parallel, false, tiles, [&](int64_t tile) { Finish(step, tile, tile); });
    }
    if (maps_later_) {
      for_each_segment([&](int64_t tile, int64_t segment) { Map(tile, tile, segment); });
    }
  }

  Channels ChannelsOf(int64_t tile, int64_t slot) {
    const int64_t extent = layout_.family == Family::kRows ? layout_.channel.extent : layout_.inner;
    const int64_t begin = tile % partition_.tiles_per_outer * partition_.tile_extent;
    return {tile / partition_.tiles_per_outer * extent + begin,
            std::min(partition_.tile_extent, extent - begin),
            partition_.width,
            Sums(slot, 0),
            Center(slot),
            Factors(slot)};
  }

  // A folded tile has several places for each channel: they get the same center and factors.
  void Unfold(const Channels& channels) {
    if (partition_.fold == 1) return;
    const int64_t count = channels.count, width = channels.width;
    const auto repeat = [&](auto* values) {
      for (int64_t i = count; i < width; ++i) values[i] = values[i - count];
    };
    repeat(channels.center);
    Arithmetic* const factors = static_cast<Arithmetic*>(channels.factors);
    for (int k = 0; k < kFactorCounts[program_.map()]; ++k) repeat(factors + k * width);
  }

  void Begin(int64_t tile, int64_t slot) {
    const Channels channels = ChannelsOf(tile, slot);
    program_.Begin(channels);
    Unfold(channels);
  }

  void Finish(int step, int64_t tile, int64_t slot) {
    // The tree over segments: neighbours first, always in the same places.
    const int64_t size = kSumCounts[program_.sum(step)] * partition_.width;
    for (int64_t stride = 1; stride < partition_.segments; stride *= 2) {
      for (int64_t segment = 0; segment + stride < partition_.segments; segment += 2 * stride) {
        double* const to = Sums(slot, segment * size);
        const double* const from = Sums(slot, (segment + stride) * size);
        for (int64_t i = 0; i < size; ++i) to[i] += from[i];
      }
    }
    const Channels channels = ChannelsOf(tile, slot);
    if (partition_.segments == 0) std::fill_n(Sums(slot, 0), size, 0.0);
    if (partition_.fold > 1) {
      for (int k = 0; k < kSumCounts[program_.sum(step)]; ++k) {
        double* const sums = Sums(slot, k * partition_.width);
        for (int64_t i = channels.count; i < partition_.width; ++i) sums[i % channels.count] += sums[i];
      }
    }
    program_.Finish(step, channels);
    Unfold(channels);
  }

  void Sum(int step, int64_t tile, int64_t slot, int64_t segment) {
    const SumKind kind = program_.sum(step);
    const int count = kSumCounts[kind];
    double* const sums = Sums(slot, segment * count * partition_.width);
    if (layout_.family == Family::kColumns) {
      std::fill_n(sums, count * partition_.width, 0.0);
      ForEachBlockToSum(tile, segment, [&](const Block& block, int64_t offset) {
        kernels_.sum_columns[kind](block, InputsAt(offset).pointers, Center(slot), sums);
        if (maps_at_once_) MapBlock(block, offset, slot);
      });
      return;
    }
    double lanes[kMaxTileChannels * kMaxSums * kLanes];
    std::fill_n(lanes, partition_.width * count * kLanes, 0.0);
    ForEachBlockToSum(tile, segment, [&](const Block& block, int64_t offset) {
      kernels_.sum_rows[kind](block, InputsAt(offset).pointers, Center(slot), lanes);
      if (maps_at_once_) MapBlock(block, offset, slot);
    });
    for (int64_t channel = 0; channel < partition_.width; ++channel) {
      for (int k = 0; k < count; ++k) {
        sums[k * partition_.width + channel] = SumOfLanes<kLanes>(lanes + (channel * count + k) * kLanes);
      }
    }
  }

  void Map(int64_t tile, int64_t slot, int64_t segment) {
    blocks_.ForEach(tile, segment,
                    [&](const Block& block, int64_t offset) { MapBlock(block, offset, slot); });
  }

  void MapBlock(const Block& block, int64_t offset, int64_t slot) {
    const MapKind kind = program_.map();
    const MapFunction map =
        layout_.family == Family::kRows ? kernels_.map_rows[kind] : kernels_.map_columns[kind];
    const Advanced outputs(operands_.outputs, offset * element_size_);
    map(block, InputsAt(offset).pointers, Factors(slot), outputs.pointers);
  }

  // If elements are mapped at once, they are to be in the nearest cache still.
  template <class Work>
  void ForEachBlockToSum(int64_t tile, int64_t segment, const Work& work) {
    if (maps_at_once_) {
      blocks_.ForEachNear(tile, segment, work);
    } else {
      blocks_.ForEach(tile, segment, work);
    }
  }

  auto InputsAt(int64_t offset) const { return Advanced(operands_.inputs, offset * element_size_); }
  double* Sums(int64_t slot, int64_t i) { return sums_.get() + slot * sums_size_ + i; }
  double* Center(int64_t slot) { return center_.get() + slot * center_size_; }
  Arithmetic* Factors(int64_t slot) { return factors_.get() + slot * factors_size_; }

  const Layout& layout_;
  const Partition partition_;
  const TypeKernels& kernels_;
  const Operands& operands_;
  const Program& program_;
  const int64_t element_size_;
  const Blocks blocks_;
  int64_t sums_size_, center_size_, factors_size_;  // of a slot
  bool maps_at_once_, maps_later_;                  // at most one of them
  // Not initialized: every task writes its own before it reads them.
  std::unique_ptr<double[]> sums_, center_;
  std::unique_ptr<Arithmetic[]> factors_;
};

}  // namespace

void Sweep(const Layout& layout, const KernelTable& table, const Operands& operands, const Program& program,
           Parallel& parallel) {
  if (operands.type == ElementType::kDouble) {
    Sweeper<double>(layout, table, operands, program).Run(parallel);
  } else {
    Sweeper<float>(layout, table, operands, program).Run(parallel);
  }
}

}  // namespace bngrad
