"""The ops of onnx's default domain that have no gradient rule, and why.

With those of `RULES` they are all that onnx has. What a newer onnx brings is in neither table, and is refused too.
"""

from __future__ import annotations

NOT_WRITTEN = "no rule is written"

_REASONS: dict[str, str] = {
    NOT_WRITTEN: """
        Acos Acosh AffineGrid Asin Asinh Atan Atanh CausalConvWithState CenterCropPad Col2Im Compress Cosh CumProd
        DFT DeformConv Det Einsum GlobalLpPool GridSample LpPool MaxRoiPool MaxUnpool MeanVarianceNormalization
        MelWeightMatrix Mod RoiAlign RotaryEmbedding STFT Shrink Sinh SwiGLU Swish Tan TensorScatter TopK Unique
        Attention LinearAttention GRU LSTM RNN
    """,
    "control flow": "If Loop Scan",
    "sequences": """
        ConcatFromSequence Optional OptionalGetElement OptionalHasElement SequenceAt SequenceConstruct
        SequenceEmpty SequenceErase SequenceInsert SequenceLength SequenceMap SplitToSequence
    """,
    "quantization": """
        ConvInteger DequantizeLinear DynamicQuantizeLinear MatMulInteger QLinearConv QLinearMatMul QuantizeLinear
    """,
    "bits": "BitCast",
    "no float output": """
        And ArgMax ArgMin BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Equal Greater GreaterOrEqual IsInf
        IsNaN Less LessOrEqual Multinomial NonMaxSuppression NonZero Not Or RegexFullMatch Shape Size StringConcat
        StringNormalizer StringSplit Xor
    """,
    "no float input": """
        BlackmanWindow Constant ConstantOfShape HammingWindow HannWindow ImageDecoder RandomNormal RandomUniform
        TfIdfVectorizer
    """,
    "deprecated": "Scatter Upsample",
}

WITHOUT_RULE: dict[str, str] = {op: reason for reason, ops in _REASONS.items() for op in ops.split()}
"""Op type -> why it has no rule."""
