// A line and an exit code instead of a fault that ends the process.
#pragma once

namespace bngrad {

// See bngrad_exit_on_fault in bngrad.h. Throws InvalidArgument, or Failure where the system takes no handler.
void ExitOnFault(const char* last_words, int code);

}  // namespace bngrad
