"""The ops that other gradient builders for ONNX have, besides those that no gradient flows through.

Looked up on 2026-11-27: ONNX Runtime's by building the gradient of each op with it; onnx-ad's and onnxsim's in the
tables of their wheels, and for ops that onnx-ad splits into others by `onnx_ad.reverse`.
"""

from __future__ import annotations

BUILDERS = {
    "ORT": """
        Abs Add AveragePool BatchNormInternal BiasGelu Cast Clip Concat Conv ConvTranspose Cos Div Dropout Erf
        Exp Expand FastGelu Flatten GRU Gather GatherElements GatherND Gelu Gemm GlobalAveragePool Identity
        LSTM LayerNormalization LeakyRelu Log LogSoftmax MatMul Max MaxPool Min Mul Neg Pad Pow QuickGelu
        Reciprocal ReduceL2 ReduceLogSumExp ReduceMean ReduceSum Relu Reshape Resize ScatterElements ScatterND
        Sigmoid SimplifiedLayerNormalization Sin Slice Softmax SoftmaxCrossEntropyLoss Split Sqrt Squeeze Sub
        Tanh Tile TopK Transpose Trilu Unsqueeze Where
    """,
    "onnx-ad": """
        Abs Acos Acosh Add AffineGrid Asin Asinh Atan Atanh Attention AveragePool BatchNormalization Cast
        CastLike Celu CenterCropPad Clip Col2Im Compress Concat Conv ConvTranspose Cos Cosh CumProd CumSum DFT
        DeformConv DepthToSpace DequantizeLinear Div Dropout Einsum Elu Erf Exp Expand Flatten GRU Gather
        GatherElements GatherND Gelu Gemm GlobalAveragePool GlobalLpPool GlobalMaxPool GridSample
        GroupNormalization HardSigmoid HardSwish Identity If InstanceNormalization LRN LSTM LayerNormalization
        LeakyRelu LinearAttention Log LogSoftmax Loop LpNormalization LpPool MatMul Max MaxPool MaxUnpool Mean
        MeanVarianceNormalization Min Mish Mod Mul Neg NegativeLogLikelihoodLoss PRelu Pad Pow
        RMSNormalization RNN Range Reciprocal ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax
        ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare Relu Reshape Resize ReverseSequence RoiAlign
        RotaryEmbedding STFT Scan ScatterElements ScatterND Selu Shrink Sigmoid Sin Sinh Slice Softmax
        SoftmaxCrossEntropyLoss Softplus Softsign SpaceToDepth Split Sqrt Squeeze Sub Sum SwiGLU Swish Tan
        Tanh TensorScatter ThresholdedRelu Tile TopK Transpose Trilu Unique Unsqueeze Where
    """,
    "onnxsim": """
        Add AveragePool BatchNormalization Clip Concat Conv DepthToSpace DequantizeLinear Div Dropout Elu Erf
        Exp Expand Gather Gemm GlobalAveragePool Identity InstanceNormalization LayerNormalization LeakyRelu
        Log MatMul MaxPool Mul Neg PRelu Pad QuantizeLinear ReduceMean ReduceSum Relu Reshape Sigmoid Slice
        Softmax Softplus Split Sqrt Squeeze Sub Tanh Transpose Unsqueeze Where
    """,
}
"""The ops of each builder: onnxruntime-training 1.19.2, onnx-ad 0.3.0, and graph_grad of onnxsim 0.8.1."""
