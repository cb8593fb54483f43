"""TensorFlow's FusedBatchNorm ops and their gradients."""
