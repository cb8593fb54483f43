// BatchedConv and BatchedConvTranspose as ONNX Runtime ops, for the CPU only. ONNX Runtime's kernels of Conv
// and ConvTranspose read all weights again for each image. Here Conv has the images as one more spatial
// dimension, and ConvTranspose is one Gemm of several images and sums over windows.
#include <algorithm>
#include <string>
#include <vector>

#include "core/col2im.hpp"
#include "core/exchange.hpp"
#include "kernels/tuning.h"
#include "ort/op.hpp"
#include "ort/stock_op.hpp"
#include "ort/window_node.hpp"

namespace bngrad {
namespace {

// A version that the kernels of all supported releases have.
constexpr int kOpVersion = 11;

// The values of an attribute for one more spatial dimension, the first.
Shape With(int64_t value, const Shape& values) {
  Shape all = Vector(value);
  for (const int64_t v : values) all.push_back(v);
  return all;
}

// The shape of n images as one image.
Shape Merged(const Shape& shape, int64_t n) {
  Shape merged = Vector(1);
  merged.push_back(shape[1]);
  merged.push_back(n);
  for (size_t i = 2; i < shape.size(); ++i) merged.push_back(shape[i]);
  return merged;
}

// The shape of the weights for it.
Shape Lifted(const Shape& w) {
  Shape lifted = Vector(w[0]);
  lifted.push_back(w[1]);
  lifted.push_back(1);
  for (size_t i = 2; i < w.size(); ++i) lifted.push_back(w[i]);
  return lifted;
}

Shape Matrix(int64_t rows, int64_t columns) {
  Shape shape = Vector(rows);
  shape.push_back(columns);
  return shape;
}

// The attributes, and what both ops check.
class BatchedConvNode : public WindowNode<Node> {
 public:
  explicit BatchedConvNode(const NodeAttributes& a) : WindowNode(a, 2) {}

  void Run(const RunContext& c, const Types&, Parallel& parallel) const final {
    const Shape &x = c.ShapeOf(0), &w = c.ShapeOf(1);
    CheckX(x);
    const Shape y = OutputShape(x, w);
    const auto* const x_data = static_cast<const float*>(c.Data(0, x, ""));
    const auto* const w_data = static_cast<const float*>(c.Data(1, w, ""));
    auto* const y_data = static_cast<float*>(c.Output(0, y));
    if (y_data == nullptr || x[0] == 0 || Plane(y) == 0) return;
    Compute(c, {x_data, w_data, y_data, x, w, y}, parallel);
  }

 protected:
  struct Arrays {
    const float *x, *w;
    float* y;
    Shape x_shape, w_shape, y_shape;
  };

  // Throws InvalidArgument unless W fits.
  virtual Shape OutputShape(const Shape& x, const Shape& w) const = 0;
  // No array is empty.
  virtual void Compute(const RunContext& c, const Arrays& a, Parallel& parallel) const = 0;

  // `order` is that of the channels of W.
  void CheckW(const Shape& x, const Shape& w, int64_t m, const Shape& channels, const char* order) const {
    Shape expected = channels;
    for (const int64_t size : kernel_) expected.push_back(size);
    if (m > 0 && !(w != expected)) return;
    throw InvalidArgument("W has shape " + ToString(w) + "; expected " + order + " and kernel_shape " +
                          ToString(kernel_) + ", with C the channels of X, " + std::to_string(x[1]));
  }

  int64_t Plane(const Shape& shape) const {
    int64_t plane = 1;
    for (size_t i = 0; i < rank_; ++i) plane *= shape[i + 2];
    return plane;
  }

  // Images that are computed together, if each has a number of columns of a product: about the same in each
  // part.
  static int64_t Together(int64_t images, int64_t columns, int64_t most_columns) {
    if (columns == 1 && images < kFewColumns) return 1;
    const int64_t most = std::min(images, std::max<int64_t>(1, most_columns / columns));
    const int64_t parts = (images + most - 1) / most;
    return (images + parts - 1) / parts;
  }

 private:
  void CheckX(const Shape& x) const {
    bool fits = x.size() == rank_ + 2;
    for (size_t i = 1; fits && i < x.size(); ++i) fits = x[i] > 0 && (i == 1 || x[i] <= INT32_MAX);
    if (fits) return;
    throw InvalidArgument("X has shape " + ToString(x) + "; expected [N, C], with a C of 1 or more, and " +
                          std::to_string(rank_) + " spatial dimensions of 1 to " + std::to_string(INT32_MAX));
  }
};

class BatchedConvForwardNode final : public BatchedConvNode {
 public:
  explicit BatchedConvForwardNode(const NodeAttributes& a)
      : BatchedConvNode(a), conv_(a, "Conv", kOpVersion, Attributes()) {}

 private:
  std::vector<StockOp::Attribute> Attributes() const {
    Shape pads = Vector(0);
    for (size_t i = 0; i < 2 * rank_; ++i) {
      if (i == rank_) pads.push_back(0);
      pads.push_back(pads_[i]);
    }
    return {{"kernel_shape", With(1, kernel_)},
            {"strides", With(1, strides_)},
            {"dilations", With(1, dilations_)},
            {"pads", pads}};
  }

  Shape OutputShape(const Shape& x, const Shape& w) const override {
    const int64_t m = w.empty() ? 0 : w[0];
    CheckW(x, w, m, Matrix(m, x[1]), "[M, C]");
    Shape y = Matrix(x[0], m);
    for (size_t i = 0; i < rank_; ++i) {
      const int64_t room = x[i + 2] + pads_[i] + pads_[i + rank_] - Extent(i);
      y.push_back(room < 0 ? 0 : room / strides_[i] + 1);
    }
    return y;
  }

  void Compute(const RunContext& c, const Arrays& a, Parallel& parallel) const override {
    const int64_t channels = a.x_shape[1], m = a.y_shape[1], all = a.x_shape[0];
    const int64_t plane_x = Plane(a.x_shape), plane_y = Plane(a.y_shape);
    const int64_t images = Together(all, plane_y, kBatchedColumns);
    const int64_t image_x = channels * plane_x, image_y = m * plane_y;
    // One image has the order of elements of the product.
    const StockOp::Scratch scratch(conv_, c, images > 1 ? images * (image_x + image_y) : 1);
    for (int64_t first = 0; first < all; first += images) {
      const int64_t n = std::min(images, all - first);
      const float* x = a.x + first * image_x;
      float *const to = a.y + first * image_y, *const y = n > 1 ? scratch.data() + images * image_x : to;
      if (n > 1) {
        ExchangeDimensions(x, n, channels, plane_x, scratch.data(), parallel);
        x = scratch.data();
      }
      // Inputs are not written.
      conv_.Run(c, {const_cast<float*>(x), Merged(a.x_shape, n)},
                {const_cast<float*>(a.w), Lifted(a.w_shape)}, {y, Merged(a.y_shape, n)});
      if (n > 1) ExchangeDimensions(y, m, n, plane_y, to, parallel);
    }
  }

  const StockOp conv_;
};

class BatchedConvTransposeNode final : public BatchedConvNode {
 public:
  explicit BatchedConvTransposeNode(const NodeAttributes& a)
      : BatchedConvNode(a),
        added_(a.GetInts("output_padding")),
        product_(a, "Gemm", kOpVersion, {{"transA", 1}, {"transB", 0}, {"alpha", 1.0F}, {"beta", 1.0F}}) {
    CheckEach("output_padding", added_, rank_, 0);
    for (size_t i = 0; i < rank_; ++i) {
      if (added_[i] < strides_[i]) continue;
      throw InvalidArgument("attribute output_padding is " + ToString(added_) +
                            "; expected less than strides, which are " + ToString(strides_));
    }
  }

 private:
  Shape OutputShape(const Shape& x, const Shape& w) const override {
    const int64_t m = w.size() < 2 ? 0 : w[1];
    CheckW(x, w, m, Matrix(x[1], m), "[C, M]");
    Shape y = Matrix(x[0], m);
    for (size_t i = 0; i < rank_; ++i) {
      const int64_t span = (x[i + 2] - 1) * strides_[i] + Extent(i) + added_[i];
      y.push_back(span - pads_[i] - pads_[i + rank_]);
      if (y.back() > 0) continue;
      throw InvalidArgument("X has shape " + ToString(x) + " and pads are " + ToString(pads_) +
                            "; expected a Y with 1 or more elements in dimension " + std::to_string(i + 2));
    }
    return y;
  }

  // W^T X, whose rows are the elements of windows over Y, and their sums.
  void Compute(const RunContext& c, const Arrays& a, Parallel& parallel) const override {
    const int64_t channels = a.x_shape[1], m = a.y_shape[1], all = a.x_shape[0];
    const int64_t plane_x = Plane(a.x_shape), plane_y = Plane(a.y_shape);
    const int64_t images = Together(all, plane_x, kProductColumns), elements = Plane(a.w_shape);
    const int64_t image_x = channels * plane_x;
    const StockOp::Scratch scratch(product_, c, images * (image_x + m * elements * plane_x));
    const WindowAxis one = {1, 1, 1, 1, 1, 0};
    const WindowAxis rows = rank_ == 1 ? one : Axis(a, 0), columns = Axis(a, rank_ - 1);
    for (int64_t first = 0; first < all; first += images) {
      const int64_t n = std::min(images, all - first);
      const float* x = a.x + first * image_x;
      if (n > 1) {
        ExchangeDimensions(x, n, channels, plane_x, scratch.data(), parallel);
        x = scratch.data();
      }
      float* const products = scratch.data() + images * image_x;
      // Inputs are not written.
      product_.Run(c, {const_cast<float*>(a.w), Matrix(channels, m * elements)},
                   {const_cast<float*>(x), Matrix(channels, n * plane_x)},
                   {products, Matrix(m * elements, n * plane_x)});
      ColumnsToImages(products, n, m, rows, columns, a.y + first * m * plane_y, parallel);
    }
  }

  WindowAxis Axis(const Arrays& a, size_t i) const {
    return {a.y_shape[i + 2], a.x_shape[i + 2], kernel_[i], strides_[i], dilations_[i], pads_[i]};
  }

  const Shape added_;
  const StockOp product_;
};

OpDefinition Definition(const char* name, const NodeMaker& maker) {
  return {name,
          {{"X", Role::kFloat}, {"W", Role::kFloat}},
          {{"Y", Role::kFloat}},
          0,
          false,
          maker,
          Variadic::kNone,
          true};
}

}  // namespace

OpDefinition BatchedConvDefinition() { return Definition("BatchedConv", MakeNode<BatchedConvForwardNode>); }

OpDefinition BatchedConvTransposeDefinition() {
  return Definition("BatchedConvTranspose", MakeNode<BatchedConvTransposeNode>);
}

}  // namespace bngrad
