// AllGather and AllReduce as ONNX Runtime ops: core/collective.hpp.
#include "core/collective.hpp"

#include <string>

#include "core/error.hpp"
#include "ort/op.hpp"

namespace bngrad {
namespace {

class CollectiveNode : public Node {
 public:
  explicit CollectiveNode(const NodeAttributes& attributes)
      : key_(attributes.GetString("key")), ranks_(CurrentCollective().ranks) {
    CheckKey(key_.c_str());
  }

 protected:
  // A session may have evaluated operations of constants when it was created.
  const Collective& CollectiveOfSession() const {
    const Collective& collective = CurrentCollective();
    if (collective.ranks == ranks_) return collective;
    throw InvalidArgument("the collective was set after the session was created (made with " +
                          std::to_string(ranks_) + (ranks_ == 1 ? " rank" : " ranks") + ", now " +
                          std::to_string(collective.ranks) + "); set it first");
  }

  const std::string key_;

 private:
  const int32_t ranks_;
};

class AllGatherNode final : public CollectiveNode {
 public:
  using CollectiveNode::CollectiveNode;

  void Run(const RunContext& c, const Types&, Parallel&) const override {
    const Collective& collective = CollectiveOfSession();
    const int64_t size = c.count() * static_cast<int64_t>(sizeof(double));
    CheckPerRank("the size of value", size, 1, collective.ranks);
    FixedVector<int64_t, kMaxRank + 1> gathered;
    gathered.push_back(collective.ranks);
    for (const int64_t dim : c.ShapeOfX()) gathered.push_back(dim);
    AllGather(collective, key_, "double" + ToString(c.ShapeOfX()), size, c.DataLikeX(0),
              c.Output(0, gathered));
  }
};

class AllReduceNode final : public CollectiveNode {
 public:
  using CollectiveNode::CollectiveNode;

  void Run(const RunContext& c, const Types& types, Parallel&) const override {
    const Collective& collective = CollectiveOfSession();
    CheckPerRank("the size of partial", c.count(), static_cast<int64_t>(SizeOf(types.data)),
                 collective.ranks);
    const std::string type = types.data == ElementType::kDouble ? "double" : "float";
    AllReduce(collective, key_, type + ToString(c.ShapeOfX()), c.count(), types.data, c.DataLikeX(0),
              c.OutputLikeX(0));
  }
};

}  // namespace

OpDefinition AllGatherDefinition() {
  return {"AllGather", {{"value", Role::kDouble}}, {{"gathered", Role::kDouble}}, 0,
          false,       MakeNode<AllGatherNode>};
}

OpDefinition AllReduceDefinition() {
  return {"AllReduce", {{"partial", Role::kWide}}, {{"total", Role::kWide}}, 0,
          true,        MakeNode<AllReduceNode>};
}

}  // namespace bngrad
