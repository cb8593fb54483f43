/* Installs the crash handler, then crashes: fault [abort|null|overflow|illegal|other] [MESSAGE [EXIT_CODE]].
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bngrad.h"

#if defined(_WIN32)
#define WIN32_LEAN_AND_MEAN
#include <windows.h>
#endif

/* Uses 4 KiB of stack per call. */
static int overflow(int calls) {
  volatile char here[4096];
  here[calls % 4096] = 1;
  return calls > 0 ? overflow(calls - 1) + here[calls % 4096] : 0;
}

int main(int argc, char** argv) {
  char error[256] = "";
  const char* const fault = argc > 1 ? argv[1] : "";
  if (bngrad_exit_on_fault(argc > 2 ? argv[2] : NULL, argc > 3 ? atoi(argv[3]) : 0, error, sizeof error)) {
    printf("%s\n", error);
    return 1;
  }
  if (strcmp(fault, "abort") == 0) abort();
  if (strcmp(fault, "null") == 0) *(volatile char*)strtoull("0", NULL, 10) = 1;
  if (strcmp(fault, "overflow") == 0) return overflow(1 << 30);
#if defined(_WIN32)
  /* There raise() asks for handlers of signals, and a fault is an exception. */
  if (strcmp(fault, "illegal") == 0) RaiseException(EXCEPTION_ILLEGAL_INSTRUCTION, 0, 0, NULL);
  if (strcmp(fault, "other") == 0) RaiseException(0xe0000001, 0, 0, NULL);
#else
  if (strcmp(fault, "illegal") == 0) raise(SIGILL);
#endif
  return 0;
}
