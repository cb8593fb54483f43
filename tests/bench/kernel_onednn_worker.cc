// oneDNN 2's kernels for bench_kernels.py, which compiles this: the protocol is that of kernel_serve.py.
//
// Outputs are allocated beforehand. The three layouts share memory, each of them large enough for the one
// that pads.
#include <omp.h>

#include <algorithm>
#include <cstdint>
#include <iostream>
#include <map>
#include <oneapi/dnnl/dnnl.hpp>
#include <sstream>
#include <string>
#include <unordered_map>
#include <vector>

#include "kernel_serve.hpp"

namespace {

using dnnl::memory;

struct Way {
  dnnl::batch_normalization_backward primitive;
  std::unordered_map<int, memory> arguments;
};

struct Worker {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  std::map<std::string, Way> ways;
  std::vector<memory> keep;

  void Run(const std::string& name) {
    Way& way = ways.at(name);
    way.primitive.execute(stream, way.arguments);
    stream.wait();
  }

  std::string Prepare(std::istringstream& words) {
    std::string dtype, op, layout;
    int frozen = 0;
    words >> dtype >> op >> frozen >> layout;
    memory::dims extents;
    for (int64_t extent = 0; words >> extent;) extents.push_back(extent);
    ways.clear();
    keep.clear();
    const std::map<std::string, memory::data_type> types = {{"float", memory::data_type::f32},
                                                            {"bfloat16", memory::data_type::bf16}};
    if (op != "grad") return "refused only the gradient is asked of it";
    if (types.count(dtype) == 0) return "refused its gradient has no " + dtype;
    using Tag = memory::format_tag;
    const std::map<size_t, std::map<std::string, Tag>> tags = {
        {2, {{"NCHW", Tag::nc}}},
        {3, {{"NCHW", Tag::ncw}, {"NHWC", Tag::nwc}, {"nChw16c", Tag::nCw16c}}},
        {4, {{"NCHW", Tag::nchw}, {"NHWC", Tag::nhwc}, {"nChw16c", Tag::nChw16c}}},
        {5, {{"NCHW", Tag::ncdhw}, {"NHWC", Tag::ndhwc}, {"nChw16c", Tag::nCdhw16c}}}};
    if (tags.count(extents.size()) == 0) return "refused it has no rank " + std::to_string(extents.size());

    std::map<std::string, memory::desc> layouts;
    size_t bytes = 0;
    for (const auto& [name, tag] : tags.at(extents.size())) {
      // Beside our NHWC, its own; beside our NCHW, whatever is its best.
      if (layout == "NHWC" && name != "NHWC") continue;
      layouts[name] = memory::desc(extents, types.at(dtype), tag);
      bytes = std::max(bytes, layouts[name].get_size());
    }
    // Data of ones has gradients of zero and no value that is slow to compute with; layouts read it as they
    // like.
    std::vector<memory> data;
    for (int i = 0; i < 3; ++i) data.push_back(Filled({static_cast<int64_t>((bytes + 3) / 4)}));
    keep = data;
    const memory::dims channels = {extents[1]};
    const memory mean = Filled(channels), variance = Filled(channels), scale = Filled(channels);
    const memory dscale = Filled(channels), dbias = Filled(channels);
    for (const auto& [name, desc] : layouts) {
      try {
        ways[name] = Make(desc, frozen != 0);
      } catch (const dnnl::error& error) {
        std::cerr << "oneDNN " << name << ": " << error.what() << std::endl;
        continue;
      }
      const auto view = [&](int i) { return memory(desc, engine, data[i].get_data_handle()); };
      ways[name].arguments = {{DNNL_ARG_DIFF_DST, view(0)},  {DNNL_ARG_SRC, view(1)},
                              {DNNL_ARG_DIFF_SRC, view(2)},  {DNNL_ARG_MEAN, mean},
                              {DNNL_ARG_VARIANCE, variance}, {DNNL_ARG_SCALE, scale},
                              {DNNL_ARG_SHIFT, scale},  // not read, but missed
                              {DNNL_ARG_DIFF_SCALE, dscale}, {DNNL_ARG_DIFF_SHIFT, dbias}};
      Run(name);
    }
    if (ways.empty()) return "refused it has no kernel for " + dtype;
    std::string answer = "ways";
    for (const auto& way : ways) answer += " " + way.first;
    return answer;
  }

  Way Make(const memory::desc& desc, bool frozen) {
    using Flags = dnnl::normalization_flags;
    auto flags = Flags::use_scale | Flags::use_shift;
    if (frozen) flags |= Flags::use_global_stats;
    const float epsilon = 1e-5F;
    const dnnl::batch_normalization_forward::primitive_desc hint(
        {dnnl::prop_kind::forward_training, desc, epsilon, flags}, engine);
    const dnnl::batch_normalization_backward::primitive_desc backward(
        {dnnl::prop_kind::backward, desc, desc, epsilon, flags}, engine, hint);
    return {dnnl::batch_normalization_backward(backward), {}};
  }

  memory Filled(const memory::dims& extents) {
    const memory::dims strides(extents.size(), 1);
    memory result(memory::desc(extents, memory::data_type::f32, strides), engine);
    float* values = static_cast<float*>(result.get_data_handle());
    std::fill(values, values + extents[0], 1.0F);
    return result;
  }
};

}  // namespace

int main(int, char** argv) {
  omp_set_num_threads(std::stoi(argv[1]));
  Worker worker;
  Serve(worker);
}
