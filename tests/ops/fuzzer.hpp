// One random call of the C ABI, run and checked. A valid call must match the reference (fuzz_reference.hpp),
// with the same bits for every number of threads and set of outputs. An invalid call must return the expected
// message and leave all arrays unchanged.
#pragma once
#include <cinttypes>
#include <cstdio>

#include "fuzz_case.hpp"
#include "fuzz_reference.hpp"
#include "fuzz_update.hpp"

struct Counts {
  int64_t calls, computed, refused, empty, threaded, compared, others, failures;
};

class Fuzzer {
 public:
  Fuzzer(const char* isa, uint64_t seed, uint64_t index, Counts& counts)
      : isa_(isa), seed_(seed), index_(index), counts_(counts), random_(seed, index) {}

  uint64_t Run() {
    if (random_.OneIn(20)) {
      Others();
      return FuzzAdamUpdate(random_, [this](const char* what) { Fail(what, ""); });
    }
    std::vector<bool> reduced;
    arguments_ = DrawArguments(random_, &reduced);
    m_ = Product(arguments_.dims, reduced, true);
    const int64_t channels = Product(arguments_.dims, reduced, false), elements = channels * m_;
    const bool special = random_.OneIn(8);
    MakeArrays(elements, channels, special);
    if (random_.OneIn(3)) {
      Refused();
    } else {
      Computed(reduced, elements, channels, special);
    }
    return digest_;
  }

 private:
  void Fail(const char* what, const std::string& detail) {
    if (++counts_.failures > 20) return;
    std::string dims, axes;
    for (const int64_t d : arguments_.dims) dims += " " + std::to_string(d);
    for (const int64_t a : arguments_.axes) axes += " " + std::to_string(a);
    const bngrad_layout& l = arguments_.layout;
    std::printf("%s, case %" PRIu64 " of seed %" PRIu64
                ", function %d, flag %d, X [%s ], axes [%s ], types %d %d %d, %d threads: %s%s\n",
                isa_, index_, seed_, static_cast<int>(arguments_.function), arguments_.flag, dims.c_str(),
                axes.c_str(), l.type, l.scale_type, l.stat_type, arguments_.num_threads, what,
                detail.c_str());
  }

  const std::vector<Array>& arrays() const { return ArraysOf(arguments_.function); }

  // Half of the arrays are aligned to no more than the size of their elements.
  void MakeArrays(int64_t elements, int64_t channels, bool special) {
    for (const Array& array : arrays()) {
      const int32_t type = TypeOf(arguments_.layout, array.kind);
      const int64_t count = array.kind == Kind::kData ? elements : channels;
      const size_t skip = random_.OneIn(2) ? 0 : SizeOf(type) * static_cast<size_t>(random_.Below(33));
      buffers_.emplace_back(static_cast<size_t>(count) * SizeOf(type), skip);
      if (array.output) continue;
      // Per-channel values are positive, like inv_std; data has both signs and zeros.
      const double low = array.kind == Kind::kData ? -2 : 0.5, high = array.kind == Kind::kData ? 4 : 1.5;
      for (int64_t i = 0; i < count; ++i) {
        const double value =
            random_.OneIn(16) && array.kind == Kind::kData ? 0 : low + (high - low) * random_.From0To1();
        Put(buffers_.back().data(), type, i, value);
        if (special && random_.OneIn(8)) PutSpecial(buffers_.back().data(), type, i, random_);
      }
    }
  }

  std::vector<void*> Pointers() const {
    std::vector<void*> pointers;
    for (const Buffer& buffer : buffers_) pointers.push_back(buffer.data());
    return pointers;
  }

  std::vector<uint64_t> InputDigests() const {
    std::vector<uint64_t> digests;
    for (size_t i = 0; i < buffers_.size(); ++i) {
      if (!arrays()[i].output) digests.push_back(Digest(buffers_[i].data(), buffers_[i].size()));
    }
    return digests;
  }

  static uint64_t Digest(const unsigned char* data, size_t size, uint64_t digest = 0xcbf29ce484222325u) {
    for (size_t i = 0; i < size; ++i) digest = (digest ^ data[i]) * 0x100000001b3u;
    return digest;
  }

  // Returns the status; checks that the message is terminated and within its buffer.
  int32_t CallOnce(const std::vector<void*>& pointers, std::string* message) {
    constexpr size_t kSizes[] = {400, 400, 400, 64, 8, 1, 0};
    const Buffer error(random_.Of(kSizes));
    const bool none = random_.OneIn(16);
    ++counts_.calls;
    const int32_t status =
        Call(arguments_, pointers, none ? nullptr : reinterpret_cast<char*>(error.data()), error.size());
    *message = "";
    if (none || error.size() == 0) return status;
    if (status == BNGRAD_OK) {
      if (!error.Untouched()) Fail("wrote a message without an error", "");
    } else if (std::memchr(error.data(), 0, error.size()) == nullptr) {
      Fail("the message is not terminated", "");
    } else if (error.size() == 400) {
      *message = reinterpret_cast<const char*>(error.data());
    }
    if (!error.MarginsIntact()) Fail("wrote past the message", "");
    return status;
  }

  void Refused() {
    std::vector<void*> pointers = Pointers();
    const std::vector<uint64_t> before = InputDigests();
    const std::string expected = DrawFault(random_, arguments_, pointers, buffers_);
    std::string message;
    const int32_t status = CallOnce(pointers, &message);
    ++counts_.refused;
    if (status != BNGRAD_INVALID_ARGUMENT) Fail("not refused, expected: ", expected);
    if (!message.empty() && message.find(expected) == std::string::npos) {
      Fail("refused with another message: ", message + "; expected: " + expected);
    }
    if (InputDigests() != before) Fail("refused, but an input has changed", "");
    for (size_t i = 0; i < buffers_.size(); ++i) {
      const bool same = !arrays()[i].output || buffers_[i].Untouched();
      if (!same || !buffers_[i].MarginsIntact()) Fail("refused, but wrote to ", arrays()[i].name);
    }
  }

  void Computed(const std::vector<bool>& reduced, int64_t elements, int64_t channels, bool special) {
    const std::vector<uint64_t> before = InputDigests();
    // All outputs, one thread.
    const int32_t threads = arguments_.num_threads;
    arguments_.num_threads = 1;
    std::vector<void*> pointers = Pointers();
    for (size_t i = 0; i < pointers.size(); ++i) {
      if (buffers_[i].size() == 0 && random_.OneIn(2))
        pointers[i] = nullptr;  // null is allowed for empty arrays
    }
    std::string message;
    if (CallOnce(pointers, &message) != BNGRAD_OK) Fail("failed: ", message);
    if (!special) Compare(reduced, elements, channels);
    for (size_t i = 0; i < buffers_.size(); ++i) {
      if (arrays()[i].output) digest_ = digest_ * 31 + DigestOfValues(i, buffers_[i]);
    }

    // Some outputs, other threads, other addresses.
    arguments_.num_threads = threads;
    std::vector<Buffer> others;
    for (size_t i = 0; i < buffers_.size(); ++i) {
      const size_t element = SizeOf(TypeOf(arguments_.layout, arrays()[i].kind));
      others.emplace_back(arrays()[i].output ? buffers_[i].size() : 0,
                          element * static_cast<size_t>(random_.Below(33)));
      if (arrays()[i].output) pointers[i] = random_.OneIn(3) ? nullptr : others[i].data();
    }
    if (CallOnce(pointers, &message) != BNGRAD_OK) Fail("failed: ", message);
    for (size_t i = 0; i < buffers_.size(); ++i) {
      if (!buffers_[i].MarginsIntact() || !others[i].MarginsIntact()) Fail("wrote around ", arrays()[i].name);
      if (!arrays()[i].output) continue;
      if (pointers[i] == nullptr ? !others[i].Untouched()
                                 : DigestOfValues(i, others[i]) != DigestOfValues(i, buffers_[i])) {
        Fail("other bits with other threads and outputs: ", arrays()[i].name);
      }
    }
    if (InputDigests() != before) Fail("an input has changed", "");
    counts_.computed += 2;
    counts_.empty += elements == 0 ? 2 : 0;
    counts_.threaded += threads != 1 && elements > 1 << 15;
  }

  // Ignores the sign and payload of NaNs: for a product of two NaNs they depend on the order of the operands,
  // which the compiler chooses.
  uint64_t DigestOfValues(size_t array, const Buffer& buffer) const {
    const int32_t type = TypeOf(arguments_.layout, arrays()[array].kind);
    const size_t element = SizeOf(type);
    const unsigned char nan[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    uint64_t digest = Digest(nullptr, 0);
    for (size_t k = 0; k < buffer.size() / element; ++k) {
      const bool is_nan = std::isnan(Get(buffer.data(), type, static_cast<int64_t>(k)));
      digest = Digest(is_nan ? nan : buffer.data() + k * element, element, digest);
    }
    return digest;
  }

  void Compare(const std::vector<bool>& reduced, int64_t elements, int64_t channels) {
    const bngrad_layout& layout = arguments_.layout;
    const Problem problem(ChannelsOf(arguments_.dims, reduced, elements), channels, m_, layout.type);
    std::vector<Values> v;
    for (size_t i = 0; i < buffers_.size(); ++i) {
      const int32_t type = TypeOf(layout, arrays()[i].kind);
      v.emplace_back();
      for (size_t k = 0; k < buffers_[i].size() / SizeOf(type); ++k) {
        v.back().push_back(Get(buffers_[i].data(), type, static_cast<int64_t>(k)));
      }
    }
    const bool flag = arguments_.flag == 1;
    std::vector<Expected> expected;
    switch (arguments_.function) {
      case Function::kGrad:
        expected = ExpectedGrad(problem, flag, v[0], v[1], v[2], v[3], v[4]);
        break;
      case Function::kReluGrad:
        for (size_t i = 0; i < v[0].size(); ++i) v[0][i] = v[1][i] > 0 ? v[0][i] : 0;
        expected = ExpectedGrad(problem, flag, v[0], v[2], v[3], v[4], v[5]);
        break;
      case Function::kGradGrad:
        expected = ExpectedGradGrad(problem, flag, v[0], v[1], v[2], v[3], v[4], v[5], v[6], v[7]);
        break;
      case Function::kTraining:
        expected = ExpectedTraining(problem, arguments_.epsilon, arguments_.momentum, flag, v[0], v[1], v[2],
                                    v[3], v[4]);
        break;
      case Function::kStatistics:
        expected = ExpectedTraining(problem, arguments_.epsilon, 0, false, v[0], {}, {}, {}, {});
        expected.erase(expected.begin(), expected.begin() + 3);
    }
    ++counts_.compared;
    size_t output = 0;
    for (size_t i = 0; i < v.size(); ++i) {
      if (!arrays()[i].output) continue;
      const Expected& e = expected[output++];
      const int32_t type = TypeOf(layout, arrays()[i].kind);
      // The spacing of subnormals is larger than the relative unit roundoff.
      const double least = type == BNGRAD_DOUBLE ? 0 : type == BNGRAD_FLOAT16 ? 0x1p-24 : 0x1p-126;
      const double largest = type == BNGRAD_FLOAT16 ? 65504 : 1e38;
      if (e.value.size() != v[i].size()) Fail("the reference has another size: ", arrays()[i].name);
      for (size_t k = 0; k < v[i].size(); ++k) {
        const double wanted = e.value[k], got = v[i][k];
        const double bound = e.error[k] + UnitOf(type) * (std::abs(wanted) + e.error[k]) + least;
        const bool right = std::isnan(wanted)                   ? std::isnan(got)
                           : type == BNGRAD_DOUBLE              ? std::abs(got - wanted) <= bound
                           : std::abs(wanted) + bound > largest ? std::abs(got) >= largest * 0.99
                                                                : std::abs(got - wanted) <= bound;
        if (right) continue;
        char text[160];
        std::snprintf(text, sizeof(text), "%s[%zu] is %.17g, expected %.17g within %.3g", arrays()[i].name, k,
                      got, wanted, bound);
        Fail("", text);
        break;
      }
    }
  }

  // The functions that are not ops.
  void Others() {
    ++counts_.others;
    const int32_t i =
        random_.OneIn(2) ? static_cast<int32_t>(random_.Next()) : static_cast<int32_t>(random_.Below(4)) - 1;
    const bool known = i >= 0 && i < bngrad_isa_count();
    if ((bngrad_isa_name(i) != nullptr) != known || (bngrad_isa_supported(i) != 0 && !known)) {
      Fail("wrong name or support of an instruction set", "");
    }
    const char* name = nullptr;
    if (bngrad_active_isa(random_.OneIn(2) ? &name : nullptr, nullptr, 8) != BNGRAD_OK ||
        (name != nullptr && std::strcmp(name, isa_) != 0)) {
      Fail("wrong active instruction set", "");
    }
    const int64_t count = random_.OneIn(500) ? 1000000 : random_.Below(200);
    std::vector<Buffer> arrays;
    for (int k = 0; k < 3; ++k) {
      arrays.emplace_back(static_cast<size_t>(count) * sizeof(float),
                          sizeof(float) * static_cast<size_t>(random_.Below(33)));
      for (int64_t j = 0; k < 2 && j < count; ++j) {
        Put(arrays.back().data(), BNGRAD_FLOAT, j, random_.From0To1() - 0.5);
      }
    }
    void* p[] = {arrays[0].data(), arrays[1].data(), arrays[2].data()};
    const int64_t fault = count == 0 ? 0 : random_.Below(8);
    if (fault == 1) p[random_.Below(3)] = nullptr;
    if (fault == 2) p[random_.Below(3)] = arrays[0].data() + 1;
    if (fault == 3) p[2] = p[random_.Below(2)];
    const int32_t status =
        bngrad_add_arrays(fault == 4 ? (random_.OneIn(2) ? -count : INT64_MAX - count) : count,
                          static_cast<const float*>(p[0]), static_cast<const float*>(p[1]),
                          static_cast<float*>(p[2]), static_cast<int32_t>(random_.Below(10)) - 1, nullptr, 0);
    const bool valid = fault == 0 || fault > 4;
    if (status != (valid ? BNGRAD_OK : BNGRAD_INVALID_ARGUMENT)) Fail("bngrad_add_arrays", "");
    for (int64_t j = 0; valid && j < count; ++j) {
      const auto at = [&](int k) { return Get(arrays[static_cast<size_t>(k)].data(), BNGRAD_FLOAT, j); };
      if (at(2) != static_cast<double>(static_cast<float>(at(0) + at(1)))) Fail("a sum is wrong", "");
    }
    if (!valid && !arrays[2].Untouched()) Fail("bngrad_add_arrays refused, but wrote", "");
    for (const Buffer& array : arrays) {
      if (!array.MarginsIntact()) Fail("bngrad_add_arrays wrote around an array", "");
    }
  }

  const char* const isa_;
  const uint64_t seed_, index_;
  Counts& counts_;
  Random random_;
  Arguments arguments_ = {};
  int64_t m_ = 0;
  std::vector<Buffer> buffers_;
  uint64_t digest_ = 0;
};
