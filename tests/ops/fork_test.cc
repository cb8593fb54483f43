// fork() at critical moments. Each case is a process, which an alarm ends if a child waits for a lock or a
// thread that does not exist in it.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "bngrad.h"
#include "ort/abi.hpp"

// Overrides getpid for the library: as in PID namespaces, parent and child have the same identifier.
extern "C" __attribute__((visibility("default"))) pid_t getpid() { return 1; }

extern "C" OrtStatus* RegisterCustomOps(OrtSessionOptions*, const OrtApiBase*);

namespace {

void Expect(bool condition, const char* what) {
  if (condition) return;
  std::printf("failed: %s\n", what);
  std::fflush(stdout);
  _exit(1);
}

// Runs body in a child and expects it to return within a minute.
template <class Body>
void InChild(const Body& body) {
  const pid_t child = fork();
  Expect(child >= 0, "there is a child");
  if (child == 0) {
    alarm(60);
    body();
    _exit(7);
  }
  int status = 0;
  Expect(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 7,
         "the child ends");
}

// Tasks for four threads.
void Add() {
  constexpr int64_t kCount = 1 << 20;
  const std::vector<float> a(kCount, 1), b(kCount, 2);
  std::vector<float> c(kCount, 0);
  char error[256] = "";
  Expect(bngrad_add_arrays(kCount, a.data(), b.data(), c.data(), 4, error, sizeof error) == BNGRAD_OK, error);
  for (const float sum : c) Expect(sum == 3, "sums are right");
}

int Threads() {
  int count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) ++count;
  return count;
}

void ChildStartsItsOwnThreads() {
  Add();
  InChild([] {
    Expect(Threads() == 1, "a child begins with one thread");
    Add();
    Expect(Threads() == 4, "and starts its own");
    InChild([] {
      Add();
      Expect(Threads() == 4, "so does its child");
    });
  });
}

void ForkDuringCalls() {
  std::atomic<bool> ended{false};
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 2; ++caller) {
    callers.emplace_back([&ended] {
      while (!ended) Add();
    });
  }
  for (int i = 0; i < 30; ++i) InChild(Add);
  ended = true;
  for (std::thread& caller : callers) caller.join();
}

// A mock of ONNX Runtime. The first thread that creates a domain blocks until may_go_on is set.
std::atomic<bool> inside{false}, may_go_on{false};
std::atomic<int> created{0}, released{0};
std::atomic<OrtCustomOpDomain*> added{nullptr};

extern "C" OrtStatus* CreateDomain(const char*, OrtCustomOpDomain** out) {
  const int number = ++created;
  *out = reinterpret_cast<OrtCustomOpDomain*>(static_cast<uintptr_t>(number));
  if (number > 1) return nullptr;
  inside = true;
  while (!may_go_on) std::this_thread::yield();
  return nullptr;
}
extern "C" OrtStatus* AddOp(OrtCustomOpDomain*, const OrtCustomOp* op) {
  Expect(op->GetInputTypeCount(op) > 0 && std::strlen(op->GetName(op)) > 0, "ops are defined");
  return nullptr;
}
extern "C" OrtStatus* AddDomain(OrtSessionOptions*, OrtCustomOpDomain* domain) {
  added = domain;
  return nullptr;
}
extern "C" void ReleaseDomain(OrtCustomOpDomain*) { ++released; }
extern "C" OrtStatus* GetEntry(const OrtSessionOptions*, const char*, char*, size_t*) { return nullptr; }

OrtApi api;

template <size_t kIndex, class Result, class... Arguments>
void Install(const ort::Function<kIndex, Result(Arguments...)>&, Result (*function)(Arguments...)) {
  api.functions[kIndex] = reinterpret_cast<void (*)()>(function);
}

void Register() {
  Install(ort::CreateCustomOpDomain, CreateDomain);
  Install(ort::CustomOpDomain_Add, AddOp);
  Install(ort::AddCustomOpDomain, AddDomain);
  Install(ort::ReleaseCustomOpDomain, ReleaseDomain);
  Install(ort::GetSessionConfigEntry, GetEntry);
  const OrtApiBase base = {[](uint32_t) -> const OrtApi* { return &api; },
                           []() -> const char* { return "1.17.0"; }};
  Expect(RegisterCustomOps(nullptr, &base) == nullptr, "ops are registered");
}

void ForkDuringRegistration() {
  std::thread first(Register);
  while (!inside) std::this_thread::yield();
  InChild([] {
    Register();
    Expect(created == 2 && released == 0, "the child has a domain");
  });
  Register();
  OrtCustomOpDomain* const kept = added;
  Expect(created == 2 && released == 0, "another thread does not wait");
  may_go_on = true;
  first.join();
  Expect(created == 2 && released == 1 && added == kept, "of two domains one is kept");
  Register();
  Expect(created == 2 && released == 1 && added == kept, "and used again");
}

}  // namespace

int main(int argc, char** argv) {
  alarm(300);
  const std::string name = argc > 1 ? argv[1] : "";
  if (name == "threads") {
    ChildStartsItsOwnThreads();
  } else if (name == "callers") {
    ForkDuringCalls();
  } else if (name == "registration") {
    ForkDuringRegistration();
  } else {
    Expect(false, "expected threads, callers or registration");
  }
  std::printf("ok\n");
}
