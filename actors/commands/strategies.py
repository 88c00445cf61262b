"""`relief-ray strategies`: what can be compared, in a sentence each."""

from __future__ import annotations

import json

from actors.commands.output import table
from relief_ray.citations import ENTRIES, cite
from relief_ray.strategies import PRESETS

ABOUT = {
    "fedavg": ("baseline", "everyone trains and sends the whole model; plain mean"),
    "fedprox": ("baseline", "FedAvg with a pull (mu = 0.01) towards the server's model"),
    "darkdistill": ("baseline", "an early-exit model cut to each device's depth; shallow models teach deeper ones"),
    "darkdistill_table": ("baseline, FITTED", "DarkDistill charged for the whole model, clients weighing the same"),
    "fedel": ("baseline", "a window of blocks slides to the output; each device trains what matters most within T_A"),
    "fedel_table": (
        "baseline, FITTED",
        "FedEL within FedAvg's round over the paper's speedup (6.83x, 7.68x)",
    ),
    "fedsa_lora": ("baseline", "LoRA A shared and averaged; B and head stay (dense model: head and fusion bias)"),
    "fedsa_lora_table": ("baseline, FITTED", "FedSA-LoRA that is FedAvg on a dense model, as the paper's bytes imply"),
    "fedicu": ("baseline", "FedICU (reconstructed): 80 % of each change sent, directions averaged by agreement"),
    "fedicu_table": ("baseline, FITTED", "FedICU (reconstructed): the least important fifth frozen, all else sent"),
    "harmony": ("baseline", "one network per sensor first, then fusion averaged in clusters of alike clients"),
    "harmony_table": ("baseline, FITTED", "Harmony as the paper has it: FedAvg whose fusion layer is not federated"),
    "helora": ("baseline", "LoRA rank (dense model: output rows) by device type; the server pads and averages"),
    "helora_table": ("baseline, FITTED", "HeLoRA of the sizes that the paper's speedups and bytes imply"),
    "fedlease": ("baseline", "after a warm-up alone: an expert per cluster of like clients, mixed by a router"),
    "pilot": ("baseline", "adapters per set of sensors between features and fusion; models mixed with the nearest"),
    "relief": ("RELIEF, V0", "own sensors' blocks, then the most divergent groups within T*; cohort mean"),
    "v1": ("ablation", "RELIEF without elastic training: all groups a client can reach, every round"),
    "v2": ("ablation", "RELIEF averaging over everybody (absent = no change); blocks not forced"),
    "v3": ("ablation", "RELIEF with random groups instead of divergent ones; blocks not forced"),
    "v2_mandatory": ("ablation of ours", "V2 with the own sensors' blocks still forced: only dilution differs"),
    "v3_mandatory": ("ablation of ours", "V3 with the own sensors' blocks still forced: only the choice differs"),
    "mandatory_only": ("ablation of ours", "the own sensors' blocks and nothing else"),
    "central": ("bound", "one client with everybody's data and all sensors"),
    "local": ("bound", "no federation: each client keeps a model of its own"),
    "full_only": ("bound", "FedAvg over the clients that own all sensors"),
    "drop_slow": ("bound", "FedAvg over the clients that finish everything within RELIEF's T*"),
}


def strategies_command(bibtex: bool, as_json: bool) -> None:
    """Prints the list, or the references."""
    if bibtex:
        print(cite(dict.fromkeys(known.name for known in PRESETS.values() if known.name in ENTRIES)))
    elif as_json:
        print(
            json.dumps(
                {
                    n: {"kind": ABOUT[n][0], "about": ABOUT[n][1], "config": c.model_dump(mode="json")}
                    for n, c in PRESETS.items()
                },
                indent=1,
            )
        )
    else:
        print(table(["strategy", "kind", "what it does"], [[name, *ABOUT[name]] for name in PRESETS], left=3))
        print("\nChange one value: --set strategy.gamma=0.5. Use in a run: --strategies fedavg,relief")
