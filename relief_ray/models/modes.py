"""Layers that behave differently in training and tests: dropout draws values, batch norm mixes windows.

They are in test mode wherever a model is evaluated, exported or counted, so that a stage is a function of its inputs
and parameters. Only the forward passes of local training switch them on. Random values come from a generator of the
client's and round's, so that runs repeat. Running statistics are in the client's personal state, which nobody sends or
averages, while scale and shift are parameters like any other (Andreux et al. 2020, "Siloed Federated Learning for
Multi-Centric Histopathology Datasets"; FedBN, Li et al. 2021, keeps scale and shift on the client as well).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.modules.dropout import _DropoutNd

from relief_ray.core.messages import ClientState
from relief_ray.models.stage import Stage
from relief_ray.support.errors import UserError

# Prefix of running statistics in a client's personal state; no group's name has a colon.
_PREFIX = "statistics:"


def in_test_mode(stages: Sequence[Stage]) -> tuple[Stage, ...]:
    """List the layers of each stage that training switches on, put them into test mode, and mark the stage as varying.

    Layers that are in test mode already stay so in training as well, unless the stage lists them as ``switched``.
    """
    listed = tuple(
        s if s.switched else replace(s, switched=tuple(filter(_is_switched, s.module.modules()))) for s in stages
    )
    for layer in (layer for s in listed for layer in s.switched):
        layer.training = False
    return tuple(replace(s, spec=replace(s.spec, varies=True)) if s.switched else s for s in listed)


def _is_switched(layer: nn.Module) -> bool:
    is_drawing = dropout_rate(layer) > 0.0 or (isinstance(layer, nn.RReLU) and layer.lower != layer.upper)
    return layer.training and (is_drawing or _has_statistics(layer))


@contextmanager
def tested(module: nn.Module) -> Iterator[None]:
    """Run the module as in a test, without gradients."""
    training = [m for m in module.modules() if m.training]
    module.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for m in training:
            m.training = True


def switched_in_training(stage: str, module: nn.Module, inputs: Sequence[Tensor]) -> tuple[nn.Module, ...]:
    """The layers of any ``module`` that is another function in training than in a test, found by running both.

    ``inputs``: two windows of noise (2, ...). Functions such as ``dropout(x, training=self.training)`` are found too.

    Raises:
        UserError: it changes buffers in training that are no batch norm's statistics.
    """
    training = [m for m in module.modules() if m.training]
    if not training:
        return ()
    buffers = {name: b.clone() for name, b in module.named_buffers()}
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        generator = torch.get_rng_state()
        trained = module(*inputs)
        is_drawing = not torch.equal(generator, torch.get_rng_state())
        changed = {n for n, b in module.named_buffers() if not torch.equal(b, buffers[n])}
        for name, b in module.named_buffers():
            b.copy_(buffers[name])
        with tested(module):
            in_test = module(*inputs)
    owners = dict(module.named_modules())
    if foreign := sorted(n for n in changed if not _has_statistics(owners[n.rpartition(".")[0]])):
        raise UserError(
            f"module: {stage} changes its buffers {foreign} in training, which nobody would send or keep; make them "
            "parameters, or take nn.BatchNorm1d, whose statistics stay on each client"
        )
    # But for rounding: in a test some of torch's layers take another path to the same values.
    is_same = isinstance(trained, Tensor) and torch.allclose(trained, in_test, rtol=1e-3, atol=1e-4, equal_nan=True)
    return () if is_same and not is_drawing and not changed else tuple(training)


def _has_statistics(layer: nn.Module) -> bool:
    """Whether a layer keeps running statistics of its inputs."""
    return isinstance(layer, _NormBase) and layer.track_running_stats and layer.running_mean is not None


def dropout_rate(layer: nn.Module) -> float:
    """Share of values that a layer of torch drops at random in training."""
    if isinstance(layer, _DropoutNd):
        return float(layer.p)
    return float(layer.dropout) if isinstance(layer, nn.RNNBase | nn.MultiheadAttention) else 0.0


def of_statistics(state: ClientState) -> dict[str, Tensor]:
    """The running statistics in a client's personal state."""
    return {name: value for name, value in state.items() if name.startswith(_PREFIX)}


def without_statistics(state: ClientState) -> ClientState:
    """The personal state as a method sees it: without running statistics."""
    return {name: value for name, value in state.items() if not name.startswith(_PREFIX)}


class Statistics:
    """Running statistics of a backbone's normalising layers; false where it has none."""

    def __init__(self, stages: Sequence[Stage]) -> None:
        """Remember the values that they have now: those of a client that has not trained yet."""
        self.layers: dict[str, nn.Module] = {}
        known: set[int] = set()
        for stage in stages:
            switched = {id(layer) for layer in stage.switched}
            for name, layer in stage.module.named_modules():
                # Further paths to the logits share modules with the stages that they copy.
                if id(layer) in switched - known and _has_statistics(layer):
                    known.add(id(layer))
                    self.layers[f"{_PREFIX}{stage.spec.id}" + (f".{name}" if name else "")] = layer
        self._initial = self.state()

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self.layers)

    def state(self) -> dict[str, Tensor]:
        """Copies of the present values by name, on the CPU."""
        return {
            f"{name}.{key}": value.detach().to("cpu", copy=True)
            for name, layer in self.layers.items()
            for key, value in layer.named_buffers(recurse=False)
        }

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Set the values to those of a client, and reset values that the client does not have."""
        for name, layer in self.layers.items():
            for key, value in layer.named_buffers(recurse=False):
                full = f"{name}.{key}"
                value.copy_(state.get(full, self._initial[full]))

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Let the layers, and no dropout, take the statistics of the one batch that is forwarded within."""
        self.load({})
        momenta = [(layer, layer.momentum) for layer in self.layers.values()]
        for layer, _ in momenta:
            layer.training, layer.momentum = True, 1.0  # type: ignore[assignment]
        try:
            yield
        finally:
            for layer, momentum in momenta:
                layer.training, layer.momentum = False, momentum


class TrainingMode:
    """Switches layers on for the forward passes of a client's steps, which draw from a generator of their own."""

    def __init__(self, stages: Sequence[Stage], seed: int, device: torch.device) -> None:
        """``seed``: of this client and round; ``device``: where it trains."""
        self._layers = list({id(layer): layer for s in stages for layer in s.switched}.values())
        devices = [torch.device("cpu"), *([device] if device.type == "cuda" else [])]
        # Random states by device: on a GPU dropout draws from the GPU's generator.
        self._drawn = [(d, torch.Generator(d).manual_seed(seed).get_state()) for d in devices] if self._layers else []

    @contextmanager
    def step(self, num_windows: int) -> Iterator[None]:
        """Switch the layers on for the forward pass of a batch.

        The single window of a last batch has no statistics: it is normalised by the running ones.
        """
        layers = [m for m in self._layers if num_windows > 1 or not isinstance(m, _BatchNorm)]
        outside = [(d, _read(d)) for d, _ in self._drawn]
        _write(self._drawn)
        for layer in layers:
            layer.training = True
        try:
            yield
        finally:
            for layer in layers:
                layer.training = False
            self._drawn = [(d, _read(d)) for d, _ in self._drawn]
            _write(outside)

    def again(self, mark: list[tuple[torch.device, Tensor]] | None = None) -> list[tuple[torch.device, Tensor]]:
        """Return a mark of the generator's place; with a ``mark``, go back to it and draw the same values again."""
        self._drawn = self._drawn if mark is None else mark
        return self._drawn


def _read(device: torch.device) -> Tensor:
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


def _write(states: Sequence[tuple[torch.device, Tensor]]) -> None:
    for device, state in states:
        if device.type == "cuda":
            torch.cuda.set_rng_state(state, device)
        else:
            torch.set_rng_state(state)
