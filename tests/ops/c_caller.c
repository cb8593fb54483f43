/* The C ABI from C99: NCHW 2x2x2 with axes 0 and 2, numbers small enough to check by hand. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "bngrad.h"

static int failures = 0;

static void expect(const char* what, double actual, double expected) {
  if (fabs(actual - expected) > 1e-12) {
    printf("%s: got %.17g, expected %.17g\n", what, actual, expected);
    ++failures;
  }
}

int main(void) {
  const int64_t dims[] = {2, 2, 2}, axes[] = {0, -1};
  const bngrad_layout layout = {dims, axes, 3, 2, BNGRAD_DOUBLE, BNGRAD_DOUBLE, BNGRAD_DOUBLE};
  /* Channel 0 is 1 3 1 3: mean 2, variance 1. Channel 1 is 0 4 4 0: mean 2, variance 4. */
  const double x[] = {1, 3, 0, 4, 1, 3, 4, 0};
  const double dy[] = {1, 2, 1, 0, 3, 4, 0, 1};
  const double scale[] = {2, 1}, bias[] = {1, 0}, zero[] = {0, 0};
  double mean[2], inv_std[2], y[8], new_mean[2], new_var[2], dx[8], dscale[2], dbias[2];
  const char* isa = NULL;
  char error[256] = "";

  if (bngrad_active_isa(&isa, error, sizeof error) != BNGRAD_OK) {
    printf("%s\n", error);
    return 1;
  }
  printf("bngrad %s, %s of %d instruction sets\n", bngrad_version(), isa, (int)bngrad_isa_count());

  failures += bngrad_batch_normalization_statistics(&layout, 0, x, mean, inv_std, 1, error, sizeof error);
  expect("mean", mean[0] + mean[1], 4);
  expect("inv_std[0]", inv_std[0], 1);
  expect("inv_std[1]", inv_std[1], 0.5);

  failures += bngrad_batch_normalization_training(&layout, 0, 0.5, 1, x, scale, bias, zero, zero, y, new_mean,
                                                  new_var, NULL, NULL, 2, error, sizeof error);
  expect("y[0]", y[0], -1);
  expect("y[7]", y[7], -1);
  expect("new_mean", new_mean[0], 1);
  expect("new_var", new_var[1], 0.5 * 4 * 4 / 3);

  /* xhat is -1 1 -1 1 and -1 1 1 -1: dbias 10 and 2, dscale 2 and -2. */
  failures += bngrad_batch_normalization_grad(&layout, 1, dy, x, scale, mean, inv_std, dx, dscale, dbias, 0,
                                              error, sizeof error);
  expect("dbias", dbias[0], 10);
  expect("dscale[0]", dscale[0], 2);
  expect("dscale[1]", dscale[1], -2);
  expect("dx[0]", dx[0], 2 * (1 - (10 - 2) / 4.0));
  expect("dx[6]", dx[6], 0.5 * (0 - (2 - 2) / 4.0));
  failures +=
      bngrad_batch_normalization_grad(&layout, 0, dy, x, scale, mean, inv_std, dx, NULL, NULL, 0, NULL, 0);
  expect("frozen dx[5]", dx[5], 8);

  /* With Z from Y = 2*xhat + 1 and xhat + 0 only the positive xhat let dY through. */
  const double z[] = {0, 3, 0, 1, 0, 3, 1, 0};
  failures += bngrad_batch_normalization_relu_grad(&layout, 0, dy, z, x, scale, mean, inv_std, dx, dscale,
                                                   dbias, 1, error, sizeof error);
  expect("relu dx[0]", dx[0], 0);
  expect("relu dx[1]", dx[1], 4);
  expect("relu dbias", dbias[0], 6);
  expect("relu dscale", dscale[1], 0);

  /* d_dY of frozen statistics is 2*ddX + 1*xhat + 0 in channel 0; d_scale is sum ddX*dY. */
  const double ddx[] = {1, 0, 0, 0, 0, 0, 0, 0}, ddscale[] = {1, 0};
  failures += bngrad_batch_normalization_grad_grad(&layout, 0, ddx, ddscale, zero, dy, x, scale, mean,
                                                   inv_std, y, dx, dscale, 1, error, sizeof error);
  expect("d_dy[0]", y[0], 2 - 1);
  expect("d_dy[1]", y[1], 1);
  expect("d_x[5]", dx[5], 4);
  expect("d_scale", dscale[0], 1);

  /* The same numbers in bfloat16, whose 1 is the upper half of 1.0f, with the rest in float. */
  const bngrad_layout half = {dims, axes, 3, 2, BNGRAD_BFLOAT16, BNGRAD_FLOAT, BNGRAD_FLOAT};
  const uint16_t ones[] = {0x3f80, 0x3f80, 0x3f80, 0x3f80, 0x3f80, 0x3f80, 0x3f80, 0x3f80};
  float half_mean[2], half_inv_std[2];
  failures += bngrad_batch_normalization_statistics(&half, 0.25, ones, half_mean, half_inv_std, 1, error,
                                                    sizeof error);
  expect("mean of bfloat16", half_mean[0], 1);
  expect("inv_std of bfloat16", half_inv_std[1], 2);

  if (bngrad_batch_normalization_grad(&layout, 2, dy, x, scale, mean, inv_std, dx, dscale, dbias, 0, error,
                                      sizeof error) != BNGRAD_INVALID_ARGUMENT ||
      strcmp(error, "training_mode is 2; expected 0 or 1") != 0) {
    printf("training_mode 2: %s\n", error);
    ++failures;
  }
  return failures == 0 ? 0 : 1;
}
