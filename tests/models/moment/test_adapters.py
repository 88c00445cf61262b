"""Backbone 2's trained parameters in PEFT's files: every value is in one of them, to the bit."""

import json

import pytest
import torch
from safetensors.torch import load_file

from relief_ray.core.extra_modules import Classifier, Connector, Experts
from relief_ray.models.extra import with_extra_modules
from relief_ray.models.moment.adapters import save_adapters
from tests.models.tiny_moment import TINY, stirred, tiny

pytestmark = pytest.mark.usefixtures("run_cache")

ADDED = {
    "nothing": [],
    "exit": [Classifier(id="exit.acc", after=("encoder.acc.1",), modality="acc")],
    "experts": [Experts(id="mix", of=("fusion.A.acc", "fusion.A.gyro", "fusion.A.hr", "fusion.B"), most=3)],
    "connector": [Connector(id="link", num_tasks=2, bottleneck=4)],
}


def saved(folder):
    """Tensors of all files by folder and key, without PEFT's prefix."""
    files = {path: load_file(path) for path in folder.rglob("*.safetensors")}
    return {
        (path.parent.relative_to(folder).name, k.removeprefix("base_model.model.")): tensor
        for path, tensors in files.items()
        for k, tensor in tensors.items()
    }


@pytest.mark.parametrize("additions", ADDED.values(), ids=ADDED)
def test_every_value_is_in_one_file_to_the_bit(additions, tmp_path):
    backbone = with_extra_modules(tiny(), additions, 0)
    layout, moved = backbone.layout, stirred(backbone)
    save_adapters(TINY, layout, moved, tmp_path)
    found, blocks = saved(tmp_path), []
    for group in layout:
        for name, tensor in layout.unflatten(group.id, moved[group.id]).items():
            if group.role == "fusion_a":
                blocks.append(tensor)
                continue
            place = {
                "encoder": (f"encoder.{group.modality}", f"encoder.block.{(group.layer or 0) - 1}.{name}.weight"),
                "fusion_b": ("fusion", f"fusion.{name}.weight"),
            }.get(group.role, ("", f"{group.id}.{name}"))
            assert torch.equal(found.pop(place), tensor), place
    assert torch.equal(found.pop(("fusion", "fusion.lora_A.weight")), torch.cat(blocks, dim=1))
    assert not found


@pytest.mark.parametrize(
    ("folder", "targets"), [("encoder.gyro", ["q", "v", "wi_0", "wo"]), ("fusion", ["fusion"])], ids=lambda x: str(x)
)
def test_the_configuration_says_rank_alpha_and_matrices(folder, targets, tmp_path):
    save_adapters(TINY, tiny().layout, tiny().params(), tmp_path)
    config = json.loads((tmp_path / folder / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], sorted(config["target_modules"])) == (4, 16, targets)
