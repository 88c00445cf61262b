"""The client app of the Flower comparison: importable, so that every process of Flower's keeps its data and model."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from benchmarks.engine.eager import EagerCnn, load_client, read_task, train_client

client_app = ClientApp()


@lru_cache(maxsize=1)
def model(folder: Path) -> EagerCnn:
    """One model per process."""
    torch.set_num_threads(1)
    return EagerCnn(read_task(folder))


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """A client's round."""
    config = message.content["config"]
    folder, round_ = Path(str(config["folder"])), int(config["server-round"])
    local = model(folder)
    local.load_state_dict(message.content["arrays"].to_torch_state_dict())
    windows, labels = load_client(folder, int(context.node_config["partition-id"]))
    train_client(local, read_task(folder), round_, int(context.node_config["partition-id"]), windows, labels)
    metrics = MetricRecord({"num-examples": len(labels)})
    content = RecordDict({"arrays": ArrayRecord(local.state_dict()), "metrics": metrics})
    return Message(content=content, reply_to=message)
