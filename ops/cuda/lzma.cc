#include "cuda/lzma.hpp"

#include <algorithm>
#include <utility>

#include "core/error.hpp"

namespace bngrad::cuda {
namespace {

constexpr int kProbabilityBits = 11, kMoveBits = 5;
constexpr uint32_t kMinRange = 1u << 24;
constexpr size_t kStates = 12, kAfterLiteral = 7;  // states from kAfterLiteral on: the last was a match
constexpr size_t kMinLength = 2, kDistanceStates = 4;
constexpr uint32_t kSlotBits = 6, kFirstModeledSlot = 4, kFirstDirectSlot = 14, kAlignBits = 4;

// The probability of a 0, which adapts.
struct Bit {
  uint16_t zero = 1 << (kProbabilityBits - 1);
};

[[noreturn]] void ThrowCorrupt() { throw Failure("the compressed kernels are corrupt"); }

class RangeDecoder {
 public:
  RangeDecoder(const uint8_t* begin, size_t size) : next_(begin), end_(begin + size) {
    for (int i = 0; i < 5; ++i) code_ = code_ << 8 | NextByte();
  }

  uint32_t Get(Bit& bit) {
    const uint32_t bound = (range_ >> kProbabilityBits) * bit.zero;
    const bool one = code_ >= bound;
    if (one) {
      code_ -= bound;
      range_ -= bound;
      bit.zero = static_cast<uint16_t>(bit.zero - (bit.zero >> kMoveBits));
    } else {
      range_ = bound;
      bit.zero = static_cast<uint16_t>(bit.zero + (((1 << kProbabilityBits) - bit.zero) >> kMoveBits));
    }
    Normalize();
    return one;
  }

  // Bits of equal probability, the highest first.
  uint32_t GetDirect(uint32_t count) {
    uint32_t value = 0;
    for (uint32_t i = 0; i < count; ++i) {
      range_ >>= 1;
      const bool one = code_ >= range_;
      if (one) code_ -= range_;
      value = value << 1 | one;
      Normalize();
    }
    return value;
  }

  // A number of `bits` bits, the highest first; `tree` has 2^bits.
  uint32_t GetTree(Bit* tree, uint32_t bits) {
    uint32_t node = 1;
    for (uint32_t i = 0; i < bits; ++i) node = node << 1 | Get(tree[node]);
    return node - (1u << bits);
  }

  // The same, the lowest first.
  uint32_t GetReversed(Bit* tree, uint32_t bits) {
    uint32_t node = 1, value = 0;
    for (uint32_t i = 0; i < bits; ++i) {
      const uint32_t bit = Get(tree[node]);
      node = node << 1 | bit;
      value |= bit << i;
    }
    return value;
  }

 private:
  uint32_t NextByte() {
    if (next_ == end_) ThrowCorrupt();
    return *next_++;
  }

  void Normalize() {
    if (range_ >= kMinRange) return;
    range_ <<= 8;
    code_ = code_ << 8 | NextByte();
  }

  const uint8_t* next_;
  const uint8_t* const end_;
  uint32_t range_ = 0xffffffff, code_ = 0;
};

class LengthDecoder {
 public:
  uint32_t Get(RangeDecoder& range) {
    if (range.Get(choice_[0]) == 0) return range.GetTree(low_, 3);
    if (range.Get(choice_[1]) == 0) return 8 + range.GetTree(middle_, 3);
    return 16 + range.GetTree(high_, 8);
  }

 private:
  Bit choice_[2], low_[8], middle_[8], high_[256];
};

class Decoder {
 public:
  Decoder(const uint8_t* stream, size_t stream_size) : range_(stream, stream_size) {}

  std::string Decode(size_t size) {
    text_.reserve(size);
    while (text_.size() < size) {
      if (range_.Get(is_match_[state_]) == 0) {
        Literal();
      } else {
        Copy(range_.Get(is_repeat_[state_]) == 0 ? Match() : Repeat(), size);
      }
    }
    return std::move(text_);
  }

 private:
  void Literal() {
    uint32_t symbol = 1;
    if (state_ >= kAfterLiteral) {  // the byte that would go on with the match is another one
      uint32_t other = At(distances_[0]);
      while (symbol < 0x100) {
        const uint32_t expected = other >> 7 & 1, bit = range_.Get(literal_[((1 + expected) << 8) + symbol]);
        other <<= 1;
        symbol = symbol << 1 | bit;
        if (bit != expected) break;
      }
    }
    while (symbol < 0x100) symbol = symbol << 1 | range_.Get(literal_[symbol]);
    text_ += static_cast<char>(symbol);
    state_ = state_ < 4 ? 0 : state_ < 10 ? state_ - 3 : state_ - 6;
  }

  // Returns the length.
  size_t Match() {
    const uint32_t length = lengths_.Get(range_);
    std::copy_backward(distances_, distances_ + 3, distances_ + 4);
    distances_[0] = Distance(std::min<size_t>(length, kDistanceStates - 1));
    state_ = state_ < kAfterLiteral ? 7 : 10;
    return kMinLength + length;
  }

  // A match at one of the last distances.
  size_t Repeat() {
    if (range_.Get(is_repeat0_[state_]) == 0) {
      if (range_.Get(is_repeat0_long_[state_]) == 0) {
        state_ = state_ < kAfterLiteral ? 9 : 11;
        return 1;
      }
    } else {
      const int last = range_.Get(is_repeat1_[state_]) == 0   ? 1
                       : range_.Get(is_repeat2_[state_]) == 0 ? 2
                                                              : 3;
      std::rotate(distances_, distances_ + last, distances_ + last + 1);
    }
    state_ = state_ < kAfterLiteral ? 8 : 11;
    return kMinLength + repeat_lengths_.Get(range_);
  }

  size_t Distance(size_t length_state) {
    const uint32_t slot = range_.GetTree(slots_[length_state], kSlotBits);
    if (slot < kFirstModeledSlot) return slot;
    const uint32_t bits = slot / 2 - 1, base = (2 | slot % 2) << bits;
    if (slot < kFirstDirectSlot) return base + range_.GetReversed(modeled_ + base - slot, bits);
    const uint32_t direct = range_.GetDirect(bits - kAlignBits) << kAlignBits;
    return size_t{base} + direct + range_.GetReversed(align_, kAlignBits);
  }

  void Copy(size_t length, size_t size) {
    if (length > size - text_.size()) ThrowCorrupt();
    for (size_t i = 0; i < length; ++i) text_ += static_cast<char>(At(distances_[0]));
  }

  // The byte `distance` before the last one.
  uint32_t At(size_t distance) const {
    if (distance >= text_.size()) ThrowCorrupt();
    return static_cast<uint8_t>(text_[text_.size() - 1 - distance]);
  }

  RangeDecoder range_;
  std::string text_;
  size_t state_ = 0, distances_[4] = {};
  Bit is_match_[kStates], is_repeat_[kStates], is_repeat0_[kStates], is_repeat0_long_[kStates];
  Bit is_repeat1_[kStates], is_repeat2_[kStates];
  Bit literal_[3 << 8], slots_[kDistanceStates][1 << kSlotBits], modeled_[128], align_[1 << kAlignBits];
  LengthDecoder lengths_, repeat_lengths_;
};

}  // namespace

std::string DecompressLzma(const uint8_t* stream, size_t stream_size, size_t size) {
  return Decoder(stream, stream_size).Decode(size);
}

}  // namespace bngrad::cuda
