"""Wait, from inside the head, until nodes are members of the Ray cluster: ``python -m tests.lab.members``."""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
from collections.abc import Iterable
from contextlib import redirect_stdout


def missing_of(rows: Iterable[dict[str, object]], expected: Iterable[str]) -> list[str]:
    """Addresses without a living node; ``rows``: what ``ray.nodes()`` returns."""
    alive = {row["NodeManagerAddress"] for row in rows if row["Alive"]}
    return [address for address in expected if address not in alive]


def main() -> None:
    """Poll until all are there (exit code 0) or time is up (1, with the addresses that are missing)."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("address")
    parser.add_argument("expected", nargs="+")
    parser.add_argument("--timeout-s", type=float, default=60.0)
    words = parser.parse_args()
    deadline = time.monotonic() + words.timeout_s
    while True:
        try:
            # Ray prints what befell other nodes, also where no worker's output is wanted.
            with redirect_stdout(sys.stderr):
                missing = _joined(words.address, words.expected, deadline)
            break
        except (ConnectionError, RuntimeError):  # Ray's words for a head that does not answer in time
            if time.monotonic() > deadline:
                missing = words.expected
                break
            time.sleep(1.0)
    print(json.dumps({"missing": missing}))
    raise SystemExit(1 if missing else 0)


def _joined(address: str, expected: list[str], deadline: float) -> list[str]:
    import ray

    ray.init(address=address, logging_level=logging.CRITICAL, log_to_driver=False)
    try:
        while (missing := missing_of(ray.nodes(), expected)) and time.monotonic() < deadline:
            time.sleep(0.5)
        return missing
    finally:
        ray.shutdown()


if __name__ == "__main__":
    main()
