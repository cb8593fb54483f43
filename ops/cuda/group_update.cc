#include "cuda/group_update.hpp"

namespace bngrad::cuda {
namespace {

constexpr const char* NameOf(const AdamFormula&) { return "adam_update"; }
constexpr const char* NameOf(const LionFormula&) { return "lion_update"; }
constexpr const char* NameOf(const RmspropFormula&) { return "rmsprop_update"; }
constexpr const char* NameOf(const SgdFormula&) { return "sgd_update"; }

// Starts a kernel for as many tensors as its argument has room for, until all are done.
template <class Arguments, class Tensor>
void LaunchAll(ElementType type, const char* kernel, Arguments& arguments, const std::vector<Tensor>& tensors,
               Device& device) {
  auto& table = arguments.table;
  uint32_t blocks = 0;
  const auto launch = [&] {
    if (blocks > 0) device.Launch(type, kernel, blocks, 1, &arguments);
    table.count = blocks = 0;
  };
  for (const Tensor& tensor : tensors) {
    if (tensor.count == 0) continue;
    if (table.count == table.kCapacity) launch();
    table.tensors[table.count] = tensor;
    table.first_blocks[table.count++] = blocks;
    blocks += static_cast<uint32_t>((tensor.count + table.kChunk - 1) / table.kChunk);
  }
  launch();
}

}  // namespace

template <class Formula>
void GroupUpdate(ElementType type, const Formula& formula, const bool* is_applied,
                 const std::vector<GroupTensor<Formula>>& tensors, Device& device) {
  GroupUpdateArguments<Formula> arguments = {formula, is_applied, {}};
  LaunchAll(type, NameOf(formula), arguments, tensors, device);
}

void AllFinite(ElementType type, const std::vector<FiniteTensor>& tensors, bool* result, Device& device) {
  AllFiniteArguments arguments = {result, {}};
  device.Launch(type, "all_finite", 1, 1, &arguments);
  LaunchAll(type, "all_finite", arguments, tensors, device);
}

#define BNGRAD_INSTANTIATE(Formula)                                   \
  template void GroupUpdate(ElementType, const Formula&, const bool*, \
                            const std::vector<GroupTensor<Formula>>&, Device&);
BNGRAD_INSTANTIATE(AdamFormula)
BNGRAD_INSTANTIATE(LionFormula)
BNGRAD_INSTANTIATE(RmspropFormula)
BNGRAD_INSTANTIATE(SgdFormula)
#undef BNGRAD_INSTANTIATE

}  // namespace bngrad::cuda
