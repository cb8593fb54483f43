"""The ops of ``com.microsoft`` in all supported stock releases of ONNX Runtime.

They are listed here because training builds of ONNX Runtime do not list their ops. The table is the intersection
of the stock releases 1.17.3 and 1.31.1.
"""

from __future__ import annotations

MICROSOFT_OPS = frozenset(
    """
    Attention AttnLSTM BeamSearch BiasAdd BiasDropout BiasGelu BiasSoftmax BiasSplitGelu BifurcationDetector
    BitmaskBiasDropout BitmaskDropout CDist ComplexMul ComplexMulConj ConvTransposeWithDynamicPads
    CropAndResize DecoderAttention DecoderMaskedMultiHeadAttention DecoderMaskedSelfAttention DequantizeBFP
    DequantizeLinear DequantizeWithOrder DynamicQuantizeLSTM DynamicQuantizeMatMul DynamicTimeWarping EPContext
    EmbedLayerNormalization ExpandDims FastGelu FusedConv FusedGemm FusedMatMul FusedMatMulActivation
    GatedRelativePositionBias GatherND Gelu GemmFastGelu GemmFloat8 GreedySearch GridSample GroupNorm
    GroupQueryAttention Inverse Irfft IsAllFinite LongformerAttention MatMulBnb4 MatMulFpQ4 MatMulInteger16
    MatMulIntegerToFloat MatMulNBits MaxpoolWithMask MoE MulInteger MultiHeadAttention MurmurHash3
    NGramRepeatBlock NhwcConv NhwcFusedConv NhwcMaxPool PackedAttention PackedMultiHeadAttention Pad QAttention
    QEmbedLayerNormalization QGemm QLinearAdd QLinearAveragePool QLinearConcat QLinearConv
    QLinearGlobalAveragePool QLinearLeakyRelu QLinearMul QLinearReduceMean QLinearSigmoid QLinearSoftmax
    QLinearWhere QOrderedAttention QOrderedGelu QOrderedLayerNormalization QOrderedLongformerAttention
    QOrderedMatMul QuantizeBFP QuantizeLinear QuantizeWithOrder QuickGelu Range ReduceSumInteger
    RelativePositionBias RemovePadding RestorePadding Rfft RotaryEmbedding SampleOp Sampling SkipGroupNorm
    SkipLayerNormalization SkipSimplifiedLayerNormalization Snpe SparseToDenseMatMul Tokenizer TorchEmbedding
    TransposeMatMul Trilu UnfoldTensor Unique WhisperBeamSearch WordConvEmbedding
    """.split()  # noqa: SIM905 - the table is for reading
)
