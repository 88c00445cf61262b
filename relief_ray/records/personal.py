"""Clients' personal state: staged during a round, committed with it, durable with its checkpoint."""

from __future__ import annotations

from collections.abc import Mapping

from relief_ray.messages import NO_STATE, ClientId, ClientState


class CheckpointStateStore:
    """Personal state in memory, made durable by the checkpoint of the round that committed it (a ``StateStore``)."""

    def __init__(self, committed: Mapping[ClientId, ClientState] | None = None) -> None:
        """Starts from a checkpoint's ``clients``."""
        self._committed: dict[ClientId, ClientState] = dict(committed or {})
        self._staged: dict[ClientId, ClientState] = {}

    @property
    def committed(self) -> Mapping[ClientId, ClientState]:
        """What a checkpoint has to hold, in client order."""
        return {c: self._committed[c] for c in sorted(self._committed)}

    def load(self, client: ClientId) -> ClientState:
        """The last committed state (empty at first)."""
        return self._committed.get(client, NO_STATE)

    def stage(self, client: ClientId, state: ClientState) -> None:
        """Remembers a copy of a client's new state until the round is committed."""
        self._staged[client] = {name: tensor.detach().cpu().clone() for name, tensor in state.items()}

    def commit(self) -> None:
        """Makes all staged states current."""
        self._committed.update(self._staged)
        self._staged.clear()

    def discard(self) -> None:
        """Forgets what a round staged that is not going to be committed."""
        self._staged.clear()
