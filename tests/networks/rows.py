"""The networks that `make networks` tries, with their source, input and loss.

This file imports nothing that an environment of the project lacks; `build.py` makes the modules.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

WAYS = ("bngrad.torch", "legacy")
"""The ways from PyTorch: this project's, and ``torch.onnx.export(dynamo=False)`` with `bngrad.differentiate`."""


@dataclass(frozen=True)
class Network:
    """A row of the table."""

    name: str
    family: str
    source: str
    """``torchvision``, ``timm`` or ``modules``, the file beside this one."""
    size: tuple[int, ...]
    """The input without the batch; of networks of ``modules`` that make their own example, empty."""
    loss: str = "labels"
    """A function of `losses`."""
    options: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of the constructor."""
    batch: int = 4


def _torchvision(family: str, sizes: dict[str, int], loss: str = "labels", **options: Any) -> list[Network]:
    return [Network(name, family, "torchvision", (3, size, size), loss, options) for name, size in sizes.items()]


def _timm(family: str, sizes: dict[str, int], *, resized: bool = False) -> list[Network]:
    """Rows of timm; ``resized``: the network is constructed for the size of its input."""
    return [
        Network(name, family, "timm", (3, size, size), options={"img_size": size} if resized else {})
        for name, size in sizes.items()
    ]


def _modules(family: str, **losses: str) -> list[Network]:
    return [Network(name, family, "modules", (), loss) for name, loss in losses.items()]


CLASSIFICATION = [
    *_torchvision(
        "classification",
        {
            "resnet18": 64,
            "resnet50": 64,
            "resnext50_32x4d": 64,
            "wide_resnet50_2": 64,
            "densenet121": 64,
            "vgg11_bn": 224,
            "mobilenet_v2": 64,
            "mobilenet_v3_small": 64,
            "mobilenet_v3_large": 64,
            "mnasnet0_5": 64,
            "shufflenet_v2_x0_5": 64,
            "efficientnet_b0": 64,
            "efficientnet_v2_s": 64,
            "regnet_x_400mf": 64,
            "regnet_y_400mf": 64,
        },
    ),
    *_torchvision("classification", {"googlenet": 128}, init_weights=False),
    *_torchvision("classification", {"inception_v3": 96}, init_weights=False, aux_logits=False),
    *_timm(
        "classification",
        {
            "resnet10t": 64,
            "resnet26d": 64,
            "resnetblur18": 64,
            "resnetaa34d": 64,
            "seresnet18": 64,
            "ecaresnet26t": 64,
            "skresnet18": 64,
            "resnest14d": 64,
            "res2net50_48w_2s": 64,
            "legacy_seresnext26_32x4d": 64,
            "densenetblur121d": 64,
            "dla34": 64,
            "dla46x_c": 64,
            "dpn48b": 64,
            "hrnet_w18_small": 64,
            "cspresnext50": 64,
            "darknet21": 64,
            "cs3darknet_focus_s": 64,
            "ese_vovnet19b_slim_dw": 64,
            "rexnet_100": 64,
            "rexnetr_100": 64,
            "selecsls42b": 64,
            "tresnet_m": 64,
            "xception41": 64,
            "legacy_xception": 96,
            "inception_v4": 96,
            "inception_resnet_v2": 96,
            "hgnetv2_b0": 64,
            "regnetz_005": 64,
            "regnetv_040": 64,
            "gernet_s": 64,
            "gcresnext26ts": 64,
            "resnet32ts": 64,
            "convmixer_768_32": 32,
            "inception_next_atto": 64,
            "fasternet_t0": 64,
        },
    ),
]

MOBILE = _timm(
    "mobile",
    {
        "mobilenetv1_100": 64,
        "mobilenetv2_050": 64,
        "mobilenetv3_small_050": 64,
        "mobilenetv4_conv_small_050": 64,
        "mobilenetv4_hybrid_medium_075": 64,
        "mobilenet_edgetpu_v2_xs": 64,
        "tf_mobilenetv3_small_minimal_100": 64,
        "efficientnet_lite0": 64,
        "tf_efficientnetv2_b0": 64,
        "efficientnet_es": 64,
        "efficientnet_cc_b0_4e": 64,
        "tinynet_e": 64,
        "mixnet_s": 64,
        "fbnetc_100": 64,
        "fbnetv3_b": 64,
        "spnasnet_100": 64,
        "semnasnet_050": 64,
        "hardcorenas_a": 64,
        "lcnet_050": 64,
        "lcnetv2_small": 64,
        "ghostnet_050": 64,
        "ghostnetv2_100": 64,
        "starnet_s050": 64,
    },
)

REPARAMETRIZED = _timm(
    "re-parametrized",
    {
        "repvgg_a0": 32,
        "mobileone_s0": 64,
        "repvit_m0_9": 64,
        "repghostnet_050": 64,
        "fastvit_t8": 64,
        "ghostnetv3_050": 64,
    },
)

TRANSFORMERS = [
    *_timm(
        "transformers with batch norm",
        {
            "mobilevit_xxs": 64,
            "mobilevitv2_050": 64,
            "efficientvit_b0": 64,
            "efficientvit_m0": 224,
            "swiftformer_xs": 64,
            "nextvit_small": 64,
            "shvit_s1": 128,
            "lambda_resnet26t": 64,
            "halonet26t": 256,
            "lowformer_b0": 64,
            "iformer_t": 64,
            "cpubone_nano": 64,
            "xcit_nano_12_p16_224": 64,
            "efficientvim_m1": 64,
        },
    ),
    *_timm("transformers with batch norm", {"tiny_vit_5m_224": 64}),
    *_timm(
        "transformers with batch norm",
        {
            "levit_128s": 64,
            "levit_conv_128s": 64,
            "efficientformerv2_s0": 64,
            "coatnet_bn_0_rw_224": 64,
            "maxvit_rmlp_pico_rw_256": 64,
            "botnet26t_256": 64,
            "visformer_tiny": 64,
            "volo_d1_224": 64,
        },
        resized=True,
    ),
    *_timm("transformers with batch norm", {"efficientformer_l1": 224}),
]

SEGMENTATION = _torchvision(
    "segmentation",
    {"deeplabv3_mobilenet_v3_large": 64, "lraspp_mobilenet_v3_large": 64},
    weights_backbone=None,
) + _torchvision(
    "segmentation", {"deeplabv3_resnet50": 64, "fcn_resnet50": 64}, weights_backbone=None, aux_loss=True
)

DETECTION = _modules(
    "detection",
    fpn_resnet18="logits",
    fpn_mobilenet_v3="logits",
    retinanet_resnet50="logits",
    fcos_resnet50="logits",
    ssdlite_mobilenet_v3="logits",
    region_heads="logits",
)

VIDEO = [
    Network(name, "video", "torchvision", (3, frames, size, size), batch=batch)
    for name, frames, size, batch in (
        ("r3d_18", 8, 32, 4),
        ("mc3_18", 8, 32, 4),
        ("r2plus1d_18", 8, 32, 4),
        ("s3d", 16, 224, 2),
    )
]

SMALL = [
    *_modules(
        "generative",
        dcgan_generator="logits",
        dcgan_discriminator="logits",
        patchgan_discriminator="logits",
        super_resolution="values",
        variational_autoencoder="values",
    ),
    *_modules(
        "classification",
        cifar_resnet20="labels",
        preact_resnet="labels",
        wide_resnet16_2="labels",
        se_net="labels",
        maxout="labels",
        spatial_transformer="labels",
    ),
    *_modules("dense output", unet="labels", unet_3d="labels", hourglass="values"),
    *_modules(
        "vectors and sets",
        mlp="labels",
        tabular="labels",
        pointnet="labels",
        graph_convolution="labels",
    ),
    *_modules(
        "sequences",
        cnn_1d="labels",
        temporal_convolution="labels",
        eeg_net="labels",
        ecapa_tdnn="labels",
        conformer="labels",
        postnet="values",
        conv_gru="labels",
        conv_rnn="labels",
        conv_lstm_bidirectional="labels",
        crnn="labels",
        ctc="ctc",
    ),
    *_modules(
        "several passes",
        siamese="similarity",
        triplet="triplet",
        byol="byol",
        sim_siam="byol",
        shared_block="labels",
        moving_target="logits",
    ),
    *_modules(
        "forms of batch norm",
        sync_batch_norm="labels",
        weight_norm="labels",
        spectral_norm="labels",
        momentum_none="labels",
        momentum_zero="labels",
        not_affine="labels",
        no_running_statistics="labels",
        frozen="labels",
        partly_frozen="labels",
        untrained_stem="labels",
        tied_weights="values",
        ghost_batches="labels",
    ),
]

NETWORKS = [*CLASSIFICATION, *MOBILE, *REPARAMETRIZED, *TRANSFORMERS, *SEGMENTATION, *DETECTION, *VIDEO, *SMALL]
"""All of them, in the order of the table."""
