"""`onnxruntime.training.api`: training loops over the files that `generate_artifacts` writes."""

from bngrad.ort_training.api.checkpoint_state import CheckpointState
from bngrad.ort_training.api.lr_scheduler import LinearLRScheduler
from bngrad.ort_training.api.module import Module
from bngrad.ort_training.api.optimizer import Optimizer

__all__ = ["CheckpointState", "LinearLRScheduler", "Module", "Optimizer"]
