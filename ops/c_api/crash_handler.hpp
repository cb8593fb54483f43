// A crash handler: a fatal signal prints a message and exits.
#pragma once

namespace bngrad {

// See bngrad_exit_on_fault in bngrad.h. Throws InvalidArgument, or Failure if a handler cannot be installed.
void InstallCrashHandler(const char* message, int exit_code);

}  // namespace bngrad
