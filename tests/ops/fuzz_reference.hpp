// A reference implementation of bngrad.h as plain loops in double, with a bound on the error of each value,
// computed from the magnitudes of its terms.
#pragma once
#include <algorithm>
#include <cmath>
#include <vector>

#include "fuzz_buffer.hpp"

// The expected values of an output, and bounds on the error before the final rounding.
struct Expected {
  std::vector<double> value, error;
};

// The channel of each element of X.
inline std::vector<int64_t> ChannelsOf(const std::vector<int64_t>& dims, const std::vector<bool>& reduced,
                                       int64_t elements) {
  std::vector<int64_t> channels(static_cast<size_t>(elements));
  for (int64_t i = 0; i < elements; ++i) {
    int64_t rest = i, stride = 1, channel = 0;
    for (size_t d = dims.size(); d-- > 0;) {
      if (!reduced[d]) {
        channel += rest % dims[d] * stride;
        stride *= dims[d];
      }
      rest /= dims[d];
    }
    channels[static_cast<size_t>(i)] = channel;
  }
  return channels;
}

using Values = std::vector<double>;

// The channel of each element, M, and the unit roundoffs.
struct Problem {
  std::vector<int64_t> channel;
  size_t channels;
  double m;
  double arithmetic;  // of elements: float or double
  double exact_sums;  // of sums of doubles, relative to the sum of magnitudes
  double sums;        // the same, with float terms for 16-bit elements

  Problem(std::vector<int64_t> channel_of, int64_t channel_count, int64_t reduced, int32_t type)
      : channel(std::move(channel_of)),
        channels(static_cast<size_t>(channel_count)),
        m(static_cast<double>(reduced)),
        arithmetic(type == BNGRAD_DOUBLE ? 0x1p-53 : 0x1p-24),
        exact_sums(0x1p-53 * (std::min(m, 2048.0) + 64)),
        sums(exact_sums + (type == BNGRAD_DOUBLE || type == BNGRAD_FLOAT ? 0 : 40 * 0x1p-24)) {}

  size_t size() const { return channel.size(); }
  size_t Of(size_t i) const { return static_cast<size_t>(channel[i]); }
  // For each channel, the sum of term(i) over its elements.
  template <class Term>
  Values Sum(const Term& term) const {
    Values sum(channels, 0.0);
    for (size_t i = 0; i < size(); ++i) sum[Of(i)] += term(i);
    return sum;
  }
};

// dX, dscale, dbias.
inline std::vector<Expected> ExpectedGrad(const Problem& p, bool training, const Values& dy, const Values& x,
                                          const Values& scale, const Values& mean, const Values& inv_std) {
  const auto xhat = [&](size_t i) { return (x[i] - mean[p.Of(i)]) * inv_std[p.Of(i)]; };
  const Values dbias = p.Sum([&](size_t i) { return dy[i]; });
  const Values dscale = p.Sum([&](size_t i) { return dy[i] * xhat(i); });
  const Values bias_size = p.Sum([&](size_t i) { return std::abs(dy[i]); });
  const Values scale_size = p.Sum([&](size_t i) { return std::abs(dy[i] * xhat(i)); });
  std::vector<Expected> outputs(3);
  for (size_t i = 0; i < p.size(); ++i) {
    const size_t c = p.Of(i);
    const double gain = scale[c] * inv_std[c];
    const double whole = training ? dy[i] - (dbias[c] + xhat(i) * dscale[c]) / p.m : dy[i];
    const double of_sums = training ? (bias_size[c] + std::abs(xhat(i)) * scale_size[c]) / p.m : 0;
    outputs[0].value.push_back(gain * whole);
    outputs[0].error.push_back(std::abs(gain) *
                               (8 * p.arithmetic * (std::abs(dy[i]) + of_sums) + p.sums * of_sums));
  }
  for (size_t c = 0; c < p.channels; ++c) {
    outputs[1].value.push_back(dscale[c]);
    outputs[1].error.push_back(2 * p.sums * scale_size[c]);
    outputs[2].value.push_back(dbias[c]);
    outputs[2].error.push_back(2 * p.sums * bias_size[c]);
  }
  return outputs;
}

// d_dY, d_X, d_scale.
inline std::vector<Expected> ExpectedGradGrad(const Problem& p, bool training, const Values& ddx,
                                              const Values& ddscale, const Values& ddbias, const Values& dy,
                                              const Values& x, const Values& scale, const Values& mean,
                                              const Values& inv_std) {
  const auto xhat = [&](size_t i) { return (x[i] - mean[p.Of(i)]) * inv_std[p.Of(i)]; };
  // The means of t and of t*xhat, and those of their magnitudes; the sums themselves with `training` false.
  struct Means {
    Values plain, with_xhat, size, size_with_xhat;
  };
  const auto means = [&](const Values& t) {
    Means means = {p.Sum([&](size_t i) { return t[i] / p.m; }),
                   p.Sum([&](size_t i) { return t[i] * xhat(i) / p.m; }),
                   p.Sum([&](size_t i) { return std::abs(t[i]) / p.m; }),
                   p.Sum([&](size_t i) { return std::abs(t[i] * xhat(i)) / p.m; })};
    return means;
  };
  const Means of_dy = means(dy), of_ddx = means(ddx);
  const auto project = [&](const Means& m, const Values& t, size_t i) {
    return training ? t[i] - m.plain[p.Of(i)] - xhat(i) * m.with_xhat[p.Of(i)] : t[i];
  };
  const auto size = [&](const Means& m, const Values& t, size_t i) {
    return std::abs(t[i]) + (training ? m.size[p.Of(i)] + std::abs(xhat(i)) * m.size_with_xhat[p.Of(i)] : 0);
  };
  const Values product = p.Sum([&](size_t i) { return ddx[i] * project(of_dy, dy, i); });
  const Values product_size = p.Sum([&](size_t i) { return std::abs(ddx[i]) * size(of_dy, dy, i); });

  std::vector<Expected> outputs(3);
  const double unit = 16 * p.arithmetic + 4 * p.sums;
  for (size_t i = 0; i < p.size(); ++i) {
    const size_t c = p.Of(i);
    const double gain = scale[c] * inv_std[c], h = xhat(i);
    outputs[0].value.push_back(gain * project(of_ddx, ddx, i) + ddscale[c] * h + ddbias[c]);
    outputs[0].error.push_back(
        unit * (std::abs(gain) * size(of_ddx, ddx, i) + std::abs(ddscale[c] * h) + std::abs(ddbias[c])));
    double d_x = ddscale[c] * inv_std[c] * project(of_dy, dy, i);
    double d_x_size = std::abs(ddscale[c] * inv_std[c]) * size(of_dy, dy, i);
    if (training) {
      d_x -= gain * inv_std[c] *
             (h * product[c] / p.m + of_dy.with_xhat[c] * project(of_ddx, ddx, i) +
              of_ddx.with_xhat[c] * project(of_dy, dy, i));
      d_x_size += std::abs(gain * inv_std[c]) *
                  (std::abs(h) * product_size[c] / p.m + of_dy.size_with_xhat[c] * size(of_ddx, ddx, i) +
                   of_ddx.size_with_xhat[c] * size(of_dy, dy, i));
    }
    outputs[1].value.push_back(d_x);
    outputs[1].error.push_back(unit * d_x_size);
  }
  for (size_t c = 0; c < p.channels; ++c) {
    outputs[2].value.push_back(inv_std[c] * product[c]);
    outputs[2].error.push_back(4 * p.sums * std::abs(inv_std[c]) * product_size[c]);
  }
  return outputs;
}

// Y, new_running_mean, new_running_var, saved_mean, saved_inv_std. Statistics are the last two.
inline std::vector<Expected> ExpectedTraining(const Problem& p, double epsilon, double momentum,
                                              bool unbiased, const Values& x, const Values& scale,
                                              const Values& bias, const Values& running_mean,
                                              const Values& running_var) {
  const Values sum = p.Sum([&](size_t i) { return x[i]; });
  const Values sum_size = p.Sum([&](size_t i) { return std::abs(x[i]); });
  const Values squares = p.Sum([&](size_t i) {
    const double d = x[i] - sum[p.Of(i)] / p.m;
    return d * d;
  });
  const double unit = p.exact_sums;
  std::vector<Expected> outputs(5);
  const auto push = [&](size_t output, double value, double error) {
    outputs[output].value.push_back(value);
    outputs[output].error.push_back(error);
  };
  Values mean_error, inv_std_error;  // the latter relative
  for (size_t c = 0; c < p.channels; ++c) {
    const double mean = sum[c] / p.m, var = squares[c] / p.m, inv_std = 1 / std::sqrt(var + epsilon);
    mean_error.push_back(2 * unit * sum_size[c] / p.m);
    const double var_error = 4 * unit * var + 4 * mean_error[c] * mean_error[c];
    inv_std_error.push_back(var_error / (var + epsilon) + 4 * 0x1p-53);
    const double running = unbiased ? var * p.m / std::max(p.m - 1, 1.0) : var, take = 1 - momentum;
    const auto blended = [&](double old, double made) {
      return 4 * 0x1p-53 * (std::abs(momentum * old) + std::abs(take * made));
    };
    push(3, mean, mean_error[c]);
    push(4, inv_std, inv_std * inv_std_error[c]);
    if (scale.empty()) continue;
    push(1, momentum * running_mean[c] + take * mean,
         std::abs(take) * mean_error[c] + blended(running_mean[c], mean));
    push(2, momentum * running_var[c] + take * running,
         2 * std::abs(take) * var_error + blended(running_var[c], running));
  }
  for (size_t i = 0; i < p.size() && !scale.empty(); ++i) {
    const size_t c = p.Of(i);
    const double d = x[i] - outputs[3].value[c], gain = scale[c] * outputs[4].value[c];
    push(0, d * gain + bias[c],
         8 * p.arithmetic * (std::abs(d * gain) + std::abs(bias[c])) +
             std::abs(gain) * (mean_error[c] + std::abs(d) * inv_std_error[c]));
  }
  return outputs;
}
