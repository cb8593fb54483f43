// RegisterCustomOps, the entry point that ONNX Runtime looks up in a custom-op library.
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <list>
#include <memory>
#include <utility>
#include <vector>

#include "bngrad.h"
#include "core/dispatch.hpp"
#include "cuda/ptx.hpp"
#include "ort/cuda.hpp"
#include "ort/op.hpp"
#include "ort/status.hpp"

namespace bngrad {
namespace {

// True if the op is registered for these types. Outputs whose type variable no input has use the arithmetic
// type of T. An op without T is registered once.
bool Accepts(const OpDefinition& op, const Types& types) {
  const auto has = [&](Role role) {
    const auto is_it = [role](const Parameter& input) { return input.role == role; };
    return std::any_of(op.inputs.begin(), op.inputs.end(), is_it);
  };
  const auto is_valid = [&](Role role, ElementType type) {
    return type == ArithmeticOf(types.data) || has(role);
  };
  const bool fits = has(Role::kWide) ? SizeOf(types.data) >= sizeof(float)
                                     : has(Role::kT) || types.data == ElementType::kDouble;
  return IsSupported(types) && fits && is_valid(Role::kT1, types.scale) && is_valid(Role::kT2, types.stat);
}

std::vector<Types> TypesOf(const OpDefinition& op) {
  std::vector<Types> all;
  for (const ElementType data : kElementTypes) {
    for (const ElementType scale : kElementTypes) {
      for (const ElementType stat : kElementTypes) {
        if (Accepts(op, {data, scale, stat})) all.push_back({data, scale, stat});
      }
    }
  }
  return all;
}

std::vector<OpDefinition> Definitions() {
  std::vector<OpDefinition> all = {GradDefinition(),
                                   ReluGradDefinition(),
                                   GradGradDefinition(),
                                   TrainingDefinition(),
                                   StatisticsDefinition(),
                                   MomentsDefinition(),
                                   MergeMomentsDefinition(),
                                   ApplyDefinition(),
                                   GradSumsDefinition(),
                                   ReluGradSumsDefinition(),
                                   GradApplyDefinition(),
                                   ReluGradApplyDefinition(),
                                   AllGatherDefinition(),
                                   AllReduceDefinition(),
                                   AdamUpdateDefinition(),
                                   ConvGradDefinition(),
                                   ConvChannelsLastDefinition(),
                                   BatchedConvDefinition(),
                                   BatchedConvTransposeDefinition(),
                                   DepthwiseConvDefinition(),
                                   MaxPoolGradDefinition()};
  for (const auto definitions : {DepthwiseConvGradDefinitions, GroupUpdateDefinitions}) {
    for (OpDefinition& definition : definitions()) all.push_back(std::move(definition));
  }
  return all;
}

// The domain with its ops: one op per combination of types, all with the same name, since ONNX Runtime 1.19
// does not support several inputs of undefined type. The op of a GPU has the same name and types.
//
// An op that has a kernel for a GPU only is left out of sessions on the CPU: ONNX Runtime inlines a function
// of the model only where nothing is registered under its name, for any provider. An op whose data would be
// copied to the CPU and back is left out of sessions on a GPU unless it has a kernel there.
struct Registration {
  struct Release {
    const OrtApi* api;
    void operator()(OrtCustomOpDomain* domain) const { ort::ReleaseCustomOpDomain(api, domain); }
  };

  const OrtApi* const api;
  const bool for_device;
  const Registration* next = nullptr;
  const std::vector<OpDefinition> definitions = Definitions();
  std::list<CustomOp> ops;
  std::unique_ptr<OrtCustomOpDomain, Release> domain;

  // The APIs of later versions may be null.
  Registration(const OrtApi* ort_api, const OrtApi* shape_api, const OrtApi* device_api, bool device)
      : api(ort_api), for_device(device), domain(nullptr, {ort_api}) {
    OrtCustomOpDomain* created = nullptr;
    Check(api, ort::CreateCustomOpDomain(api, "bngrad", &created));
    domain.reset(created);
    for (const OpDefinition& definition : definitions) {
      const bool on_cuda = cuda::HasKernels() && device_api != nullptr && definition.node.has_device;
      if (for_device ? definition.never_copied && !on_cuda : !definition.node.has_host) continue;
      for (const Types& types : TypesOf(definition)) {
        if (on_cuda) Add({api, shape_api, device_api, definition, types});
        if (definition.node.has_host && (!on_cuda || !kCudaIsCpu))
          Add({api, shape_api, nullptr, definition, types});
      }
    }
  }

  void Add(const CustomOp& op) {
    ops.push_back(op);
    Check(api, ort::CustomOpDomain_Add(api, domain.get(), &ops.back()));
  }
};

// The domain for this copy of ONNX Runtime, of which a process may have several, and for sessions on a GPU or
// on the CPU. It is created once and never
// released: sessions keep pointers to it, and the order in which libraries are unloaded at exit is not
// defined.
OrtCustomOpDomain* DomainFor(const OrtApi* api, const OrtApi* shape_api, const OrtApi* device_api,
                             bool for_device) {
  // Lock-free: see Pool::Instance. Of concurrent first calls, one stores its registration.
  static std::atomic<const Registration*> first{nullptr};
  const Registration* known = first;
  std::unique_ptr<Registration> made;
  for (;;) {
    for (const Registration* registration = known; registration != nullptr;
         registration = registration->next) {
      if (registration->api == api && registration->for_device == for_device) {
        return registration->domain.get();
      }
    }
    if (made == nullptr) made = std::make_unique<Registration>(api, shape_api, device_api, for_device);
    made->next = known;
    if (first.compare_exchange_strong(known, made.get())) return made.release()->domain.get();
  }
}

// The API of a later version, or null. GetApi prints to stderr if the version is not supported, so the
// version of ONNX Runtime, "1." followed by its newest API version, is compared first.
const OrtApi* LaterApi(const OrtApiBase* base, uint32_t version) {
  const std::string running = base->GetVersionString();
  const bool has = running.rfind("1.", 0) == 0 && std::strtoul(running.c_str() + 2, nullptr, 10) >= version;
  return has ? base->GetApi(version) : nullptr;
}

// True if the options have the entry bngrad.device = cuda: they do not tell their providers.
bool IsForDevice(const OrtApi* api, const OrtSessionOptions* options) {
  char value[8] = "";
  size_t size = sizeof(value);
  OrtStatus* const status = ort::GetSessionConfigEntry(api, options, "bngrad.device", value, &size);
  if (status == nullptr) return std::strcmp(value, "cuda") == 0;
  ort::ReleaseStatus(api, status);  // there is none
  return false;
}

// CreateStatus has the same index in API version 1, which every ONNX Runtime supports.
OrtStatus* TooOld(const OrtApiBase* base) {
  const OrtApi* const first = base->GetApi(1);
  const auto where = [] { return std::string("bngrad"); };
  return Guard(first, where, [&] {
    throw Failure(std::string("requires ONNX Runtime ") + ort::kApiVersionName + " or newer; this is " +
                  base->GetVersionString() + ". Upgrade ONNX Runtime");
  });
}

}  // namespace
}  // namespace bngrad

extern "C" BNGRAD_EXPORT OrtStatus* RegisterCustomOps(OrtSessionOptions* options, const OrtApiBase* base) {
  const OrtApi* const api = base->GetApi(ort::kApiVersion);
  if (api == nullptr) return bngrad::TooOld(base);
  return bngrad::Guard(
      api, [] { return std::string("bngrad"); },
      [&] {
        // Reports an invalid BNGRAD_ISA at registration instead of at the first run.
        bngrad::ActiveIsa();
        const OrtApi* const shape_api = bngrad::LaterApi(base, ort::kShapeReferenceVersion);
        const OrtApi* const device_api = bngrad::LaterApi(base, ort::kAllocatorVersion);
        bngrad::Check(api, ort::AddCustomOpDomain(api, options,
                                                  bngrad::DomainFor(api, shape_api, device_api,
                                                                    bngrad::IsForDevice(api, options))));
      });
}
