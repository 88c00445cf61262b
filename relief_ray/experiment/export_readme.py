"""Writes the README of an exported model: how to use it without this package, with code that runs as it is."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import JsonValue

HEAD = """# {name}: round {round}, {strategy} on {dataset}

{lead}

`export.json` says where this comes from and what goes in: run, configuration, program, round, F1; per sensor its
channels with the mean and standard deviation that were taken off, in the units of the dataset; the classes.

```python
{code}
```

Run it in this folder. `windows` maps a sensor to (n, channels, {window}) float32 at {rate_hz} Hz; a sensor that is not
there is left out. The logits (n, {num_classes}) are in the order of `facts["classes"]`.
"""

_INPUTS = '''facts = json.load(open("export.json"))


def standardised(windows, m):
    """What the encoder of sensor m is given; an absent sensor is a window of zeros."""
    n, known = len(next(iter(windows.values()))), facts["inputs"][m]
    if m not in windows:
        return torch.zeros(n, len(known["mean"]), facts["window"])
    return (windows[m] - torch.tensor(known["mean"])[:, None]) / torch.tensor(known["std"])[:, None]


def is_left_out(windows, m):
    return m not in windows and facts["missing"] == "zero_feature"
'''

CNN = f"""import json

import torch
from safetensors.torch import load_file
from torch.nn.functional import adaptive_avg_pool1d, conv1d, linear

{_INPUTS}

theta = load_file("model.safetensors")


@torch.no_grad()
def logits(windows):
    total = theta["fusion.B.bias"]
    for m in facts["inputs"]:
        if is_left_out(windows, m):
            continue
        x = standardised(windows, m)
        for layer in (1, 2):
            kernel, bias = theta[f"encoder.{{m}}.{{layer}}.weight"], theta[f"encoder.{{m}}.{{layer}}.bias"]
            x = torch.relu(conv1d(x, kernel, bias, stride=2, padding=2))
        h = adaptive_avg_pool1d(x, facts["backbone"]["steps"]).flatten(1)
        total = total + linear(h, theta[f"fusion.A.{{m}}.weight"])
    return linear(torch.relu(total), theta["head.1.weight"], theta["head.1.bias"])"""

MOMENT = f"""import json

import torch
from momentfm import MOMENTPipeline
from peft import PeftModel
from safetensors.torch import load_file
from torch.nn.functional import linear, pad

{_INPUTS}

def encoder(m):
    pipeline = MOMENTPipeline.from_pretrained(ENCODER, revision=REVISION, model_kwargs={{"task_name": "embedding"}})
    pipeline.init()
    return PeftModel.from_pretrained(pipeline, f"encoder.{{m}}").eval().base_model.model


def fusion_layer():
    whole = torch.nn.Module()
    w_0 = load_file("fusion_w0.safetensors")["weight"]
    whole.fusion = torch.nn.Linear(w_0.shape[1], w_0.shape[0], bias=False)
    whole.fusion.weight.data = w_0
    return PeftModel.from_pretrained(whole, "fusion").eval().base_model.model.fusion


ENCODER, REVISION = "@ENCODER@", @REVISION@
encoders, fusion, head = {{m: encoder(m) for m in facts["inputs"]}}, fusion_layer(), load_file("head.safetensors")


@torch.no_grad()
def feature(windows, m):
    x = standardised(windows, m)
    if is_left_out(windows, m):
        return torch.zeros(len(x), fusion.in_features // len(encoders))
    length = facts["backbone"]["pad_to"] or facts["window"]
    mask = pad(torch.ones(len(x), x.shape[2]), (length - x.shape[2], 0))
    return encoders[m].embed(x_enc=pad(x, (length - x.shape[2], 0)), input_mask=mask).embeddings


@torch.no_grad()
def logits(windows):
    fused = fusion(torch.cat([feature(windows, m) for m in encoders], 1))
    hidden = torch.relu(linear(fused, head["head.1.weight"], head["head.1.bias"]))
    return linear(hidden, head["head.2.weight"], head["head.2.bias"])"""

_LEADS = {
    "cnn": "`model.safetensors` holds all parameters; it needs torch and safetensors alone.",
    "moment_lora": (
        "The trained part of frozen MOMENT encoders: LoRA adapters in PEFT's format (`encoder.*`, `fusion`), the\n"
        "dense head (`head.safetensors`; what the method added lies there too) and the frozen fusion matrix W_0. It\n"
        "needs momentfm, peft and the encoder's own files, which {encoder}."
    ),
}
OWN = (
    "`model.safetensors` holds the parameters of all groups, by `group.name`, as the backbone declares them; what is\n"
    "frozen in it is not among them. How they are put together, the backbone's own source says."
)


def readme(name: str, facts: Mapping[str, JsonValue], place: str = "", revision: str | None = None) -> str:
    """Return the text for a backbone by its ``name``.

    ``place``, ``revision``: how its loader finds the frozen encoder.
    """
    if name not in _LEADS:
        return f"# {facts['name']}: round {facts['round']}, {facts['strategy']} on {facts['dataset']}\n\n{OWN}\n"
    code = (CNN if name == "cnn" else MOMENT).replace("@ENCODER@", place).replace("@REVISION@", repr(revision))
    classes = facts["classes"]
    assert isinstance(classes, list)
    fields = {key: value for key, value in facts.items() if key != "encoder"}
    where = "lie beside this file (`encoder`)" if place == "encoder" else f"are not here: `{place}`"
    lead = _LEADS[name].format(encoder=where)
    return HEAD.format(**fields, lead=lead, code=code, num_classes=len(classes))
