"""Backbones, feature pyramids and heads of detectors, in training; without anchors, matching and boxes."""

from __future__ import annotations

from functools import partial

import torch
from torch import nn
from torchvision.models import detection
from torchvision.models.detection.backbone_utils import mobilenet_backbone, resnet_fpn_backbone
from torchvision.models.detection.faster_rcnn import FastRCNNConvFCHead

from networks.modules.images import image

_LAYERS = {"weights": None, "norm_layer": nn.BatchNorm2d, "trainable_layers": 5}
"""Batch norms in training mode; by default these backbones have frozen ones."""


def fpn_resnet18():
    return resnet_fpn_backbone(backbone_name="resnet18", **_LAYERS), image(64)


def fpn_mobilenet_v3():
    return mobilenet_backbone(
        backbone_name="mobilenet_v3_large",
        fpn=True,
        trainable_layers=6,
        **{key: _LAYERS[key] for key in ("weights", "norm_layer")},
    ), image(64)


class Dense(nn.Module):
    """A backbone and the head of a dense detector: class logits and boxes at every place."""

    def __init__(self, detector: nn.Module) -> None:
        super().__init__()
        self.backbone, self.head = detector.backbone, detector.head

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return self.head(list(self.backbone(x).values()))


def retinanet_resnet50():
    return Dense(_resnet50(detection.retinanet_resnet50_fpn_v2)), image(64)


def fcos_resnet50():
    return Dense(_resnet50(detection.fcos_resnet50_fpn)), image(64)


def _resnet50(make) -> nn.Module:
    return make(
        weights=None, weights_backbone=None, num_classes=5, trainable_backbone_layers=5, norm_layer=nn.BatchNorm2d
    )


def ssdlite_mobilenet_v3():
    norm = partial(nn.BatchNorm2d, eps=0.001, momentum=0.03)
    detector = detection.ssdlite320_mobilenet_v3_large(
        weights=None, weights_backbone=None, num_classes=5, norm_layer=norm, trainable_backbone_layers=6
    )
    return Dense(detector), image(64)


class RegionHeads(nn.Module):
    """The head of boxes of Faster R-CNN v2, on regions that are already cut out."""

    def __init__(self) -> None:
        super().__init__()
        self.head = FastRCNNConvFCHead((16, 7, 7), [16, 16], [32], norm_layer=nn.BatchNorm2d)
        self.classes, self.boxes = nn.Linear(32, 5), nn.Linear(32, 20)

    def forward(self, regions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.head(regions)
        return self.classes(y), self.boxes(y)


def region_heads():
    return RegionHeads(), torch.randn(8, 16, 7, 7)
