/* Prints the instruction set and a hash of every output of the C ABI on some problems: the same on every
 * platform. */
#include <stdio.h>
#include <string.h>

#include "bngrad.h"

enum { kMaxElements = 1 << 14, kArrays = 12 };
/* Arrays of any type, of at most 8 bytes an element. */
static uint64_t arrays[kArrays][kMaxElements];
static uint64_t state = 1, hash = 0xcbf29ce484222325u;
static int failures = 0;

static uint32_t next(void) {
  state = state * 6364136223846793005u + 1442695040888963407u;
  return (uint32_t)(state >> 33);
}

static size_t size_of(int32_t type) { return type == BNGRAD_DOUBLE ? 8 : type == BNGRAD_FLOAT ? 4 : 2; }

/* Random significands with exponents from -3 to 0, of both signs unless `positive`. */
static void* fill(int array, int32_t type, int64_t count, int positive) {
  char* const bytes = (char*)arrays[array];
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t sign = positive ? 0 : next() & 1, exponent = next() & 3, fraction = next();
    uint64_t bits = 0;
    if (type == BNGRAD_DOUBLE) bits = sign << 63 | (1020 + exponent) << 52 | fraction << 20;
    if (type == BNGRAD_FLOAT) bits = sign << 31 | (124 + exponent) << 23 | (fraction & 0x7fffff);
    if (type == BNGRAD_FLOAT16) bits = sign << 15 | (12 + exponent) << 10 | (fraction & 0x3ff);
    if (type == BNGRAD_BFLOAT16) bits = sign << 15 | (124 + exponent) << 7 | (fraction & 0x7f);
    memcpy(bytes + (size_t)i * size_of(type), &bits, size_of(type)); /* little-endian, as every target is */
  }
  return bytes;
}

static void add(const void* data, size_t size) {
  for (size_t i = 0; i < size; ++i) hash = (hash ^ ((const unsigned char*)data)[i]) * 0x100000001b3u;
}

static void solve(const int64_t* dims, int32_t rank, const int64_t* axes, int32_t axes_count,
                  int64_t channels, int32_t type, int32_t training, int32_t threads) {
  const int32_t stat = type == BNGRAD_DOUBLE ? BNGRAD_DOUBLE : BNGRAD_FLOAT;
  const bngrad_layout layout = {dims, axes, rank, axes_count, type, stat, stat};
  int64_t count = 1;
  for (int32_t i = 0; i < rank; ++i) count *= dims[i];
  const size_t data = (size_t)count * size_of(type), each = (size_t)channels * size_of(stat);
  const void* const x = fill(0, type, count, 0);
  const void* const dy = fill(1, type, count, 0);
  const void* const z = fill(2, type, count, 0);
  const void* const scale = fill(3, stat, channels, 0);
  const void* const bias = fill(4, stat, channels, 0);
  void* const mean = fill(5, stat, channels, 0);
  void* const other = fill(6, stat, channels, 1);
  void *out = arrays[7], *out2 = arrays[8], *a = arrays[9], *b = arrays[10], *c = arrays[11];
  failures |= bngrad_batch_normalization_training(&layout, 1e-5, 0.9, 1, x, scale, bias, mean, other, out, a,
                                                  b, c, out2, threads, NULL, 0);
  add(out, data), add(a, each), add(b, each), add(c, each), add(out2, each);
  failures |= bngrad_batch_normalization_statistics(&layout, 1e-5, x, mean, other, threads, NULL, 0);
  add(mean, each), add(other, each);
  failures |= bngrad_batch_normalization_grad(&layout, training, dy, x, scale, mean, other, out, a, b,
                                              threads, NULL, 0);
  add(out, data), add(a, each), add(b, each);
  failures |= bngrad_batch_normalization_relu_grad(&layout, training, dy, z, x, scale, mean, other, out, a, b,
                                                   threads, NULL, 0);
  add(out, data), add(a, each), add(b, each);
  failures |= bngrad_batch_normalization_grad_grad(&layout, training, z, bias, bias, dy, x, scale, mean,
                                                   other, out, out2, a, threads, NULL, 0);
  add(out, data), add(out2, data), add(a, each);
}

static void update(int32_t type, int64_t count) {
  const double coefficients[9] = {0.9, 0.1, 0.999, 0.001, 1e-3, 1e-8, 0.01, 0.5, 0.25};
  const void* const weight = fill(0, type, count, 0);
  const void* const gradient = fill(1, type, count, 0);
  const void* const average = fill(2, type, count, 0);
  const void* const square = fill(3, type, count, 1);
  failures |= bngrad_adam_update(count, type, coefficients, weight, gradient, average, square, arrays[4],
                                 arrays[5], arrays[6], 2, NULL, 0);
  for (int i = 4; i < 7; ++i) add(arrays[i], (size_t)count * size_of(type));
}

int main(void) {
  static const int64_t shapes[][4] = {
      {2, 3, 5, 7}, {3, 40, 8, 9}, {4, 9, 9, 40}, {1, 2, 64, 100}, {50, 129, 1, 2}};
  static const int64_t nchw[] = {0, 2, 3}, nhwc[] = {0, 1, 2};
  const int32_t types[] = {BNGRAD_FLOAT, BNGRAD_DOUBLE, BNGRAD_FLOAT16, BNGRAD_BFLOAT16};
  const char* isa = "";
  char error[256] = "";
  if (bngrad_active_isa(&isa, error, sizeof error) != BNGRAD_OK) {
    printf("%s\n", error);
    return 1;
  }
  for (size_t shape = 0; shape < sizeof shapes / sizeof *shapes; ++shape) {
    for (int type = 0; type < 4; ++type) {
      for (int32_t training = 0; training < 2; ++training) {
        solve(shapes[shape], 4, nchw, 3, shapes[shape][1], types[type], training, 2);
        solve(shapes[shape], 4, nhwc, 3, shapes[shape][3], types[type], training, 2);
      }
    }
  }
  update(BNGRAD_FLOAT, 10007);
  update(BNGRAD_DOUBLE, 10007);
  printf("%s %016llx\n", isa, (unsigned long long)hash);
  return failures != 0;
}
