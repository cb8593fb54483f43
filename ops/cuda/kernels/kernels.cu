// The kernels of one element type, BNGRAD_T; each type is a module of its own, BNGRAD_MODULE, which the
// driver compiles when it is first used. Names: KIND_rows or KIND_columns, and _wide where vectors have kWide
// elements.
#include "cuda/kernels/adam.h"
#include "cuda/kernels/all_finite.h"
#include "cuda/kernels/copy.h"
#include "cuda/kernels/finish.h"
#include "cuda/kernels/lion.h"
#include "cuda/kernels/maps.h"
#include "cuda/kernels/max_pool_grad.h"
#include "cuda/kernels/rmsprop.h"
#include "cuda/kernels/sgd.h"
#include "cuda/kernels/sums.h"

namespace bngrad::cuda::BNGRAD_MODULE {

using T = BNGRAD_T;

#define BNGRAD_FORMS(name, Arguments, Body, Kind)                                 \
  BNGRAD_KERNEL(name##_rows, Arguments, (Body<T, 1, false, Kind>(a)))             \
  BNGRAD_KERNEL(name##_columns, Arguments, (Body<T, 1, true, Kind>(a)))           \
  BNGRAD_KERNEL(name##_rows_wide, Arguments, (Body<T, kWide<T>, false, Kind>(a))) \
  BNGRAD_KERNEL(name##_columns_wide, Arguments, (Body<T, kWide<T>, true, Kind>(a)))
#define BNGRAD_SUM(name, Kind) BNGRAD_FORMS(sum_##name, SumArguments, Sum, Kind)
#define BNGRAD_MAP(name, Kind) BNGRAD_FORMS(map_##name, MapArguments, Map, Kind)
#define BNGRAD_FINISH(name, Kind) \
  BNGRAD_KERNEL(finish_##name, FinishArguments, (Finish<Arithmetic<T>, Kind>(a)))

BNGRAD_SUM(moments, SumMoments)
BNGRAD_SUM(grad, SumGrad<false>)
BNGRAD_SUM(relu_grad, SumGrad<true>)
BNGRAD_SUM(grad_grad, SumGradGrad)
BNGRAD_FINISH(training, FinishTraining)
BNGRAD_FINISH(grad_training, FinishGrad<true>)
BNGRAD_FINISH(grad_frozen, FinishGrad<false>)
BNGRAD_FINISH(grad_grad_training, FinishGradGrad<true>)
BNGRAD_FINISH(grad_grad_frozen, FinishGradGrad<false>)
BNGRAD_FINISH(moments, FinishMoments)
BNGRAD_FINISH(apply, FinishApply)
BNGRAD_FINISH(grad_apply, FinishGradApply)
BNGRAD_KERNEL(copy_box, CopyBoxArguments, (CopyBox<T>(a)))
BNGRAD_MAP(forward, MapForward)
BNGRAD_MAP(grad_training, MapGradTraining<false>)
BNGRAD_MAP(relu_grad_training, MapGradTraining<true>)
BNGRAD_MAP(grad_frozen, MapGradFrozen<false>)
BNGRAD_MAP(relu_grad_frozen, MapGradFrozen<true>)
BNGRAD_MAP(grad_grad_training, MapGradGradTraining)
BNGRAD_MAP(grad_grad_frozen, MapGradGradFrozen)
// Launched in the modules of float and double only.
BNGRAD_KERNEL(adam_update, GroupUpdateArguments<AdamFormula>, (UpdateGroup<Arithmetic<T>>(a)))
BNGRAD_KERNEL(all_finite, AllFiniteArguments, (CheckFinite<Arithmetic<T>>(a)))
BNGRAD_KERNEL(max_pool_find, MaxPoolArguments, (FindLargest<Arithmetic<T>>(a)))
BNGRAD_KERNEL(max_pool_add, MaxPoolArguments, (AddFound<Arithmetic<T>>(a)))
// Launched in the module of float only.
BNGRAD_KERNEL(lion_update, GroupUpdateArguments<LionFormula>, (UpdateGroup<float>(a)))
BNGRAD_KERNEL(rmsprop_update, GroupUpdateArguments<RmspropFormula>, (UpdateGroup<float>(a)))
BNGRAD_KERNEL(sgd_update, GroupUpdateArguments<SgdFormula>, (UpdateGroup<float>(a)))

#undef BNGRAD_FORMS
#undef BNGRAD_SUM
#undef BNGRAD_MAP
#undef BNGRAD_FINISH

}  // namespace bngrad::cuda::BNGRAD_MODULE
