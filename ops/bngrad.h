/* bngrad: batch-normalization training on plain arrays, as a C ABI for C, C++, C# and other languages.
 *
 * The same kernels as the ONNX Runtime ops of domain "bngrad", version 1, without ONNX Runtime. To use the
 * ops, pass this library to RegisterCustomOpsLibrary; nothing in this header is needed for that.
 *
 * Terms
 * X is a dense row-major array of 1 to 8 dimensions. `axes` are its reduced dimensions, in any order;
 * negative values count from the end; the list may be empty. A channel is an index into the other dimensions,
 * and M is the number of elements per channel. NCHW data has axes {0, 2, 3}.
 *
 * Arrays
 * - "Like X": the shape of X, elements of type bngrad_layout.type.
 * - "Per channel": one element per channel, in row-major order of X's shape without the axes. scale, bias and
 *   their gradients have type scale_type; mean, inv_std and running statistics have type stat_type.
 * - The caller owns all arrays. The library keeps no pointer to them after a call returns.
 * - Each array must be aligned to the size of its elements. Inputs may overlap each other. An output must not
 *   overlap any other array.
 * - An output may be NULL and is not computed then. Any array without elements may be NULL.
 *
 * Precision
 * Elements are computed in double if X is double, else in float. Sums and per-channel values are computed in
 * double. Results are rounded once. They have the same bits, except for NaN payloads, on every instruction
 * set and for every number of threads.
 *
 * Errors
 * Functions that take `error` return a bngrad_status. For any status but BNGRAD_OK they write a message to
 * `error`, truncated to error_size bytes including the terminating zero, and the contents of the outputs are
 * undefined. `error` may be NULL. No function throws, prints or exits.
 *
 * Threads
 * - All functions are thread-safe unless noted otherwise.
 * - num_threads is the maximum number of threads of a call, including the calling thread. 0 or a negative
 *   value means the number of CPUs available to the process at the first such call, limited by the affinity
 *   of the calling thread and by the CPU quota of the container on Linux, and by the affinity of the process
 *   on Windows (at most 64: one processor group).
 * - Worker threads persist between calls and are shared by concurrent calls. The process keeps as many as the
 *   largest num_threads of any call, less one. A call that finds all of them busy runs on its own thread.
 * - Worker threads use the calling thread's floating-point mode (rounding direction, flush to zero, denormals
 *   are zero) during the call.
 * - Calls are allowed in a child of fork(), which starts its own threads.
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
  BNGRAD_INVALID_ARGUMENT = 1, /* the message states the argument, what was got and what was expected */
  BNGRAD_FAILED = 2            /* any other error, for example out of memory */
} bngrad_status;

/* Element types, numbered as in ONNX (TensorProto.DataType). */
enum { BNGRAD_FLOAT = 1, BNGRAD_FLOAT16 = 10, BNGRAD_DOUBLE = 11, BNGRAD_BFLOAT16 = 16 };

/* The shape of X, its reduced dimensions, and the element types of all arrays. */
typedef struct bngrad_layout {
  const int64_t* dims; /* `rank` dimensions of X */
  const int64_t*
      axes;     /* `axes_count` distinct values from -rank to rank - 1; may be NULL if axes_count is 0 */
  int32_t rank; /* 1 to 8 */
  int32_t axes_count; /* 0 to rank */
  int32_t type;       /* of X and all arrays like X: any of the element types */
  int32_t scale_type; /* of scale, bias and their gradients: `type` or BNGRAD_FLOAT */
  int32_t stat_type;  /* of mean, inv_std, running_mean and running_var: `type` or BNGRAD_FLOAT */
} bngrad_layout;

/** \brief The version of the library.
 *
 * \return "major.minor.patch", a static string.
 */
BNGRAD_EXPORT const char* bngrad_version(void);

/** \brief The number of instruction sets that the library contains kernels for. */
BNGRAD_EXPORT int32_t bngrad_isa_count(void);

/** \brief The name of an instruction set, as used in the environment variable BNGRAD_ISA.
 *
 * \param[in] i Index from 0 to bngrad_isa_count() - 1, the preferred instruction set first.
 * \return A static string, or NULL if `i` is out of range.
 */
BNGRAD_EXPORT const char* bngrad_isa_name(int32_t i);

/** \brief Whether this CPU and operating system support an instruction set.
 *
 * \param[in] i Index from 0 to bngrad_isa_count() - 1.
 * \return 1 if it is supported, 0 if it is not or if `i` is out of range.
 */
BNGRAD_EXPORT int32_t bngrad_isa_supported(int32_t i);

/** \brief The instruction set in use: the first supported one, or the one named by BNGRAD_ISA.
 *
 * The first successful call of this or any of the functions below selects it for the lifetime of the process.
 *
 * \param[out] name Set to a static string; may be NULL.
 * \return BNGRAD_INVALID_ARGUMENT if BNGRAD_ISA is unknown or not supported. The batch-normalization
 * functions below return the same error.
 */
BNGRAD_EXPORT int32_t bngrad_active_isa(const char** name, char* error, size_t error_size);

/** \brief Whether the library has kernels for CUDA.
 *
 * With them, RegisterCustomOps also adds batch-normalization ops for CUDAExecutionProvider. NVIDIA's driver
 * is not needed before one runs. The functions below always run on the CPU.
 *
 * \return 1 if it has, 0 if it was built without.
 */
BNGRAD_EXPORT int32_t bngrad_has_cuda(void);

/** \brief The gradient of batch normalization.
 *
 * With xhat = (X - mean)*inv_std:
 *   dbias  = sum dY
 *   dscale = sum dY*xhat
 *   dX     = scale*inv_std*(dY - (dbias + xhat*dscale)/M)   if training_mode is 1
 *   dX     = scale*inv_std*dY                               if training_mode is 0
 * If M is 0, dscale and dbias are 0.
 *
 * \param[in] training_mode 1: mean and inv_std are functions of X. 0: they are constants (frozen statistics).
 * \param[in] dy Gradient of the loss with respect to Y, like X.
 * \param[in] x Like X.
 * \param[in] scale, mean, inv_std Per channel.
 * \param[out] dx Like X; may be NULL.
 * \param[out] dscale, dbias Per channel, of scale_type; may be NULL.
 */
BNGRAD_EXPORT int32_t bngrad_batch_normalization_grad(const bngrad_layout* layout, int32_t training_mode,
                                                      const void* dy, const void* x, const void* scale,
                                                      const void* mean, const void* inv_std, void* dx,
                                                      void* dscale, void* dbias, int32_t num_threads,
                                                      char* error, size_t error_size);

/** \brief The gradient of batch normalization followed by ReLU.
 *
 * As bngrad_batch_normalization_grad, with Z = relu(Y) and dY = dZ where Z > 0, else 0.
 *
 * \param[in] dz Gradient of the loss with respect to Z, like X.
 * \param[in] z Like X.
 */
BNGRAD_EXPORT int32_t bngrad_batch_normalization_relu_grad(const bngrad_layout* layout, int32_t training_mode,
                                                           const void* dz, const void* z, const void* x,
                                                           const void* scale, const void* mean,
                                                           const void* inv_std, void* dx, void* dscale,
                                                           void* dbias, int32_t num_threads, char* error,
                                                           size_t error_size);

/** \brief The gradient of bngrad_batch_normalization_grad (second order).
 *
 * With xhat = (X - mean)*inv_std, mean(t) the mean over the M elements of a channel, and
 * P(t) = t - mean(t) - xhat*mean(t*xhat) if training_mode is 1, P(t) = t if it is 0:
 *   d_dY    = scale*inv_std*P(ddX) + ddscale*xhat + ddbias
 *   d_X     = ddscale*inv_std*P(dY)
 *             - scale*inv_std^2*(xhat*mean(ddX*P(dY)) + mean(dY*xhat)*P(ddX) + mean(ddX*xhat)*P(dY))
 *             (the second line only if training_mode is 1)
 *   d_scale = inv_std*sum(ddX*P(dY))
 * If M is 0, d_scale is 0.
 *
 * \param[in] ddx Gradient of the loss with respect to dX, like X.
 * \param[in] ddscale, ddbias Gradients of the loss with respect to dscale and dbias, per channel.
 * \param[in] dy, x Like X.
 * \param[in] scale, mean, inv_std Per channel.
 * \param[out] d_dy, d_x Like X; may be NULL.
 * \param[out] d_scale Per channel, of scale_type; may be NULL.
 */
BNGRAD_EXPORT int32_t bngrad_batch_normalization_grad_grad(const bngrad_layout* layout, int32_t training_mode,
                                                           const void* ddx, const void* ddscale,
                                                           const void* ddbias, const void* dy, const void* x,
                                                           const void* scale, const void* mean,
                                                           const void* inv_std, void* d_dy, void* d_x,
                                                           void* d_scale, int32_t num_threads, char* error,
                                                           size_t error_size);

/** \brief The forward pass of batch normalization in training mode.
 *
 * With var the biased variance of X per channel:
 *   saved_mean       = mean of X
 *   saved_inv_std    = 1/sqrt(var + epsilon)
 *   Y                = (X - saved_mean)*saved_inv_std*scale + bias
 *   new_running_mean = momentum*running_mean + (1 - momentum)*saved_mean
 *   new_running_var  = momentum*running_var + (1 - momentum)*var
 * With unbiased_running_var, new_running_var takes var*M/max(M - 1, 1) instead of var. If M is 0, the
 * statistics are NaN.
 *
 * \param[in] epsilon Finite and not negative.
 * \param[in] momentum The weight of the old running value, finite. PyTorch's momentum is 1 - momentum.
 * \param[in] unbiased_running_var 0 or 1.
 * \param[in] x Like X.
 * \param[in] scale, bias, running_mean, running_var Per channel.
 * \param[out] y Like X; may be NULL.
 * \param[out] new_running_mean, new_running_var, saved_mean, saved_inv_std Per channel; may be NULL.
 */
BNGRAD_EXPORT int32_t bngrad_batch_normalization_training(
    const bngrad_layout* layout, double epsilon, double momentum, int32_t unbiased_running_var, const void* x,
    const void* scale, const void* bias, const void* running_mean, const void* running_var, void* y,
    void* new_running_mean, void* new_running_var, void* saved_mean, void* saved_inv_std, int32_t num_threads,
    char* error, size_t error_size);

/** \brief The mean and inverse standard deviation of X per channel.
 *
 *   mean    = mean of X
 *   inv_std = 1/sqrt(biased variance of X + epsilon)
 * If M is 0, both are NaN.
 *
 * \param[in] layout stat_type must be BNGRAD_DOUBLE if X is double, else BNGRAD_FLOAT.
 * \param[in] epsilon Finite and not negative.
 * \param[in] x Like X.
 * \param[out] mean, inv_std Per channel; may be NULL.
 */
BNGRAD_EXPORT int32_t bngrad_batch_normalization_statistics(const bngrad_layout* layout, double epsilon,
                                                            const void* x, void* mean, void* inv_std,
                                                            int32_t num_threads, char* error,
                                                            size_t error_size);

/* Synchronized batch normalization
 *
 * The batch is divided among ranks; X, dY and so on are a rank's part, and the statistics are those of the
 * whole batch. Both passes are split at their sums, which the program gathers (bngrad_all_gather):
 *
 *   forward:  moments    -> gather -> merge_moments -> apply
 *   backward: grad_sums  -> gather -> grad_apply
 *
 * Sums and statistics are double, whatever the type of X; bngrad_layout.stat_type is not used, but must be
 * valid. Gathered values are added by a fixed tree over the ranks: neighbors first, then ranks at a distance
 * of 2, 4, ... C is the number of channels. A part may have no elements.
 */

/** \brief The moments of a rank's part of the batch.
 *
 * \param[in] x Like X.
 * \param[out] moments [3, C]: the number of elements n of a channel, their mean m, and M2 = sum (X - m)^2.
 * All 0 if n is 0.
 */
BNGRAD_EXPORT int32_t bngrad_batch_normalization_moments(const bngrad_layout* layout, const void* x,
                                                         double* moments, int32_t num_threads, char* error,
                                                         size_t error_size);

/** \brief The statistics of the whole batch, from the moments of all ranks.
 *
 *   batch_count   = sum n
 *   batch_mean    = m_0 + sum n*(m - m_0) / batch_count
 *   var           = sum (M2 + n*(m - batch_mean)^2) / batch_count
 *   batch_inv_std = 1/sqrt(var + epsilon)
 * new_running_mean and new_running_var are those of bngrad_batch_normalization_training, with M =
 * batch_count. If batch_count is 0, the statistics are NaN.
 *
 * \param[in] ranks The number of ranks, at least 1.
 * \param[in] channels C, 0 or more.
 * \param[in] stat_type The type of the running statistics: any of the element types.
 * \param[in] epsilon, momentum, unbiased_running_var See bngrad_batch_normalization_training.
 * \param[in] gathered_moments [ranks, 3, C].
 * \param[in] running_mean, running_var Per channel.
 * \param[out] new_running_mean, new_running_var, batch_mean, batch_inv_std Per channel; may be NULL.
 * \param[out] batch_count One value, of the first channel; NaN if there is none. May be NULL.
 */
BNGRAD_EXPORT int32_t bngrad_batch_normalization_merge_moments(
    int64_t ranks, int64_t channels, int32_t stat_type, double epsilon, double momentum,
    int32_t unbiased_running_var, const double* gathered_moments, const void* running_mean,
    const void* running_var, void* new_running_mean, void* new_running_var, double* batch_mean,
    double* batch_inv_std, double* batch_count, char* error, size_t error_size);

/** \brief Y = (X - batch_mean)*batch_inv_std*scale + bias.
 *
 * \param[in] x Like X.
 * \param[in] scale, bias, batch_mean, batch_inv_std Per channel.
 * \param[out] y Like X; may be NULL.
 */
BNGRAD_EXPORT int32_t bngrad_batch_normalization_apply(const bngrad_layout* layout, const void* x,
                                                       const void* scale, const void* bias,
                                                       const double* batch_mean, const double* batch_inv_std,
                                                       void* y, int32_t num_threads, char* error,
                                                       size_t error_size);

/** \brief What the gradient sums over a rank's part of the batch.
 *
 * sum dY and sum dY*(X - batch_mean). Times batch_inv_std the latter is dscale.
 *
 * \param[in] dy Gradient of the loss with respect to Y, like X; with `z`, with respect to Z.
 * \param[in] z Z = relu(Y), like X: dY is `dy` where Z > 0, else 0. NULL: no ReLU.
 * \param[in] x Like X.
 * \param[in] batch_mean, batch_inv_std Per channel.
 * \param[out] sums [2, C]; may be NULL.
 * \param[out] dscale, dbias Per channel, of scale_type: this rank's part of these gradients; may be NULL.
 */
BNGRAD_EXPORT int32_t bngrad_batch_normalization_grad_sums(const bngrad_layout* layout, const void* dy,
                                                           const void* z, const void* x,
                                                           const double* batch_mean,
                                                           const double* batch_inv_std, double* sums,
                                                           void* dscale, void* dbias, int32_t num_threads,
                                                           char* error, size_t error_size);

/** \brief The gradient with respect to X, from the sums of all ranks.
 *
 * With S0 and S1 the sums of gathered_sums over the ranks and xhat = (X - batch_mean)*batch_inv_std:
 *   dX = scale*batch_inv_std*(dY - (S0 + xhat*batch_inv_std*S1)/batch_count)
 *
 * \param[in] ranks The number of ranks, at least 1.
 * \param[in] batch_count The number of elements of a channel in the whole batch.
 * \param[in] dy, z, x, batch_mean, batch_inv_std See bngrad_batch_normalization_grad_sums.
 * \param[in] scale Per channel.
 * \param[in] gathered_sums [ranks, 2, C].
 * \param[out] dx Like X; may be NULL.
 */
BNGRAD_EXPORT int32_t bngrad_batch_normalization_grad_apply(
    const bngrad_layout* layout, int64_t ranks, double batch_count, const void* dy, const void* z,
    const void* x, const void* scale, const double* batch_mean, const double* batch_inv_std,
    const double* gathered_sums, void* dx, int32_t num_threads, char* error, size_t error_size);

/** \brief A step of Adam or AdamW, for each element.
 *
 *   g              = gradient*gradient_scale + l2_penalty*weight
 *   new_exp_avg    = exp_avg + (1 - beta1)*(g - exp_avg)
 *   new_exp_avg_sq = beta2*exp_avg_sq + ((1 - beta2)*g)*g
 *   new_weight     = weight*weight_factor
 *                    - (step_size*new_exp_avg)/(sqrt(new_exp_avg_sq)/sqrt_bias_correction2 + epsilon)
 * Computed in the type of the elements, with one rounding for each operation.
 *
 * \param[in] count The number of elements, 0 or more.
 * \param[in] type BNGRAD_FLOAT or BNGRAD_DOUBLE, of all arrays but the coefficients.
 * \param[in] coefficients 9 numbers: gradient_scale, l2_penalty, weight_factor, 1 - beta1, beta2, 1 - beta2,
 * step_size, sqrt_bias_correction2, epsilon. They are rounded to `type`.
 * \param[in] weight, gradient, exp_avg, exp_avg_sq Arrays of `count` elements.
 * \param[out] new_weight, new_exp_avg, new_exp_avg_sq The same; may be NULL.
 */
BNGRAD_EXPORT int32_t bngrad_adam_update(int64_t count, int32_t type, const double* coefficients,
                                         const void* weight, const void* gradient, const void* exp_avg,
                                         const void* exp_avg_sq, void* new_weight, void* new_exp_avg,
                                         void* new_exp_avg_sq, int32_t num_threads, char* error,
                                         size_t error_size);

/* Distributed runs
 *
 * Batch norms and gradients of a model are synchronized by collective operations: AllGather and AllReduce, in
 * ONNX Runtime the ops of these names. The program supplies a function that moves bytes between its ranks,
 * for example with MPI. Without one there is one rank, and both operations copy.
 *
 * Every operation starts with an exchange of headers: a line of text with the operation, its key, its size
 * and the version of the library. If they differ, the operation fails on every rank with one message that
 * names two of them. Sums are computed in double by a fixed tree over the ranks, and rounded once.
 */

/* The operations of a bngrad_collective. */
enum { BNGRAD_ALL_GATHER = 0, BNGRAD_ALL_TO_ALL = 1 };

/** \brief Moves bytes between the ranks. Returns when this rank's part is done.
 *
 * Called on the thread that calls the operation: with sequential execution of ONNX Runtime, the one that runs
 * the session. Never called concurrently. All ranks call theirs in the same order, with the same operation
 * and size; if their operations differ, this is found in the exchange of headers, before others follow.
 *
 * It should not wait forever: a rank may have ended. Once it has failed, the ranks may be out of step, and it
 * should fail each time, because the library may call it again.
 *
 * \param[in] context As given to bngrad_set_collective.
 * \param[in] operation BNGRAD_ALL_GATHER: sends `size` bytes to every rank. BNGRAD_ALL_TO_ALL: sends ranks
 * blocks of `size` bytes, block r to rank r.
 * \param[in] size At least 1.
 * \param[out] receive ranks blocks of `size` bytes, block r from rank r. Does not overlap `send`.
 * \param[out] error An empty string goes here if the function succeeds, else a message in UTF-8; the library
 * puts the name and key of the operation before it. Holds the message of a function that writes neither.
 * \return 0, or another value if it failed, also because another rank did not answer in time.
 */
typedef int32_t (*bngrad_collective)(void* context, int32_t operation, const void* send, void* receive,
                                     int64_t size, char* error, size_t error_size);

/** \brief Sets the function that moves bytes between the ranks, for the process.
 *
 * Call it before creating sessions and not during a run: a session is made for a number of ranks.
 *
 * \param[in] function NULL: one rank alone; `rank` and `ranks` are ignored then. Must be callable until
 * another is set.
 * \param[in] context Passed to the function; may be NULL.
 * \param[in] rank From 0 to ranks - 1.
 * \param[in] ranks At least 1.
 */
BNGRAD_EXPORT int32_t bngrad_set_collective(bngrad_collective function, void* context, int32_t rank,
                                            int32_t ranks, char* error, size_t error_size);

/** \brief The number of ranks: 1 if no function is set. */
BNGRAD_EXPORT int32_t bngrad_collective_ranks(void);

/** \brief Gathers a value of every rank.
 *
 * \param[in] key Names the operation, not empty. All ranks call the same operations in the same order.
 * \param[in] size The number of bytes of `value`, 0 or more, the same on all ranks.
 * \param[out] gathered ranks*size bytes, in the order of the ranks.
 * \return BNGRAD_FAILED if the ranks do not match, another rank failed, or the function failed. Also below.
 */
BNGRAD_EXPORT int32_t bngrad_all_gather(const char* key, int64_t size, const void* value, void* gathered,
                                        char* error, size_t error_size);

/** \brief The sum over the ranks, for each element.
 *
 * \param[in] key Names the operation, not empty.
 * \param[in] count The number of elements, 0 or more, the same on all ranks.
 * \param[in] type BNGRAD_FLOAT or BNGRAD_DOUBLE.
 * \param[in] value An array of `count` elements.
 * \param[out] total The same, with the same bits on all ranks.
 */
BNGRAD_EXPORT int32_t bngrad_all_reduce(const char* key, int64_t count, int32_t type, const void* value,
                                        void* total, char* error, size_t error_size);

/** \brief Makes the next operation of every other rank fail with this message.
 *
 * For a rank that cannot go on. Blocks until the others are there, or the function fails. Does nothing if
 * there is no function, or if the last operation of this rank failed: then the other ranks fail, too.
 *
 * \param[in] message In UTF-8; shortened to about 240 bytes.
 */
BNGRAD_EXPORT int32_t bngrad_fail_collective(const char* message, char* error, size_t error_size);

/** \brief c = a + b, for measuring memory bandwidth.
 *
 * With arrays that are larger than the caches this is an upper bound on the bytes per second of an op that
 * reads and writes its arrays once. Uses non-temporal stores where available.
 *
 * \param[in] count The number of elements, 0 or more.
 * \param[in] a, b, c Arrays of `count` elements; NULL only if count is 0.
 */
BNGRAD_EXPORT int32_t bngrad_add_arrays(int64_t count, const float* a, const float* b, float* c,
                                        int32_t num_threads, char* error, size_t error_size);

/** \brief Installs a crash handler for the process: a fatal signal prints a message and exits.
 *
 * For programs that process one untrusted file, such as bngrad's command line. No other function needs it.
 * SIGABRT, SIGFPE, SIGILL, SIGSEGV and SIGBUS, or on Windows abort() and exceptions that nothing handles,
 * print `message`, the name of the signal or the exception in parentheses and a newline to stderr, and end
 * the process with `exit_code`. A stack overflow of the calling thread is handled, too. Windows ends a
 * process without asking the handler where it finds the heap or a stack frame corrupted (fail fast). Not
 * thread-safe.
 *
 * \param[in] message Copied; truncated to 4095 bytes. In UTF-8, if it is to be readable in a Windows console.
 * \param[in] exit_code 1 to 125; shells use the codes above.
 */
BNGRAD_EXPORT int32_t bngrad_exit_on_fault(const char* message, int32_t exit_code, char* error,
                                           size_t error_size);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* BNGRAD_H_ */
