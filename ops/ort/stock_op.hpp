// An op of ONNX Runtime that a custom op runs, on arrays of its own.
#pragma once
#include <memory>
#include <vector>

#include "ort/op.hpp"

namespace bngrad {

// An array of float in the memory of the CPU.
struct FloatArray {
  float* data;
  Shape shape;
};

// An op of domain ai.onnx with two inputs and one output, all float. Its methods are called concurrently.
class StockOp {
 private:
  struct Release {
    const OrtApi* api;
    void operator()(OrtAllocator* allocator) const { ort::ReleaseAllocator(api, allocator); }
    void operator()(OrtMemoryInfo* info) const { ort::ReleaseMemoryInfo(api, info); }
    void operator()(OrtOp* op) const { ort::ReleaseOp(api, op); }
    void operator()(OrtOpAttr* attribute) const { ort::ReleaseOpAttr(api, attribute); }
    void operator()(OrtValue* value) const { ort::ReleaseValue(api, value); }
  };
  template <class T>
  using Owner = std::unique_ptr<T, Release>;

 public:
  // An attribute: integers, or one number.
  class Attribute {
   public:
    Attribute(const char* name, const Shape& values)
        : name_(name), ints_(values), type_(ort::kAttributeInts) {}
    Attribute(const char* name, int value) : name_(name), ints_(Vector(value)), type_(ort::kAttributeInt) {}
    Attribute(const char* name, float value) : name_(name), float_(value), type_(ort::kAttributeFloat) {}

   private:
    friend class StockOp;
    Owner<OrtOpAttr> Create(const OrtApi* api) const;

    const char* name_;
    Shape ints_;
    float float_ = 0;
    int type_;
  };

  // Takes the kernel of the provider of the node. Throws Failure.
  StockOp(const NodeAttributes& node, const char* name, int version,
          const std::vector<Attribute>& attributes);

  // Runs it as a part of a run of the node, with the threads of the session. y has the shape that the op
  // computes.
  void Run(const RunContext& context, const FloatArray& x, const FloatArray& w, const FloatArray& y) const;

  // Memory of the session, which keeps it for later runs.
  class Scratch {
   public:
    // Throws Failure.
    Scratch(const StockOp& op, const RunContext& context, int64_t count);
    float* data() const { return static_cast<float*>(data_.get()); }

   private:
    struct Free {
      const OrtApi* api;
      OrtAllocator* allocator;
      void operator()(void* data) const;
    };
    Owner<OrtAllocator> allocator_;
    std::unique_ptr<void, Free> data_;
  };

 private:
  Owner<OrtValue> View(const FloatArray& array) const;

  const OrtApi* const api_;
  Owner<OrtOp> op_;
  Owner<OrtMemoryInfo> memory_;
};

}  // namespace bngrad
