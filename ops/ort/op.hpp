// ONNX Runtime custom ops: the definition of an op (OpDefinition, Node) and what it can access at run time
// (NodeAttributes, RunContext).
#pragma once
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "core/element_type.hpp"
#include "core/error.hpp"
#include "core/layout.hpp"
#include "core/threads.hpp"
#include "ort/abi.hpp"

namespace bngrad {

namespace cuda {
class Device;
}

// The type variable of an input or output, as in the ONNX specification. kT and kWide, which is float or
// double, are those of the data. kAxes is int64, kDouble double, kFloat float, kBool bool. An input of kBool
// may be omitted.
enum class Role { kT, kWide, kT1, kT2, kAxes, kDouble, kFloat, kBool };

// The type as an ONNX type number, as in ElementType.
int TensorTypeOf(const Types& types, Role role);

struct Parameter {
  const char* name;
  Role role;
};

// The attributes of one node.
class NodeAttributes {
 public:
  NodeAttributes(const OrtApi* api, const OrtKernelInfo* info) : api_(api), info_(info) {}
  // True if there is an attribute of the name, of a type of those below.
  bool Has(const char* name) const;
  // Throw InvalidArgument if the attribute is missing or has another type. GetFlag requires 0 or 1.
  double GetFloat(const char* name) const;
  bool GetFlag(const char* name) const;
  std::string GetString(const char* name) const;
  int64_t GetInt(const char* name) const;
  // Up to kMaxRank integers.
  Shape GetInts(const char* name) const;

  const OrtApi* api() const { return api_; }
  const OrtKernelInfo* info() const { return info_; }

 private:
  const OrtApi* api_;
  const OrtKernelInfo* info_;
};

// The maximum number of inputs or outputs of an op, besides those of a variadic one.
constexpr size_t kMaxParameters = 10;

struct CustomOp;
struct OpDefinition;

// One run of a node. The constructor reads all inputs. It and all methods throw InvalidArgument for invalid
// inputs and Failure for errors of ONNX Runtime.
class RunContext {
 public:
  RunContext(const CustomOp& op, OrtKernelContext* context);

  // The layout of input X for input axes, for ops that have both.
  const Layout& layout() const { return layout_; }
  const Shape& ShapeOfX() const;
  const Shape& ShapeOf(size_t i) const { return InputAt(i).shape; }
  // Whether the node has an input that may be omitted.
  bool Has(size_t i) const;
  // The number of tensors of the variadic input.
  size_t variadic_count() const { return variadic_.size(); }
  // The number of elements of the data: of X, or of the weight.
  int64_t count() const;
  // Input i. Throws unless it has the shape of X.
  const void* DataLikeX(size_t i) const;
  // Input i. Throws unless it has this shape; `what` says in the message what that is.
  const void* Data(size_t i, const Shape& shape, const char* what) const;
  // Input i, `rows` values per channel of each rank. Throws unless it has shape [ranks, rows, channels].
  const double* Gathered(size_t i, int64_t rows, int64_t channels, int64_t* ranks) const;
  // Input i. Throws unless it has one value per channel: the shape of X without the axes.
  const void* ChannelData(size_t i) const;
  // Output i; null if the node omits it.
  void* OutputLikeX(size_t i) const;
  void* ChannelOutput(size_t i) const;
  template <class Dims>
  void* Output(size_t i, const Dims& shape) const {
    return Output(i, shape.data(), shape.size());
  }

  const OrtKernelContext* of_ort() const { return context_; }

 private:
  struct Input {
    const void* data;
    Shape shape;
  };
  using Inputs = FixedVector<Input, kMaxParameters>;

  size_t CountOutputs() const;
  bool has_axes() const;
  size_t CountInputs() const;
  Inputs ReadInputs();
  std::vector<Input> ReadVariadic();
  const OrtValue* ValueOf(size_t i) const;  // null: there is none
  void ReadInput(size_t i, Input& input);
  const Input& InputAt(size_t i) const {
    return i < inputs_.size() ? inputs_[i] : variadic_[i - inputs_.size()];
  }
  std::string NameOf(size_t i) const;
  Shape ReadAxes() const;
  const void* Aligned(const char* name, const void* data, const Shape& shape, size_t element_size,
                      bool on_device);
  [[noreturn]] void ThrowShape(size_t i, const Shape& expected, const std::string& why) const;
  void* Output(size_t i, const int64_t* dims, size_t rank) const;

  const CustomOp& op_;
  const OrtApi* const api_;
  OrtKernelContext* const context_;
  const size_t input_count_, output_count_;
  std::vector<std::unique_ptr<char[]>> copies_;
  // Const members are constructed in place, without a copy.
  const Inputs inputs_;
  const std::vector<Input> variadic_;
  const Shape axes_;
  const Layout layout_;
};

// A node with parsed attributes. Run is called concurrently.
class Node {
 public:
  virtual ~Node() = default;
  virtual void Run(const RunContext& context, const Types& types, Parallel& parallel) const = 0;
};

// A node that also has kernels for a GPU. Data and parameters are arrays of the device then; axes are not.
class DeviceNode : public Node {
 public:
  // Starts the kernels and returns before they have run. Throws Failure.
  virtual void RunOnDevice(const RunContext& context, const Types& types, cuda::Device& device) const = 0;
};

// A node with kernels for a GPU only. On the CPU the op is not registered, and ONNX Runtime inlines the
// function of the model.
class DeviceOnlyNode : public DeviceNode {
 public:
  void Run(const RunContext&, const Types&, Parallel&) const final {
    throw Failure("there is no kernel for the CPU");
  }
};

// The factory of one class of nodes.
struct NodeMaker {
  std::unique_ptr<Node> (*make)(const NodeAttributes& attributes);
  bool has_device;  // they are DeviceNodes
  bool has_host;    // they are not DeviceOnlyNodes
};

// Whether the last input, and the last output, are any number of tensors of one type.
enum class Variadic { kNone, kInputs, kBoth };

struct OpDefinition {
  const char* name;
  std::vector<Parameter> inputs;
  std::vector<Parameter> outputs;
  size_t x;                   // the input whose shape all data have, which is called X above
  bool first_output_is_data;  // if not, the shape of output 0 is unknown before a run
  NodeMaker node;
  Variadic variadic = Variadic::kNone;
  // A session on a GPU without a kernel of it inlines the function of the model: on the CPU the op would have
  // its data copied there and back.
  bool never_copied = false;
  size_t single_inputs() const { return inputs.size() - (variadic == Variadic::kNone ? 0 : 1); }
};

// OpDefinition::node for a class of nodes.
template <class NodeOfOp>
constexpr NodeMaker MakeNode = {[](const NodeAttributes& attributes) -> std::unique_ptr<Node> {
                                  return std::make_unique<NodeOfOp>(attributes);
                                },
                                std::is_base_of_v<DeviceNode, NodeOfOp>,
                                !std::is_base_of_v<DeviceOnlyNode, NodeOfOp>};

OpDefinition GradDefinition();
OpDefinition ReluGradDefinition();
OpDefinition GradGradDefinition();
OpDefinition TrainingDefinition();
OpDefinition StatisticsDefinition();
OpDefinition MomentsDefinition();
OpDefinition MergeMomentsDefinition();
OpDefinition ApplyDefinition();
OpDefinition GradSumsDefinition();
OpDefinition ReluGradSumsDefinition();
OpDefinition GradApplyDefinition();
OpDefinition ReluGradApplyDefinition();
OpDefinition AllGatherDefinition();
OpDefinition AllReduceDefinition();
OpDefinition AdamUpdateDefinition();
std::vector<OpDefinition> GroupUpdateDefinitions();
OpDefinition ConvGradDefinition();
OpDefinition ConvChannelsLastDefinition();
OpDefinition BatchedConvDefinition();
OpDefinition BatchedConvTransposeDefinition();
OpDefinition DepthwiseConvDefinition();
std::vector<OpDefinition> DepthwiseConvGradDefinitions();
OpDefinition MaxPoolGradDefinition();

// An op for one combination of types, as registered with ONNX Runtime. Must outlive every session that uses
// it.
struct CustomOp : OrtCustomOp {
  // shape_api: the API of kShapeReferenceVersion, or null if this ONNX Runtime is older. device_api: that of
  // kAllocatorVersion for an op on a GPU, or null for one on the CPU.
  CustomOp(const OrtApi* api, const OrtApi* shape_api, const OrtApi* device_api,
           const OpDefinition& definition, const Types& types);
  const OrtApi* api;
  const OrtApi* shape_api;
  const OrtApi* device_api;
  const OpDefinition* definition;
  Types types;
  size_t axes;  // the index of this input; past the inputs if there is none
};

}  // namespace bngrad
