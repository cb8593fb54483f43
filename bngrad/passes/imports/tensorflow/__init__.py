"""TensorFlow's FusedBatchNorm and its gradient."""
