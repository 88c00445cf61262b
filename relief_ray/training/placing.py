"""Moving a backbone to where it computes; its trained parameters follow the trainer's buffer."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from relief_ray.models.backbone import Backbone


def place(backbone: Backbone, device: torch.device) -> None:
    """Gives the stages copies of all frozen tensors on ``device``, one of each; the groups' parameters are not touched.

    Copies, because other backbones of this process share what is frozen, and the server's own stays on the CPU.
    """
    if device.type == "cpu":
        return
    own = {id(p) for parameters in backbone.parameters.values() for p in parameters}
    moved: dict[int, tuple[Tensor, Tensor]] = {}
    roots = [root for stage in backbone.stages for root in (stage.module, stage.pool) if root is not None]
    for module in (m for root in roots for m in root.modules()):
        for name, tensor in [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]:
            if id(tensor) in own or tensor.device.type == device.type:
                continue
            # The old one is kept beside the new one: an id is a tensor's only as long as it lives.
            if id(tensor) not in moved:
                moved[id(tensor)] = (tensor, _copy(tensor, device))
            setattr(module, name, moved[id(tensor)][1])


def _copy(tensor: Tensor, device: torch.device) -> Tensor:
    new = tensor.detach().to(device)
    return nn.Parameter(new, requires_grad=False) if isinstance(tensor, nn.Parameter) else new
