#include "core/collective.hpp"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <limits>
#include <memory>

#include "core/error.hpp"
#include "core/pairwise.hpp"

namespace bngrad {
namespace {

constexpr size_t kHeaderSize = 256;
constexpr const char* kFailed = "failed: ";

// Up to this size, gathering all values is faster than exchanging parts: it takes one message instead of two.
constexpr int64_t kMaxGatheredBytes = 1 << 16;

constexpr Collective kAlone = {nullptr, nullptr, 0, 1, nullptr};

// Atomics, not a mutex: see Pool::Instance.
std::atomic<const Collective*> current{&kAlone};
std::atomic<bool> running{false};
// True if the last operation failed after it had reached the other ranks.
std::atomic<bool> last_failed{false};

// The text in one line.
std::string Line(std::string text) {
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < ' ') c = ' ';
  }
  return text;
}

// The text, or as much of it as fits, and an ending: at most kHeaderSize - 1 bytes. No UTF-8 character is
// cut.
std::string WithEnding(const std::string& text, const std::string& ending) {
  size_t size = std::min(text.size(), kHeaderSize - 1 - ending.size());
  while (size > 0 && (static_cast<unsigned char>(text[size]) & 0xc0) == 0x80) --size;
  return text.substr(0, size) + ending;
}

// 64-bit FNV-1a.
std::string HashOf(const std::string& text) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  char digits[20];
  std::snprintf(digits, sizeof digits, " #%016llx", static_cast<unsigned long long>(hash));
  return digits;
}

// A text that does not fit, or not in one line, ends in its hash: headers of different texts differ.
std::string HeaderOf(const std::string& operation, const std::string& key, const std::string& contents) {
  const std::string text = operation + " '" + key + "' of " + contents + ", bngrad " BNGRAD_VERSION;
  if (text.size() < kHeaderSize && Line(text) == text) return text;
  return WithEnding(Line(text), HashOf(text));
}

// One operation. `what` names it in messages of the function.
class Operation {
 public:
  Operation(const Collective& collective, const std::string& header)
      : collective_(collective),
        header_(header),
        headers_(new char[kHeaderSize * static_cast<size_t>(collective.ranks)]) {
    if (running.exchange(true)) {
      throw Failure(header +
                    ": another collective operation of this process is running; run them one at a "
                    "time: one session, with sequential execution");
    }
  }
  ~Operation() { running = false; }
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;

  void ExchangeHeaders() {
    char own[kHeaderSize] = {};
    std::memcpy(own, header_.data(), header_.size());
    last_failed = true;
    Move(BNGRAD_ALL_GATHER, own, headers_.get(), kHeaderSize);
  }

  // Throws Failure unless all ranks sent the header of this one.
  void CheckHeaders() const {
    if (Header(collective_.rank) != header_) {
      throw Failure(header_ + ": the collective function did not return the block of rank " +
                    std::to_string(collective_.rank) + ", which is this one, as it was sent");
    }
    const std::string failed = kFailed;
    for (int32_t rank = 0; rank < collective_.ranks; ++rank) {
      const std::string header = Header(rank);
      if (header.compare(0, failed.size(), failed) != 0) continue;
      throw Failure("rank " + std::to_string(rank) + " failed: " + header.substr(failed.size()));
    }
    const std::string first = Header(0);
    for (int32_t rank = 1; rank < collective_.ranks; ++rank) {
      const std::string other = Header(rank), number = std::to_string(rank);
      if (other == first) continue;
      throw Failure("ranks 0 and " + number + " do not match: rank 0 is at " + first + ", rank " + number +
                    " at " + other + "; expected the same model, bngrad and ONNX Runtime on all ranks");
    }
  }

  void Move(int32_t operation, const void* send, void* receive, int64_t size) {
    if (size == 0) return;
    // An exception in a callback of ctypes returns what the last call did: 0.
    char error[1024] = "the collective function did not run to its end";
    const int32_t status =
        collective_.function(collective_.context, operation, send, receive, size, error, sizeof error);
    error[sizeof error - 1] = '\0';
    if (status == 0 && error[0] == '\0') return;
    const std::string reason = "the collective function returned " + std::to_string(status);
    throw Failure(header_ + ": " + (error[0] != '\0' ? Line(error) : reason + " without a message"));
  }

  void Finish() { last_failed = false; }

 private:
  std::string Header(int32_t rank) const {
    const char* const begin = headers_.get() + kHeaderSize * static_cast<size_t>(rank);
    return Line(std::string(begin, std::find(begin, begin + kHeaderSize, '\0')));
  }

  const Collective& collective_;
  const std::string header_;
  const std::unique_ptr<char[]> headers_;
};

// total = the sum of `ranks` blocks of `count` elements.
template <class T>
void SumBlocks(int64_t ranks, int64_t count, const T* blocks, T* total, double* rows, int64_t row_size) {
  for (int64_t begin = 0; begin < count; begin += row_size) {
    const int64_t size = std::min(row_size, count - begin);
    for (int64_t rank = 0; rank < ranks; ++rank) {
      const T* const block = blocks + rank * count + begin;
      for (int64_t i = 0; i < size; ++i) rows[rank * size + i] = block[i];
    }
    AddPairwise(ranks, size, rows);
    for (int64_t i = 0; i < size; ++i) total[begin + i] = static_cast<T>(rows[i]);
  }
}

template <class T>
std::unique_ptr<T[]> NewArray(int64_t count) {
  return std::unique_ptr<T[]>(new T[static_cast<size_t>(count)]);
}

template <class T>
void Reduce(const Collective& collective, const std::string& header, int64_t count, const T* value,
            T* total) {
  constexpr int64_t kSize = sizeof(T), kRowSize = 256;
  const int64_t ranks = collective.ranks, chunk = (count + ranks - 1) / ranks, padded = ranks * chunk;
  const bool gathers = count * ranks * kSize <= kMaxGatheredBytes;
  // All memory before the other ranks are waiting for this one.
  const auto rows = NewArray<double>(ranks * kRowSize);
  const auto received = NewArray<T>(gathers ? ranks * count : padded);
  const auto own = NewArray<T>(gathers ? 0 : chunk);
  const bool pads = !gathers && padded != count;
  const auto with_padding = NewArray<T>(pads ? padded : 0);
  if (pads) {
    std::copy_n(value, count, with_padding.get());
    std::fill_n(with_padding.get() + count, padded - count, T());
  }

  Operation operation(collective, header);
  operation.ExchangeHeaders();
  operation.CheckHeaders();
  if (gathers) {
    operation.Move(BNGRAD_ALL_GATHER, value, received.get(), count * kSize);
    SumBlocks(ranks, count, received.get(), total, rows.get(), kRowSize);
  } else {
    // Each rank adds up one chunk.
    operation.Move(BNGRAD_ALL_TO_ALL, pads ? with_padding.get() : value, received.get(), chunk * kSize);
    SumBlocks(ranks, chunk, received.get(), own.get(), rows.get(), kRowSize);
    operation.Move(BNGRAD_ALL_GATHER, own.get(), pads ? with_padding.get() : total, chunk * kSize);
    if (pads) std::copy_n(with_padding.get(), count, total);
  }
  operation.Finish();
}

}  // namespace

const Collective& CurrentCollective() { return *current; }

void SetCollective(bngrad_collective function, void* context, int32_t rank, int32_t ranks) {
  if (function != nullptr && ranks < 1) {
    throw InvalidArgument("ranks is " + std::to_string(ranks) + "; expected 1 or more");
  }
  if (function != nullptr && (rank < 0 || rank >= ranks)) {
    throw InvalidArgument("rank is " + std::to_string(rank) + "; expected 0 to " + std::to_string(ranks - 1));
  }
  // Not freed: an operation of another thread may use it.
  const Collective* const previous = current;
  current = function == nullptr ? new Collective{nullptr, nullptr, 0, 1, previous}
                                : new Collective{function, context, rank, ranks, previous};
  last_failed = false;
}

void CheckKey(const char* key) {
  if (key != nullptr && key[0] != '\0') return;
  throw InvalidArgument(std::string("key is ") + (key == nullptr ? "null" : "empty") +
                        "; expected a text that names the operation");
}

void CheckPerRank(const char* name, int64_t count, int64_t element_size, int32_t ranks) {
  const int64_t most = std::numeric_limits<int64_t>::max() / 2 / element_size / ranks;
  if (count >= 0 && count <= most) return;
  throw InvalidArgument(std::string(name) + " is " + std::to_string(count) + "; expected 0 to " +
                        std::to_string(most));
}

void AllGather(const Collective& collective, const std::string& key, const std::string& contents,
               int64_t size, const void* value, void* gathered) {
  if (collective.function == nullptr) {
    if (size > 0) std::memcpy(gathered, value, static_cast<size_t>(size));
    return;
  }
  Operation operation(collective, HeaderOf("AllGather", key, contents));
  operation.ExchangeHeaders();
  operation.CheckHeaders();
  operation.Move(BNGRAD_ALL_GATHER, value, gathered, size);
  operation.Finish();
}

void AllReduce(const Collective& collective, const std::string& key, const std::string& contents,
               int64_t count, ElementType type, const void* value, void* total) {
  if (collective.function == nullptr) {
    if (count > 0) std::memcpy(total, value, static_cast<size_t>(count) * SizeOf(type));
    return;
  }
  const std::string header = HeaderOf("AllReduce", key, contents);
  if (type == ElementType::kDouble) {
    Reduce(collective, header, count, static_cast<const double*>(value), static_cast<double*>(total));
  } else {
    Reduce(collective, header, count, static_cast<const float*>(value), static_cast<float*>(total));
  }
}

void FailCollective(const std::string& message) {
  const Collective& collective = CurrentCollective();
  if (collective.function == nullptr || last_failed) return;
  const std::string text = Line(kFailed + message);
  Operation(collective, text.size() < kHeaderSize ? text : WithEnding(text, "...")).ExchangeHeaders();
}

}  // namespace bngrad
