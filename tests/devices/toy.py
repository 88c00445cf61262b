"""Small cost tables whose sums can be done by hand."""

from relief_ray.core.groups import GroupLayout, ParamGroup, pack
from relief_ray.core.stages import CostTable, StageFlops, StageSpec


def chain() -> CostTable:
    """x.acc -> encoder -> head."""
    return CostTable(
        stages=(
            StageSpec(id="enc", inputs=("x.acc",), groups=frozenset(["enc"]), modality="acc", feature=True),
            StageSpec(id="head", inputs=("enc",), groups=frozenset(["head"])),
        ),
        flops={
            "enc": StageFlops(forward_flops=100.0, input_grad_flops=90.0, weight_grad_flops={"enc": 80.0}),
            "head": StageFlops(forward_flops=10.0, input_grad_flops=9.0, weight_grad_flops={"head": 8.0}),
        },
        num_values={"enc": 4, "head": 2},
    )


def fork(modalities=("acc", "gyro", "hr")) -> CostTable:
    """Two encoder layers and a fusion block per modality, a sum, a head: the shape of both backbones."""
    stages, flops, sizes = [], {}, {}

    def add(name, inputs, forward, modality=None, feature=False):
        stages.append(StageSpec(id=name, inputs=inputs, groups=frozenset([name]), modality=modality, feature=feature))
        flops[name] = StageFlops(
            forward_flops=forward, input_grad_flops=forward, weight_grad_flops={name: 0.5 * forward}
        )
        sizes[name] = 6

    for i, m in enumerate(modalities):
        add(f"e1.{m}", (f"x.{m}",), 30.0 + i, m)
        add(f"e2.{m}", (f"e1.{m}",), 20.0 + i, m, feature=True)
        add(f"A.{m}", (f"e2.{m}",), 10.0 + i, m)
    add("B", tuple(f"A.{m}" for m in modalities), 3.0)
    add("head", ("B",), 2.0)
    return CostTable(stages=tuple(stages), flops=flops, num_values=sizes)


def layout_of(costs: CostTable) -> GroupLayout:
    """Groups of the table's sizes, each one weight of six values as three LoRA ranks of two, where they fit."""

    def role(name):
        return "fusion_a" if name.startswith("A.") else "head" if name == "head" else "encoder"

    return GroupLayout(
        ParamGroup(
            id=j,
            role=role(j),
            modality=j.split(".")[1] if "." in j else None,
            layer=None,
            tensors=pack([("w", (n // 2, 2), "lora_a")]),
        )
        for j, n in costs.num_values.items()
    )
