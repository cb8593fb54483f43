// Trains the digits network on all ranks of an MPI job: mpiexec -n RANKS train_mpi FOLDER LIBRARY [STEPS
// [RATE [TIMEOUT]]]
//
// FOLDER has the files of `prepare.py --layout named`, with a step that was made with --sync. Each rank takes
// its part of the rows of each batch. Rank 0 prints, and writes the trained state to trained.safetensors.
// LIBRARY is the file that `bngrad library-path` prints. An exchange fails after TIMEOUT seconds.
#include <dlfcn.h>

#include <cstdlib>
#include <iostream>
#include <string_view>

#include "collective.hpp"
#include "step.hpp"

namespace {

// The functions of bngrad.h that join the ranks, in the copy of the library that ONNX Runtime uses:
// RegisterCustomOpsLibrary loads the same file, which a process has once.
class Library {
 public:
  explicit Library(const char* path) : handle_(dlopen(path, RTLD_NOW | RTLD_LOCAL)) {
    if (handle_ == nullptr) throw std::runtime_error(dlerror());
  }

  void SetCollective(bngrad_collective function, MpiCollective& collective) const {
    Call<decltype(bngrad_set_collective)>("bngrad_set_collective", function, static_cast<void*>(&collective),
                                          collective.rank(), collective.ranks());
  }
  // Fails on all ranks if they come with different keys.
  void Meet(const std::string& key) const {
    Call<decltype(bngrad_all_gather)>("bngrad_all_gather", key.c_str(), int64_t{0}, nullptr, nullptr);
  }
  // Tells the other ranks, which wait for this one, why it stops.
  void Fail(const char* message) const {
    Call<decltype(bngrad_fail_collective)>("bngrad_fail_collective", message);
  }

 private:
  template <class Function, class... Arguments>
  void Call(const char* name, Arguments... arguments) const {
    auto* const function = reinterpret_cast<Function*>(dlsym(handle_, name));
    if (function == nullptr) throw std::runtime_error(dlerror());
    char error[1024] = "";
    if (function(arguments..., error, sizeof error) != BNGRAD_OK) throw std::runtime_error(error);
  }

  void* const handle_;
};

struct Options {
  const char* folder;
  const char* library;
  int64_t steps;
  float rate;
};

std::string HashOf(const Tensors& tensors) {
  size_t hash = 0;
  for (const auto& [name, tensor] : tensors) {
    const std::string_view bytes(tensor.bytes.data(), tensor.bytes.size());
    hash = 31 * hash + std::hash<std::string_view>()(bytes) + std::hash<std::string>()(name);
  }
  return std::to_string(hash);
}

// Sets `trained` when the last exchange has been made.
void Train(const Options& given, const Library& library, const MpiCollective& mpi, bool& trained) {
  const std::string folder = given.folder;
  Ort::Env env(ORT_LOGGING_LEVEL_WARNING, "train");
  Ort::SessionOptions options;
  options.SetIntraOpNumThreads(1);  // each rank would have a thread for each core
  options.RegisterCustomOpsLibrary(given.library);
  Ort::Session session(env, (folder + "/step.onnx").c_str(), options);
  const nlohmann::json info = StepInfo(session);
  if (!info.value("synchronized", false))
    throw std::runtime_error("step.onnx is not synchronized; make it with bngrad step --sync");

  Tensors digits = ReadSafetensors(folder + "/digits.safetensors");
  Tensors initial = ReadSafetensors(folder + "/step.safetensors");
  // Ranks with different files or rates would train different models.
  library.Meet("state " + HashOf(initial) + ", data " + HashOf(digits) + ", rate " +
               std::to_string(given.rate));
  TrainingStep training(session, info, std::move(initial), given.rate);

  const Tensor& batches = Find(digits, "batches");
  const int64_t batch = batches.shape[1], steps = std::min(given.steps, batches.shape[0]);
  const int64_t first = batch * mpi.rank() / mpi.ranks(), end = batch * (mpi.rank() + 1) / mpi.ranks();
  for (int64_t step = 0; step < steps; ++step) {
    const int32_t* const rows = batches.data<int32_t>() + step * batch + first;
    Tensor images = Pick(Find(digits, "training/images"), rows, end - first);
    Tensor labels = Pick(Find(digits, "training/labels"), rows, end - first);
    const float loss = training.Run(images, labels);  // of the whole batch, on each rank
    if (mpi.rank() == 0) std::cout << "step " << step + 1 << "  loss " << loss << "\n";
  }
  trained = true;
  if (mpi.rank() == 0) training.Write(folder + "/trained.safetensors");
}

// Returns the exit code.
int Run(const Options& given, MpiCollective& mpi) {
  try {
    const Library library(given.library);
    library.SetCollective(MpiCollective::Exchange, mpi);  // before the session is made
    bool trained = false;
    try {
      Train(given, library, mpi, trained);
      return 0;
    } catch (const std::exception& error) {
      std::cerr << "train_mpi, rank " << mpi.rank() << ": " << error.what() << "\n";
      if (!trained) library.Fail(error.what());
    }
  } catch (const std::exception& error) {
    std::cerr << "train_mpi, rank " << mpi.rank() << ": " << error.what() << "\n";
  }
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  // Exchanges are made on the thread that calls Run.
  int level = MPI_THREAD_SINGLE;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &level);
  const Options given = {argc > 1 ? argv[1] : "", argc > 2 ? argv[2] : "",
                         argc > 3 ? std::atoll(argv[3]) : 330,
                         argc > 4 ? std::strtof(argv[4], nullptr) : 0.05F};
  const double timeout = argc > 5 ? std::strtod(argv[5], nullptr) : 60;
  MPI_Comm comm = MPI_COMM_NULL;
  MPI_Comm_dup(MPI_COMM_WORLD, &comm);
  MpiCollective mpi(comm, timeout);
  int code = 2;
  if (argc < 3 || argc > 6 || given.steps < 1 || !(given.rate > 0) || !(timeout > 0)) {
    if (mpi.rank() == 0)
      std::cerr << "usage: train_mpi FOLDER LIBRARY [STEPS [RATE [TIMEOUT]]], with numbers above 0\n";
  } else if (level < MPI_THREAD_FUNNELED) {
    std::cerr << "train_mpi: MPI has no threads (MPI_THREAD_FUNNELED)\n";
  } else {
    std::cout.precision(9);
    code = Run(given, mpi);
  }
  std::cout.flush();
  if (mpi.broken()) MPI_Abort(comm, code);
  MPI_Finalize();
  return code;
}
