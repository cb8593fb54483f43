// RegisterCustomOps, the one function that ONNX Runtime looks up when it is handed this library.
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <list>
#include <memory>
#include <vector>

#include "bngrad.h"
#include "core/dispatch.hpp"
#include "ort/op.hpp"
#include "ort/status.hpp"

namespace bngrad {
namespace {

// A type variable that no input has is no choice: its outputs have the type that T is computed in.
bool Takes(const OpDefinition& op, const Types& types) {
  const auto chosen = [&](Role role, ElementType type) {
    const auto has = [role](const Parameter& input) { return input.role == role; };
    return type == ArithmeticOf(types.data) || std::any_of(op.inputs.begin(), op.inputs.end(), has);
  };
  return IsSupported(types) && chosen(Role::kT1, types.scale) && chosen(Role::kT2, types.stat);
}

std::vector<Types> TypesOf(const OpDefinition& op) {
  std::vector<Types> all;
  for (const ElementType data : kElementTypes) {
    for (const ElementType scale : kElementTypes) {
      for (const ElementType stat : kElementTypes) {
        if (Takes(op, {data, scale, stat})) all.push_back({data, scale, stat});
      }
    }
  }
  return all;
}

// One op for each combination of types, under one name: ONNX Runtime 1.19 takes no op with several inputs of
// undefined type.
struct Registration {
  struct Release {
    const OrtApi* api;
    void operator()(OrtCustomOpDomain* domain) const { ort::ReleaseCustomOpDomain(api, domain); }
  };

  const OrtApi* const api;
  const Registration* next = nullptr;
  const OpDefinition definitions[5] = {GradDefinition(), ReluGradDefinition(), GradGradDefinition(),
                                       TrainingDefinition(), StatisticsDefinition()};
  std::list<CustomOp> ops;
  std::unique_ptr<OrtCustomOpDomain, Release> domain;

  Registration(const OrtApi* ort_api, const OrtApi* lending_api) : api(ort_api), domain(nullptr, {ort_api}) {
    OrtCustomOpDomain* created = nullptr;
    Check(api, ort::CreateCustomOpDomain(api, "bngrad", &created));
    domain.reset(created);
    for (const OpDefinition& definition : definitions) {
      for (const Types& types : TypesOf(definition)) {
        ops.emplace_back(api, lending_api, definition, types);
        Check(api, ort::CustomOpDomain_Add(api, created, &ops.back()));
      }
    }
  }
};

// The domain for this copy of ONNX Runtime (a process may hold two). Domain and ops are made once and never
// released: sessions hold pointers to them for as long as they live, and at the end of the process nobody
// knows whether ONNX Runtime or this library goes first.
OrtCustomOpDomain* DomainFor(const OrtApi* api, const OrtApi* lending_api) {
  // No lock, and no guarded static: see Pool::OfProcess. Of threads that make one at once, one keeps it.
  static std::atomic<const Registration*> first{nullptr};
  const Registration* known = first;
  std::unique_ptr<Registration> made;
  for (;;) {
    for (const Registration* registration = known; registration != nullptr;
         registration = registration->next) {
      if (registration->api == api) return registration->domain.get();
    }
    if (made == nullptr) made = std::make_unique<Registration>(api, lending_api);
    made->next = known;
    if (first.compare_exchange_strong(known, made.get())) return made.release()->domain.get();
  }
}

// The API of a later version, null if there is none. An ONNX Runtime without it would say so on stderr, were
// it asked; its version is "1." and that of its newest API.
const OrtApi* LaterApi(const OrtApiBase* base, uint32_t version) {
  const std::string running = base->GetVersionString();
  const bool has = running.rfind("1.", 0) == 0 && std::strtoul(running.c_str() + 2, nullptr, 10) >= version;
  return has ? base->GetApi(version) : nullptr;
}

// An ONNX Runtime that is too old has an API of its own version, with the same function at the same index.
OrtStatus* TooOld(const OrtApiBase* base) {
  const OrtApi* const first = base->GetApi(1);
  const auto where = [] { return std::string("bngrad"); };
  return Guard(first, where, [&] {
    throw Failure(std::string("needs ONNX Runtime ") + ort::kApiVersionName + " or newer, this is " +
                  base->GetVersionString());
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
        // A wrong BNGRAD_ISA is better reported here than by the first node that runs.
        bngrad::ActiveIsa();
        const OrtApi* const lending_api = bngrad::LaterApi(base, ort::kLendingVersion);
        bngrad::Check(api, ort::AddCustomOpDomain(api, options, bngrad::DomainFor(api, lending_api)));
      });
}
