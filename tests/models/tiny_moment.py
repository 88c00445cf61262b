"""A small Backbone 2 and its inputs."""

import torch

from relief_ray.models.backbone import InputShape
from relief_ray.models.moment.backbone import MomentConfig

SHAPE = InputShape(channels=(("acc", 3), ("gyro", 2), ("hr", 1)), window=32, num_classes=4)
PAMAP2 = InputShape(channels=(("acc", 9), ("gyro", 9), ("mag", 9), ("hr", 1)), window=256, num_classes=12)
TINY = MomentConfig(size="tiny", rank=4)


def tiny(shape=SHAPE, seed=0, **changes):
    return TINY.model_copy(update=changes).build(shape, seed)


def stirred(backbone, seed=7, by=0.1):
    """Moves every trained value, B included, which starts at zero."""
    make = torch.Generator().manual_seed(seed)
    moved = {j: theta + by * torch.randn(theta.shape, generator=make) for j, theta in backbone.params().items()}
    backbone.load(moved)
    return moved


def windows(num=5, shape=SHAPE, seed=3):
    make = torch.Generator().manual_seed(seed)
    return {m: torch.randn(num, c, shape.window, generator=make) for m, c in shape.channels}
