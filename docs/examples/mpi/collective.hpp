// A bngrad_collective (ops/bngrad.h) on MPI: how libbngrad.so exchanges data between the ranks.
#pragma once
#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <climits>
#include <cstdint>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <thread>

#include "bngrad.h"

class MpiCollective {
 public:
  // `comm` has to be one that nothing else uses. `timeout` is in seconds.
  MpiCollective(MPI_Comm comm, double timeout) : comm_(comm), timeout_(timeout) {
    MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
    MPI_Comm_rank(comm, &rank_);
    MPI_Comm_size(comm, &ranks_);
  }

  int rank() const { return rank_; }
  int ranks() const { return ranks_; }
  // Whether an exchange has failed or timed out. MPI may still use its buffers then, and cannot be finalized:
  // the only way out is MPI_Abort.
  bool broken() const { return broken_; }

  // The function for bngrad_set_collective; `context` is an MpiCollective.
  static int32_t Exchange(void* context, int32_t operation, const void* send, void* receive, int64_t size,
                          char* error, size_t error_size) {
    try {
      static_cast<MpiCollective*>(context)->Exchange(operation, send, receive, size);
      error[0] = '\0';
      return BNGRAD_OK;
    } catch (const std::exception& reason) {
      std::snprintf(error, error_size, "%s", reason.what());
      return BNGRAD_FAILED;
    }
  }

 private:
  void Exchange(int32_t operation, const void* send, void* receive, int64_t size) {
    MPI_Request request = MPI_REQUEST_NULL;
    const int count = Count(size);
    if (operation == BNGRAD_ALL_GATHER) {
      const int started = MPI_Iallgather(send, count, MPI_BYTE, receive, count, MPI_BYTE, comm_, &request);
      Wait("MPI_Iallgather", started, request);
    } else if (operation == BNGRAD_ALL_TO_ALL) {
      const int started = MPI_Ialltoall(send, count, MPI_BYTE, receive, count, MPI_BYTE, comm_, &request);
      Wait("MPI_Ialltoall", started, request);
    } else {
      throw std::runtime_error("unknown operation " + std::to_string(operation));
    }
  }

  static int Count(int64_t size) {
    if (size <= INT_MAX) return static_cast<int>(size);
    throw std::runtime_error(std::to_string(size) + " bytes for one rank; expected less than 2 GiB");
  }

  // Waits for an operation that was started with the code `code`, for at most `timeout_`.
  void Wait(const char* operation, int code, MPI_Request request) {
    if (broken_) throw std::runtime_error("an earlier exchange has failed");
    using Clock = std::chrono::steady_clock;
    const auto start = Clock::now();
    constexpr auto kBusy = std::chrono::milliseconds(1);  // before the processor is left to others
    for (int done = 0; code == MPI_SUCCESS;) {
      code = MPI_Test(&request, &done, MPI_STATUS_IGNORE);
      if (code != MPI_SUCCESS || done) break;
      const auto waited = Clock::now() - start;
      if (std::chrono::duration<double>(waited).count() > timeout_) {
        broken_ = true;
        throw std::runtime_error(std::string(operation) + ": not all ranks answered in " +
                                 std::to_string(timeout_) + " s, says rank " + std::to_string(rank_));
      }
      if (waited > kBusy) std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    if (code == MPI_SUCCESS) return;
    broken_ = true;
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    MPI_Error_string(code, text, &length);
    throw std::runtime_error(std::string(operation) + " on rank " + std::to_string(rank_) + ": " + text);
  }

  const MPI_Comm comm_;
  const double timeout_;
  int rank_ = 0, ranks_ = 1;
  bool broken_ = false;
};
