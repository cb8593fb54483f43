"""The reasons why some ops of onnx's default domain, and of bngrad, have no gradient rule.

An op that is neither here nor in `RULES` is also refused: it has no rule yet.
"""

from __future__ import annotations

from bngrad.opset import synchronized

_REASONS: dict[str, str] = {
    "dynamic sequences and optionals": """
        ConcatFromSequence Optional OptionalGetElement OptionalHasElement SequenceAt SequenceConstruct
        SequenceEmpty SequenceErase SequenceInsert SequenceLength SequenceMap SplitToSequence
    """,
    "quantization; train only weights after it, with --wrt (wrt=)": """
        ConvInteger MatMulInteger QLinearConv QLinearMatMul QuantizeLinear
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
"""The reason why an op has no rule, by the op type of the default domain."""

OURS_WITHOUT_RULE: dict[str, str] = {
    function.name: "ops that are synchronized over ranks: pass the model that this one was made from"
    for function in (*synchronized.BATCH_NORMS, *synchronized.COLLECTIVES)
}
"""The same for the ops of bngrad."""
