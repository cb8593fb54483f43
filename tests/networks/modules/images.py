"""Small networks of images, volumes and generated images."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as everybody calls it

BATCH = 4


def conv_norm(inputs: int, outputs: int, kernel: int = 3, stride: int = 1) -> nn.Sequential:
    """Convolution, batch norm, ReLU."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()
    )


class Residual(nn.Module):
    """A residual block; ``before`` puts batch norm and ReLU before the convolutions."""

    def __init__(self, inputs: int, outputs: int, stride: int, *, before: bool, squeeze: bool = False) -> None:
        super().__init__()
        self.before = before
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(inputs if before else outputs)
        self.norm2 = nn.BatchNorm2d(outputs)
        changed = inputs != outputs or stride != 1
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False) if changed else nn.Identity()
        self.gate = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(outputs, outputs // 4, 1),
            nn.ReLU(),
            nn.Conv2d(outputs // 4, outputs, 1),
            nn.Sigmoid(),
        )
        self.gate = self.gate if squeeze else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.before:
            x = F.relu(self.norm1(x))
            return self.shortcut(x) + self.conv2(F.relu(self.norm2(self.conv1(x))))
        y = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        y = y if self.gate is None else y * self.gate(y)
        return F.relu(y + self.shortcut(x))


def _residual_network(widths: list[int], depth: int, **options: bool) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Conv2d(3, widths[0], 3, 1, 1, bias=False)]
    last = widths[0]
    for stage, width in enumerate(widths):
        for block in range(depth):
            layers.append(Residual(last, width, 2 if stage and not block else 1, **options))
            last = width
    head = [nn.BatchNorm2d(last), nn.ReLU()] if options.get("before") else []
    return nn.Sequential(*layers, *head, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(last, 10))


def image(size: int = 32, channels: int = 3) -> torch.Tensor:
    return torch.randn(BATCH, channels, size, size)


def cifar_resnet20():
    return _residual_network([16, 32, 64], 3, before=False), image()


def preact_resnet():
    return _residual_network([16, 32, 64], 2, before=True), image()


def wide_resnet16_2():
    return _residual_network([32, 64, 128], 2, before=True), image()


def se_net():
    return _residual_network([16, 32, 64], 1, before=False, squeeze=True), image()


class Maxout(nn.Module):
    """The maximum of pairs of channels."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.unflatten(1, (2, -1)).amax(1)


def maxout():
    layers = [
        nn.Conv2d(3, 32, 3),
        nn.BatchNorm2d(32),
        Maxout(),
        nn.Conv2d(16, 32, 3),
        nn.BatchNorm2d(32),
        Maxout(),
    ]
    return nn.Sequential(*layers, nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(16, 10)), image()


class SpatialTransformer(nn.Module):
    """Learns an affine transform of its input; the last layer begins with the identity."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(conv_norm(3, 8, 3, 2), conv_norm(8, 16, 3, 2), nn.Flatten())
        self.theta = nn.Linear(16 * 8 * 8, 6)
        nn.init.normal_(self.theta.weight, std=0.001)
        self.theta.bias.data = torch.tensor([1.0, 0.1, 0.02, -0.1, 0.9, 0.03])
        self.network = nn.Sequential(conv_norm(3, 16), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        grid = F.affine_grid(self.theta(self.features(x)).view(-1, 2, 3), list(x.shape), align_corners=False)
        return self.network(F.grid_sample(x, grid, align_corners=False))


def spatial_transformer():
    return SpatialTransformer(), image()


class UNet(nn.Module):
    """Encoder and decoder of two levels with connections between them, in two or three dimensions."""

    def __init__(self, dimensions: int, outputs: int) -> None:
        super().__init__()
        conv, norm, up, pool = {
            2: (nn.Conv2d, nn.BatchNorm2d, nn.ConvTranspose2d, nn.MaxPool2d),
            3: (nn.Conv3d, nn.BatchNorm3d, nn.ConvTranspose3d, nn.MaxPool3d),
        }[dimensions]

        def block(inputs: int, width: int) -> nn.Sequential:
            layers = (
                conv(inputs, width, 3, 1, 1),
                norm(width),
                nn.ReLU(),
                conv(width, width, 3, 1, 1, bias=False),
            )
            return nn.Sequential(*layers, norm(width), nn.ReLU())

        self.down1, self.down2, self.bottom = block(1, 8), block(8, 16), block(16, 32)
        self.pool = pool(2)
        self.up2, self.up1 = up(32, 16, 2, 2), up(16, 8, 2, 2)
        self.join2, self.join1 = block(32, 16), block(16, 8)
        self.head = conv(8, outputs, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = self.down1(x)
        second = self.down2(self.pool(first))
        y = self.up2(self.bottom(self.pool(second)))
        y = self.up1(self.join2(torch.cat([y, second], 1)))
        return self.head(self.join1(torch.cat([y, first], 1)))


def unet():
    return UNet(2, 10), image(32, 1)


def unet_3d():
    return UNet(3, 10), torch.randn(2, 1, 8, 16, 16)


class Hourglass(nn.Module):
    """Down and up again by bilinear interpolation, with a residual branch at each level."""

    def __init__(self, depth: int, width: int) -> None:
        super().__init__()
        self.branch = Residual(width, width, 1, before=True)
        self.inner = Hourglass(depth - 1, width) if depth else conv_norm(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = self.inner(F.max_pool2d(x, 2))
        return self.branch(x) + F.interpolate(inner, scale_factor=2.0, mode="bilinear", align_corners=False)


def hourglass():
    return nn.Sequential(conv_norm(3, 16), Hourglass(2, 16), nn.Conv2d(16, 5, 1)), image()


def dcgan_generator():
    def up(inputs: int, outputs: int, stride: int, padding: int) -> list[nn.Module]:
        layer = nn.ConvTranspose2d(inputs, outputs, 4, stride, padding, bias=False)
        return [layer, nn.BatchNorm2d(outputs), nn.ReLU()]

    layers = [*up(32, 64, 1, 0), *up(64, 32, 2, 1), *up(32, 16, 2, 1)]
    return nn.Sequential(*layers, nn.ConvTranspose2d(16, 3, 4, 2, 1), nn.Tanh()), torch.randn(BATCH, 32, 1, 1)


def dcgan_discriminator():
    def down(inputs: int, outputs: int) -> list[nn.Module]:
        return [nn.Conv2d(inputs, outputs, 4, 2, 1, bias=False), nn.BatchNorm2d(outputs), nn.LeakyReLU(0.2)]

    first = [nn.Conv2d(3, 16, 4, 2, 1), nn.LeakyReLU(0.2)]
    return nn.Sequential(*first, *down(16, 32), *down(32, 64), nn.Conv2d(64, 1, 4)), image()


def patchgan_discriminator():
    layers = [nn.ReflectionPad2d(1), nn.Conv2d(3, 16, 4, 2), nn.LeakyReLU(0.2), nn.ReplicationPad2d(1)]
    layers += [nn.Conv2d(16, 32, 4, 2, bias=False), nn.BatchNorm2d(32), nn.LeakyReLU(0.2), nn.ZeroPad2d(1)]
    return nn.Sequential(*layers, nn.Conv2d(32, 1, 4)), image()


class SuperResolution(nn.Module):
    """Residual blocks with PReLU, then sub-pixel convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 16, 9, 1, 4), nn.PReLU())
        self.body = nn.Sequential(
            nn.Conv2d(16, 16, 3, 1, 1),
            nn.BatchNorm2d(16),
            nn.PReLU(16),
            nn.Conv2d(16, 16, 3, 1, 1),
            nn.BatchNorm2d(16),
        )
        self.up = nn.Sequential(
            nn.Conv2d(16, 64, 3, 1, 1), nn.PixelShuffle(2), nn.PReLU(), nn.Conv2d(16, 3, 9, 1, 4)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        return self.up(x + self.body(x))


def super_resolution():
    return SuperResolution(), image(16)


class VariationalAutoencoder(nn.Module):
    """The noise of the latent variable is an input, so that two runs are alike."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(conv_norm(3, 16, 3, 2), conv_norm(16, 32, 3, 2), nn.Flatten())
        self.mean, self.log_var = nn.Linear(2048, 8), nn.Linear(2048, 8)
        self.decoder = nn.Sequential(
            nn.Linear(8, 2048, bias=False),
            nn.BatchNorm1d(2048),
            nn.ELU(),
            nn.Unflatten(1, (32, 8, 8)),
            nn.ConvTranspose2d(32, 16, 3, 2, 1, 1),
            nn.BatchNorm2d(16),
            nn.SiLU(),
            nn.Upsample(scale_factor=2, mode="nearest"),
            nn.Conv2d(16, 3, 3, 1, 1),
        )

    def forward(self, x: torch.Tensor, noise: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = self.encoder(x)
        mean, log_var = self.mean(y), self.log_var(y)
        divergence = -0.5 * (1 + log_var - mean.square() - log_var.exp()).sum(1)
        return self.decoder(mean + noise * (0.5 * log_var).exp()), divergence


def variational_autoencoder():
    return VariationalAutoencoder(), (image(), torch.randn(BATCH, 8))
