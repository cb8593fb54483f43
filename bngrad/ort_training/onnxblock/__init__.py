"""Builds forward, training and optimizer models of blocks, as `onnxruntime.training.onnxblock` does."""

from bngrad.ort_training.onnxblock import blocks, loss, optim
from bngrad.ort_training.onnxblock.block import Block
from bngrad.ort_training.onnxblock.checkpoint_utils import load_checkpoint_to_model, save_checkpoint
from bngrad.ort_training.onnxblock.model_accessor import base, custom_op_library, empty_base
from bngrad.ort_training.onnxblock.onnxblock import ForwardBlock, TrainingBlock

__all__ = [
    "Block",
    "ForwardBlock",
    "TrainingBlock",
    "base",
    "blocks",
    "custom_op_library",
    "empty_base",
    "load_checkpoint_to_model",
    "loss",
    "optim",
    "save_checkpoint",
]
