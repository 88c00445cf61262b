"""The least that a program on Ray needs before its first round: two actors that have imported torch. ``OUT.json``."""

from __future__ import annotations

import json
import logging
import os
import secrets
import sys
from pathlib import Path
from time import time
from typing import Any

import ray
import torch

NUM_ACTORS, OBJECT_STORE_BYTES = 2, 256 * 2**20


class Host:
    """An actor that has imported torch, ready to train."""

    def hello(self) -> str:
        """Import torch and return its version."""
        import torch

        return str(torch.__version__)


def main(out: Path) -> None:
    """Start a cluster with the options of a run, and two actors."""
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))  # or Ray writes one to the home folder
    ray.init(
        address="local",
        object_store_memory=OBJECT_STORE_BYTES,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
    )
    actor: Any = ray.remote(Host)
    hosts = [actor.remote() for _ in range(NUM_ACTORS)]
    versions = ray.get([host.hello.remote() for host in hosts])
    seen = {"ready_unix_s": time()}
    assert set(versions) == {str(torch.__version__)}
    out.write_text(json.dumps(seen))
    ray.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
