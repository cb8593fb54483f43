#include "c_api/crash_handler.hpp"

#include <csignal>
#include <cstdio>
#include <cstring>
#include <string>

#include "core/error.hpp"

#if defined(_WIN32)
#define NOMINMAX
#define WIN32_LEAN_AND_MEAN
#include <windows.h>

#include <cstdlib>
#else
#include <unistd.h>
#endif

namespace bngrad {
namespace {

char text[4096];
int code;

#if defined(_WIN32)

// A Windows exception and how the message ends.
struct Fault {
  DWORD exception;
  const char* suffix;
};
constexpr Fault kFaults[] = {
    {EXCEPTION_ACCESS_VIOLATION, " (access violation)\n"},
    {EXCEPTION_DATATYPE_MISALIGNMENT, " (misaligned access)\n"},
    {EXCEPTION_FLT_DIVIDE_BY_ZERO, " (floating-point division by zero)\n"},
    {EXCEPTION_FLT_INVALID_OPERATION, " (invalid floating-point operation)\n"},
    {EXCEPTION_ILLEGAL_INSTRUCTION, " (illegal instruction)\n"},
    {EXCEPTION_IN_PAGE_ERROR, " (page cannot be read)\n"},
    {EXCEPTION_INT_DIVIDE_BY_ZERO, " (integer division by zero)\n"},
    {EXCEPTION_PRIV_INSTRUCTION, " (privileged instruction)\n"},
    {EXCEPTION_STACK_OVERFLOW, " (stack overflow)\n"},
};
constexpr const char* kOther = " (unhandled exception)\n";

// For the console, whose code page is seldom UTF-8. Not on the stack, most of which may be used up.
wchar_t wide[sizeof text];

void Write(const char* message) {
  const HANDLE file = GetStdHandle(STD_ERROR_HANDLE);
  const int size = static_cast<int>(std::strlen(message));
  DWORD mode = 0, written = 0;
  if (GetConsoleMode(file, &mode)) {
    const int length = MultiByteToWideChar(CP_UTF8, 0, message, size, wide, static_cast<int>(sizeof text));
    WriteConsoleW(file, wide, static_cast<DWORD>(length), &written, nullptr);
  } else {
    WriteFile(file, message, static_cast<DWORD>(size), &written, nullptr);
  }
}

// Not exit(): it would run the code of other libraries, some of which may hold a lock.
void End(const char* suffix) {
  Write(text);
  Write(suffix);
  TerminateProcess(GetCurrentProcess(), static_cast<UINT>(code));
}

LONG WINAPI Filter(EXCEPTION_POINTERS* pointers) {
  const char* suffix = kOther;
  for (const Fault& fault : kFaults) {
    if (fault.exception == pointers->ExceptionRecord->ExceptionCode) suffix = fault.suffix;
  }
  End(suffix);
  return EXCEPTION_EXECUTE_HANDLER;
}

extern "C" void Abort(int) { End(" (abort)\n"); }

// A filter of unhandled exceptions, not a vectored handler, which would also see those that ctypes handles.
bool Install() {
  // For the handler of a stack overflow of this thread.
  constexpr ULONG kReserve = 1 << 16;
  ULONG reserve = kReserve;
  SetThreadStackGuarantee(&reserve);  // without it the default has to suffice
  SetUnhandledExceptionFilter(Filter);
  // Neither a message box nor a report to Microsoft: abort() only calls the handler.
  _set_abort_behavior(0, _WRITE_ABORT_MSG | _CALL_REPORTFAULT);
  return std::signal(SIGABRT, Abort) != SIG_ERR;
}

#else

struct Signal {
  int number;
  const char* suffix;  // of the message
};
constexpr Signal kSignals[] = {
    {SIGABRT, " (SIGABRT)\n"}, {SIGBUS, " (SIGBUS)\n"},   {SIGFPE, " (SIGFPE)\n"},
    {SIGILL, " (SIGILL)\n"},   {SIGSEGV, " (SIGSEGV)\n"},
};

void Write(const char* message) {
  // The result must be used, but there is nothing to do about a failure.
  if (write(STDERR_FILENO, message, std::strlen(message)) < 0) return;
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
  struct sigaction action = {};
  action.sa_handler = Exit;
  action.sa_flags = SA_ONSTACK;
  return sigemptyset(&action.sa_mask) == 0 && sigaction(number, &action, nullptr) == 0;
}

bool Install() {
  // A handler of a stack overflow needs another stack.
  alignas(64) static char stack[1 << 16];
  stack_t alternate = {};
  alternate.ss_sp = stack;
  alternate.ss_size = sizeof stack;
  bool installed = sigaltstack(&alternate, nullptr) == 0;
  for (const Signal& signal : kSignals) installed = Handle(signal.number) && installed;
  return installed;
}

#endif

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
  if (!Install()) throw Failure("the system refused to install a signal handler");
}

}  // namespace bngrad
