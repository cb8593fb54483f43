#include "c_api/crash_handler.hpp"

#include <csignal>
#include <cstdio>
#include <cstring>
#include <string>

#include "core/error.hpp"

#if defined(_WIN32)
// Written for Windows, not tried with it yet.
#include <io.h>
#include <process.h>
#else
#include <unistd.h>
#endif

namespace bngrad {
namespace {

struct Fault {
  int number;
  const char* ending;  // of the line
};
constexpr Fault kFaults[] = {
    {SIGABRT, " (SIGABRT)\n"}, {SIGFPE, " (SIGFPE)\n"}, {SIGILL, " (SIGILL)\n"}, {SIGSEGV, " (SIGSEGV)\n"},
#if defined(SIGBUS)
    {SIGBUS, " (SIGBUS)\n"},
#endif
};

char line[4096];
int exit_code;

void Write(const char* text) {
  constexpr int kStderr = 2;
  // Nobody could be told of a failure.
  if (write(kStderr, text, static_cast<unsigned>(std::strlen(text))) < 0) return;
}

// Calls nothing but what POSIX allows here: the heap may be what is broken.
extern "C" void Exit(int number) {
  Write(line);
  for (const Fault& fault : kFaults) {
    if (fault.number == number) Write(fault.ending);
  }
  _exit(exit_code);
}

bool Handle(int number) {
#if defined(_WIN32)
  return std::signal(number, Exit) != SIG_ERR;
#else
  struct sigaction action = {};
  action.sa_handler = Exit;
  action.sa_flags = SA_ONSTACK;
  return sigemptyset(&action.sa_mask) == 0 && sigaction(number, &action, nullptr) == 0;
#endif
}

// Where the stack has overflowed there is none left to handle that on.
bool UseOtherStack() {
#if defined(_WIN32)
  return true;
#else
  alignas(64) static char stack[1 << 16];
  stack_t other = {};
  other.ss_sp = stack;
  other.ss_size = sizeof stack;
  return sigaltstack(&other, nullptr) == 0;
#endif
}

}  // namespace

void ExitOnFault(const char* last_words, int code) {
  constexpr int kMostCode = 125;  // shells have those above for themselves
  if (last_words == nullptr) throw InvalidArgument("last_words is null, expected a line");
  if (code < 1 || code > kMostCode) {
    throw InvalidArgument("code is " + std::to_string(code) + ", expected 1 to " + std::to_string(kMostCode));
  }
  std::snprintf(line, sizeof line, "%s", last_words);
  exit_code = code;
  bool handled = UseOtherStack();
  for (const Fault& fault : kFaults) handled = Handle(fault.number) && handled;
  if (!handled) throw Failure("the system takes no handler of faults");
}

}  // namespace bngrad
