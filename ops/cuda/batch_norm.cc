#include "cuda/batch_norm.hpp"

#include <algorithm>
#include <initializer_list>
#include <vector>

#include "cuda/kernels/finish.h"
#include "cuda/kernels/maps.h"
#include "cuda/plan.hpp"

namespace bngrad::cuda {
namespace {

// The launches of one op.
class Launches {
 public:
  Launches(const Layout& layout, ElementType type, Device& device)
      : layout_(layout), type_(type), device_(device) {
    finish_.channels = layout.channels;
    finish_.reduced = layout.reduced;
  }

  // Arguments of the finish; the arrays that the op has are to be set.
  FinishArguments& finish() { return finish_; }

  // The sums of each channel; without a center about a pivot of their own.
  void Sum(const std::string& kind, int sums, std::initializer_list<const void*> inputs,
           const Values& center) {
    const Plan plan = PlanFor(inputs);
    SumArguments arguments = {plan.view, {}, center, nullptr, nullptr};
    std::copy(inputs.begin(), inputs.end(), arguments.inputs);
    const size_t channels = static_cast<size_t>(layout_.channels);
    if (center.data == nullptr) arguments.pivot = Doubles(channels);
    arguments.partial = Doubles(static_cast<size_t>(sums) * static_cast<size_t>(plan.view.splits) * channels);
    Launch(plan, "sum_" + kind, &arguments);
    finish_.splits = plan.view.splits;
    finish_.partial = arguments.partial;
    finish_.pivot = arguments.pivot;
  }

  // The results of each channel, and `factors` factors of the map.
  void Finish(const std::string& kind, int factors) {
    const size_t channels = static_cast<size_t>(layout_.channels);
    if (factors > 0) finish_.factors = Doubles(static_cast<size_t>(factors) * channels);
    const size_t blocks = (channels + kFinishChannels - 1) / kFinishChannels;
    if (blocks > 0) device_.Launch(type_, "finish_" + kind, static_cast<uint32_t>(blocks), 1, &finish_);
  }

  void Map(const std::string& kind, std::initializer_list<const void*> inputs, void* first,
           void* second = nullptr) {
    if (layout_.reduced == 0) return;
    std::vector<const void*> arrays = inputs;
    arrays.insert(arrays.end(), {first, second});
    const Plan plan = PlanFor(arrays);
    MapArguments arguments = {plan.view, {}, finish_.factors, {first, second}};
    std::copy(inputs.begin(), inputs.end(), arguments.inputs);
    Launch(plan, "map_" + kind, &arguments);
  }

 private:
  // The order of sums follows from the shape and from the alignment of what is summed, not from that of
  // outputs.
  Plan PlanFor(const std::vector<const void*>& arrays) const {
    const size_t vector = SizeOf(type_) * (type_ == ElementType::kDouble ? kWide<double> : kWide<float>);
    const auto is_aligned = [&](const void* array) {
      return reinterpret_cast<uintptr_t>(array) % vector == 0;
    };
    return MakePlan(layout_, type_, std::all_of(arrays.begin(), arrays.end(), is_aligned),
                    device_.processors());
  }

  double* Doubles(size_t count) { return static_cast<double*>(device_.Scratch(count * sizeof(double))); }

  void Launch(const Plan& plan, const std::string& kernel, const void* arguments) {
    const std::string form = std::string(plan.columns ? "_columns" : "_rows") + (plan.wide ? "_wide" : "");
    if (plan.groups == 0) return;
    device_.Launch(type_, kernel + form, plan.groups, static_cast<uint32_t>(plan.view.splits), arguments);
  }

  const Layout& layout_;
  const ElementType type_;
  Device& device_;
  FinishArguments finish_ = {};
};

Values Input(const void* data, ElementType type) {
  return {const_cast<void*>(data), static_cast<int32_t>(type)};
}
Values Output(void* data, ElementType type) { return {data, static_cast<int32_t>(type)}; }

}  // namespace

void Training(const Layout& layout, const TrainingArguments& a, Device& device) {
  Launches launches(layout, a.types.data, device);
  launches.Sum("moments", SumMoments::kSums, {a.x}, {});
  FinishArguments& finish = launches.finish();
  finish.epsilon = a.epsilon;
  finish.momentum = a.momentum;
  finish.unbiased_running_var = a.unbiased_running_var;
  finish.scale = Input(a.scale, a.types.scale);
  finish.bias = Input(a.bias, a.types.scale);
  finish.running_mean = Input(a.running_mean, a.types.stat);
  finish.running_var = Input(a.running_var, a.types.stat);
  finish.new_running_mean = Output(a.new_running_mean, a.types.stat);
  finish.new_running_var = Output(a.new_running_var, a.types.stat);
  finish.saved_mean = Output(a.saved_mean, a.types.stat);
  finish.saved_inv_std = Output(a.saved_inv_std, a.types.stat);
  launches.Finish("training", a.y == nullptr ? 0 : MapForward::kFactors);
  if (a.y != nullptr) launches.Map("forward", {a.x}, a.y);
}

void Statistics(const Layout& layout, const StatisticsArguments& a, Device& device) {
  Training(layout, ToTraining(a), device);
}

void Grad(const Layout& layout, const GradArguments& a, Device& device) {
  Launches launches(layout, a.types.data, device);
  const std::string kind = a.z == nullptr ? "grad" : "relu_grad", mode = a.training ? "_training" : "_frozen";
  const Values mean = Input(a.mean, a.types.stat);
  if (a.training || a.dscale != nullptr || a.dbias != nullptr || a.sums != nullptr) {
    launches.Sum(kind, SumGrad<false>::kSums, {a.x, a.dy, a.z}, mean);
  }
  FinishArguments& finish = launches.finish();
  finish.scale = Input(a.scale, a.types.scale);
  finish.mean = mean;
  finish.inv_std = Input(a.inv_std, a.types.stat);
  finish.dscale = Output(a.dscale, a.types.scale);
  finish.dbias = Output(a.dbias, a.types.scale);
  finish.of_rank = a.sums;
  const int factors = a.training ? MapGradTraining<false>::kFactors : MapGradFrozen<false>::kFactors;
  launches.Finish("grad" + mode, a.dx == nullptr ? 0 : factors);
  if (a.dx != nullptr) launches.Map(kind + mode, {a.x, a.dy, a.z}, a.dx);
}

void GradGrad(const Layout& layout, const GradGradArguments& a, Device& device) {
  Launches launches(layout, a.types.data, device);
  const std::string mode = a.training ? "grad_grad_training" : "grad_grad_frozen";
  const Values mean = Input(a.mean, a.types.stat);
  if (a.training || a.d_scale != nullptr) {
    launches.Sum("grad_grad", SumGradGrad::kSums, {a.x, a.dy, a.ddx}, mean);
  }
  FinishArguments& finish = launches.finish();
  finish.scale = Input(a.scale, a.types.scale);
  finish.mean = mean;
  finish.inv_std = Input(a.inv_std, a.types.stat);
  finish.ddscale = Input(a.ddscale, a.types.scale);
  finish.ddbias = Input(a.ddbias, a.types.scale);
  finish.dscale = Output(a.d_scale, a.types.scale);
  const bool maps = a.d_dy != nullptr || a.d_x != nullptr;
  const int factors = a.training ? MapGradGradTraining::kFactors : MapGradGradFrozen::kFactors;
  launches.Finish(mode, maps ? factors : 0);
  if (maps) launches.Map(mode, {a.x, a.dy, a.ddx}, a.d_dy, a.d_x);
}

void Moments(const Layout& layout, ElementType type, const void* x, double* moments, Device& device) {
  Launches launches(layout, type, device);
  launches.Sum("moments", SumMoments::kSums, {x}, {});
  launches.finish().of_rank = moments;
  launches.Finish("moments", 0);
}

void Apply(const Layout& layout, const ApplyArguments& a, Device& device) {
  Launches launches(layout, a.types.data, device);
  FinishArguments& finish = launches.finish();
  finish.scale = Input(a.scale, a.types.scale);
  finish.bias = Input(a.bias, a.types.scale);
  finish.mean = Input(a.batch_mean, ElementType::kDouble);
  finish.inv_std = Input(a.batch_inv_std, ElementType::kDouble);
  launches.Finish("apply", MapForward::kFactors);
  launches.Map("forward", {a.x}, a.y);
}

void GradApply(const Layout& layout, const GradApplyArguments& a, Device& device) {
  Launches launches(layout, a.types.data, device);
  FinishArguments& finish = launches.finish();
  finish.scale = Input(a.scale, a.types.scale);
  finish.mean = Input(a.batch_mean, ElementType::kDouble);
  finish.inv_std = Input(a.batch_inv_std, ElementType::kDouble);
  finish.ranks = a.ranks;
  finish.gathered_sums = a.gathered_sums;
  finish.batch_count = a.batch_count;
  launches.Finish("grad_apply", MapGradTraining<false>::kFactors);
  launches.Map(a.z == nullptr ? "grad_training" : "relu_grad_training", {a.x, a.dy, a.z}, a.dx);
}

}  // namespace bngrad::cuda
