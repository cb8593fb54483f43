#include "c_api/crash_handler.hpp"

#include <csignal>
#include <cstdio>
#include <cstring>
#include <string>

#include "core/error.hpp"

#if defined(_WIN32)
#include <io.h>
#include <process.h>
#else
#include <unistd.h>
#endif

namespace bngrad {
namespace {

struct Signal {
  int number;
  const char* suffix;  // of the message
};
constexpr Signal kSignals[] = {
    {SIGABRT, " (SIGABRT)\n"}, {SIGFPE, " (SIGFPE)\n"}, {SIGILL, " (SIGILL)\n"}, {SIGSEGV, " (SIGSEGV)\n"},
#if defined(SIGBUS)
    {SIGBUS, " (SIGBUS)\n"},
#endif
};

char text[4096];
int code;

void Write(const char* message) {
  constexpr int kStderr = 2;
  // The result must be used, but there is nothing to do about a failure.
  if (write(kStderr, message, static_cast<unsigned>(std::strlen(message))) < 0) return;
}

// Calls async-signal-safe functions only: the heap may be corrupted.
extern "C" void Exit(int number) {
  Write(text);
  for (const Signal& signal : kSignals) {
    if (signal.number == number) Write(signal.suffix);
  }
  _exit(code);
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

// A handler of a stack overflow needs another stack.
bool SetAlternateStack() {
#if defined(_WIN32)
  return true;
#else
  alignas(64) static char stack[1 << 16];
  stack_t alternate = {};
  alternate.ss_sp = stack;
  alternate.ss_size = sizeof stack;
  return sigaltstack(&alternate, nullptr) == 0;
#endif
}

}  // namespace

void InstallCrashHandler(const char* message, int exit_code) {
  constexpr int kMaxCode = 125;  // shells use the codes above
  if (message == nullptr) throw InvalidArgument("message is null; expected a string");
  if (exit_code < 1 || exit_code > kMaxCode) {
    throw InvalidArgument("exit_code is " + std::to_string(exit_code) + "; expected 1 to " +
                          std::to_string(kMaxCode));
  }
  std::snprintf(text, sizeof text, "%s", message);
  code = exit_code;
  bool installed = SetAlternateStack();
  for (const Signal& signal : kSignals) installed = Handle(signal.number) && installed;
  if (!installed) throw Failure("the system refused to install a signal handler");
}

}  // namespace bngrad
