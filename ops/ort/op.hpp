// An ONNX Runtime custom op as a table entry: what a new op has to write down, and what it is given to work
// with.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "core/element_type.hpp"
#include "core/error.hpp"
#include "core/layout.hpp"
#include "core/threads.hpp"
#include "ort/abi.hpp"

namespace bngrad {

// The type variable of an input or output, as in the ONNX specification; kAxes is int64.
enum class Role { kT, kT1, kT2, kAxes };

// The type in ONNX's numbers, which are also ElementType's.
int TensorTypeOf(const Types& types, Role role);

struct Parameter {
  const char* name;
  Role role;
};

// The attributes of one node.
class NodeAttributes {
 public:
  NodeAttributes(const OrtApi* api, const OrtKernelInfo* info) : api_(api), info_(info) {}
  // Throw InvalidArgument if it is missing or has another type; GetFlag also unless it is 0 or 1.
  double GetFloat(const char* name) const;
  bool GetFlag(const char* name) const;

 private:
  const OrtApi* api_;
  const OrtKernelInfo* info_;
};

// Inputs or outputs of an op, at most.
constexpr size_t kMaxParameters = 10;

struct CustomOp;
struct OpDefinition;

// One run of a node. Construction reads all inputs; it and every method throw what is to be refused.
class RunContext {
 public:
  RunContext(const CustomOp& op, OrtKernelContext* context);

  // Of input X under input axes, which every op has.
  const Layout& layout() const { return layout_; }
  // Input i, which must have the shape of X.
  const void* DataLikeX(size_t i) const;
  // Input i, which must have one value a channel: X's shape without the axes.
  const void* ChannelData(size_t i) const;
  // Output i; null if the node leaves it out.
  void* OutputLikeX(size_t i) const;
  void* ChannelOutput(size_t i) const;

 private:
  struct Input {
    const void* data;
    Shape shape;
  };
  using Inputs = ShortList<Input, kMaxParameters>;

  size_t CountOutputs() const;
  Inputs ReadInputs();
  void ReadInput(size_t i, size_t count, Input& input);
  const Shape& ShapeOfX() const;
  Shape ReadAxes() const;
  const void* Aligned(const void* data, const Shape& shape, size_t element_size);
  [[noreturn]] void ThrowShape(size_t i, const Shape& expected, const std::string& why) const;
  void* Output(size_t i, const Shape& shape) const;

  const CustomOp& op_;
  const OrtApi* const api_;
  OrtKernelContext* const context_;
  const size_t output_count_;
  std::vector<std::unique_ptr<char[]>> copies_;
  // Made in place: a list that is copied as soon as it is written waits for what was written.
  const Inputs inputs_;
  const Shape axes_;
  const Layout layout_;
};

// What is left of a node once its attributes are read.
class Node {
 public:
  virtual ~Node() = default;
  virtual void Run(const RunContext& context, const Types& types, Parallel& parallel) const = 0;
};

struct OpDefinition {
  const char* name;
  std::vector<Parameter> inputs;
  std::vector<Parameter> outputs;
  int first_output_like;  // the input whose shape the first output has; -1: only a run knows
  std::unique_ptr<Node> (*make_node)(const NodeAttributes& attributes);
};

// One file each: ort_grad.cc and so on.
OpDefinition GradDefinition();
OpDefinition ReluGradDefinition();
OpDefinition GradGradDefinition();
OpDefinition TrainingDefinition();
OpDefinition StatisticsDefinition();

// An op for one combination of types, as ONNX Runtime takes it. It must live as long as any session that uses
// it.
struct CustomOp : OrtCustomOp {
  // `lending_api`: of ort::kLendingVersion; null if this ONNX Runtime is older.
  CustomOp(const OrtApi* api, const OrtApi* lending_api, const OpDefinition& definition, const Types& types);
  const OrtApi* api;
  const OrtApi* lending_api;
  const OpDefinition* definition;
  Types types;
  size_t x, axes;  // which inputs these are
};

}  // namespace bngrad
