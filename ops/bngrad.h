/* bngrad: batch-normalization training on plain arrays, for C, C++, C# and whoever calls C.
 *
 * The same kernels as the ONNX Runtime ops of domain "bngrad", version 1, without ONNX Runtime. (To use the
 * ops, hand this library to RegisterCustomOpsLibrary; nothing in this header is needed for that.)
 *
 * X is a dense array of `rank` dimensions (1 to 8), `axes` names the ones that are reduced, in any order,
 * negative from the end, possibly none. A channel is what is left. X, Y, Z and all their gradients have the
 * shape of X; every other array has one value a channel, in the order of X's dimensions without the axes. M
 * is the number of elements reduced to one.
 *
 * Elements are computed in double if X is double, else in float; sums always in double. Results are rounded
 * once, to nearest.
 *
 * All calls:
 * - return BNGRAD_OK, or another bngrad_status after writing a message of at most error_size bytes, with its
 *   terminating zero, to `error` (which may be null); then the outputs hold nothing of use;
 * - take null for an output that is not wanted, and for any array that has no elements;
 * - refuse, as an invalid argument, an array that does not begin at a multiple of its elements' size, and an
 *   output that overlaps an input or another output;
 * - use at most num_threads threads: the caller's and others that stay for later calls. 0 or a negative
 * number stands for the CPUs that the process may use when it is first needed, by the affinity of the calling
 * thread and the CPU quota of the container. Results have the same bits for every number;
 * - may be made from several threads at once. These share the others: the process keeps as many as the
 * largest num_threads of any call so far, less one. A call that finds all of them busy does its work alone;
 * - compute in the calling thread's floating-point mode (rounding, flush to zero, denormals are zero), which
 * the other threads take for that work only;
 * - may be made in a child of fork, which starts its own threads.
 */
#ifndef BNGRAD_H_
#define BNGRAD_H_

#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)
#if defined(BNGRAD_BUILDING)
#define BNGRAD_EXPORT __declspec(dllexport)
#else
#define BNGRAD_EXPORT __declspec(dllimport)
#endif
#else
#define BNGRAD_EXPORT __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef enum bngrad_status {
  BNGRAD_OK = 0,
  BNGRAD_INVALID_ARGUMENT = 1, /* the message says what was expected and what came */
  BNGRAD_FAILED = 2            /* out of memory, for instance */
} bngrad_status;

/* Element types, with ONNX's numbers. */
enum { BNGRAD_FLOAT = 1, BNGRAD_FLOAT16 = 10, BNGRAD_DOUBLE = 11, BNGRAD_BFLOAT16 = 16 };

/* X, and what makes a channel of it. */
typedef struct bngrad_layout {
  const int64_t* dims;
  const int64_t* axes;
  int32_t rank;
  int32_t axes_count;
  int32_t type;       /* of X and every array of its shape */
  int32_t scale_type; /* of scale, bias and their gradients: the same as `type`, or BNGRAD_FLOAT */
  int32_t stat_type;  /* of mean, inv_std, running_mean ...: the same as `type`, or BNGRAD_FLOAT */
} bngrad_layout;

/* "major.minor.patch" */
BNGRAD_EXPORT const char* bngrad_version(void);

/* The instruction sets that kernels were compiled for, best first. Name: null past the end. Supported: 1 if
 * this machine runs it. */
BNGRAD_EXPORT int32_t bngrad_isa_count(void);
BNGRAD_EXPORT const char* bngrad_isa_name(int32_t i);
BNGRAD_EXPORT int32_t bngrad_isa_supported(int32_t i);

/* The name of the one in use: the best supported, or what the environment variable BNGRAD_ISA held at the
 * first call, which settles it. A name that is unknown or not supported settles nothing, and is an error of
 * every call until it is another. */
BNGRAD_EXPORT int32_t bngrad_active_isa(const char** name, char* error, size_t error_size);

/* With xhat = (X - mean)*inv_std:
 *   dbias = sum dY      dscale = sum dY*xhat
 *   training_mode 1: dX = scale*inv_std*(dY - (dbias + xhat*dscale)/M)     0: dX = scale*inv_std*dY */
BNGRAD_EXPORT int32_t bngrad_batch_normalization_grad(const bngrad_layout* layout, int32_t training_mode,
                                                      const void* dy, const void* x, const void* scale,
                                                      const void* mean, const void* inv_std, void* dx,
                                                      void* dscale, void* dbias, int32_t num_threads,
                                                      char* error, size_t error_size);

/* The same for Z = relu(Y) and dZ, the gradient by Z: dY = dZ where Z > 0, else 0. */
BNGRAD_EXPORT int32_t bngrad_batch_normalization_relu_grad(const bngrad_layout* layout, int32_t training_mode,
                                                           const void* dz, const void* z, const void* x,
                                                           const void* scale, const void* mean,
                                                           const void* inv_std, void* dx, void* dscale,
                                                           void* dbias, int32_t num_threads, char* error,
                                                           size_t error_size);

/* The gradient of bngrad_batch_normalization_grad: ddx, ddscale and ddbias are those of the loss by dX,
 * dscale and dbias. With mean(t) over the M elements of a channel, and P(t) = t - mean(t) - xhat*mean(t*xhat)
 * with training_mode 1, P(t) = t with 0: d_dY = scale*inv_std*P(ddX) + ddscale*xhat + ddbias      d_scale =
 * inv_std * sum(ddX*P(dY)) d_X = ddscale*inv_std*P(dY), and with training_mode 1 less scale*inv_std^2 *
 * (xhat*mean(ddX*P(dY)) + mean(dY*xhat)*P(ddX) + mean(ddX*xhat)*P(dY)) */
BNGRAD_EXPORT int32_t bngrad_batch_normalization_grad_grad(const bngrad_layout* layout, int32_t training_mode,
                                                           const void* ddx, const void* ddscale,
                                                           const void* ddbias, const void* dy, const void* x,
                                                           const void* scale, const void* mean,
                                                           const void* inv_std, void* d_dy, void* d_x,
                                                           void* d_scale, int32_t num_threads, char* error,
                                                           size_t error_size);

/* saved_mean = mean of X, saved_inv_std = 1/sqrt(biased variance + epsilon),
 * Y = (X - saved_mean)*saved_inv_std*scale + bias,
 * new_running = momentum*running + (1 - momentum)*batch, where the batch's variance is biased, or multiplied
 * by M/max(M - 1, 1) with unbiased_running_var 1. M = 0: NaN. */
BNGRAD_EXPORT int32_t bngrad_batch_normalization_training(
    const bngrad_layout* layout, double epsilon, double momentum, int32_t unbiased_running_var, const void* x,
    const void* scale, const void* bias, const void* running_mean, const void* running_var, void* y,
    void* new_running_mean, void* new_running_var, void* saved_mean, void* saved_inv_std, int32_t num_threads,
    char* error, size_t error_size);

/* mean of X, inv_std = 1/sqrt(biased variance + epsilon). M = 0: NaN. stat_type is no choice here:
 * BNGRAD_DOUBLE if X is double, else BNGRAD_FLOAT. */
BNGRAD_EXPORT int32_t bngrad_batch_normalization_statistics(const bngrad_layout* layout, double epsilon,
                                                            const void* x, void* mean, void* inv_std,
                                                            int32_t num_threads, char* error,
                                                            size_t error_size);

/* c = a + b over `count` floats, c written past the caches where the machine can: no op, but for measuring.
 * An op that reads and writes arrays once cannot move more bytes a second than this does with arrays too
 * large for the caches. Arrays need no alignment beyond a float's. */
BNGRAD_EXPORT int32_t bngrad_add_arrays(int64_t count, const float* a, const float* b, float* c,
                                        int32_t num_threads, char* error, size_t error_size);

/* For programs whose whole work is one file from anywhere, such as bngrad's command line; the ops and calls
 * above need it not. From here on a fault that would end the process (an abort, a segmentation fault, an
 * overflow of the calling thread's stack ...) writes `last_words`, the fault's name in brackets and a line
 * break to stderr, and exits with `code`, 1 to 125, without another word of anyone. Longer lines than 4095
 * bytes are cut. Not to be called from two threads at once. */
BNGRAD_EXPORT int32_t bngrad_exit_on_fault(const char* last_words, int32_t code, char* error,
                                           size_t error_size);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* BNGRAD_H_ */
