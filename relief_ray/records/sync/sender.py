"""Mirroring: a thread copies a folder of runs to a URI while they are computed; an unreachable store stops no run."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from relief_ray.records.sync.mirror import Copying, TakenOver
from relief_ray.records.tracking import brief
from relief_ray.support.errors import UserError

# From one look at the folder to the next, and after a failure; doubled with each further one up to the last.
_INTERVAL_S, _RETRY_S, _LONGEST_RETRY_S = 1.0, 2.0, 60.0
# How long the end of a command waits for a store that fails, and after a stop for one that is slow.
PATIENCE_S: Final = 30.0
PATIENCE_AFTER_STOP_S: Final = 10.0
_POLL_S = 0.2


class Mirroring:
    """Copies what changed in a folder to ``uri`` once a second, from its start to ``close``.

    Attributes:
        uri: the URI without credentials.
        is_behind: the copy lacks something that is here.
    """

    def __init__(
        self, root: Path, uri: str, on_note: Callable[[str], None], *, only: str | None = None,
        interval_s: float = _INTERVAL_S, retry_s: float = _RETRY_S,
    ) -> None:  # fmt: skip
        """Look into the store and start.

        A store that cannot be reached now is tried again while the runs go on.

        Raises:
            UserError: the URI is none, its library is not installed, or the store holds something else.
        """
        self._copying, self._on_note = Copying(root, uri, only), on_note
        self._interval_s, self._retry_s = interval_s, retry_s
        self.uri, self.is_behind = self._copying.store.name, False
        self._failures, self._is_over = 0, False
        self._patience_s, self._ending = math.inf, threading.Event()
        try:
            self._copying.connect()
        except UserError:
            raise
        except Exception as error:  # whatever a store raises: a copy is no condition of a run
            self._failed(error)
        self._thread = threading.Thread(target=self._work, name="mirror", daemon=True)
        self._thread.start()

    def close(self, patience_s: float = PATIENCE_S, limit_s: float = math.inf) -> bool:
        """Wait until the copy has everything; return whether it has.

        Args:
            patience_s: seconds after which a store that fails is given up.
            limit_s: seconds after which a slow one is given up too.
        """
        self._patience_s = patience_s
        until_s = time.monotonic() + limit_s
        self._ending.set()
        # In short steps, so that a signal is heard.
        while self._thread.is_alive() and time.monotonic() < until_s:
            self._thread.join(_POLL_S)
        if self._thread.is_alive():
            self.is_behind = True
        else:
            self._copying.close()
        return not self.is_behind

    def _work(self) -> None:
        """Copy until the end was announced and nothing is left to copy, or the store is given up."""
        while not self._ending.wait(self._pause_s()):
            self._try()
            if self._is_over:
                return
        ended_s = time.monotonic()
        while not self._try() and not self._is_over:
            if self._failures:
                if time.monotonic() - ended_s > self._patience_s:
                    return
                time.sleep(self._retry_s)

    def _pause_s(self) -> float:
        """Seconds to the next look: longer after each failure in a row."""
        if not self._failures:
            return self._interval_s
        return float(min(self._retry_s * 2 ** (self._failures - 1), _LONGEST_RETRY_S))

    def _try(self) -> bool:
        """Copy what changed; return whether nothing had."""
        try:
            is_complete = not self._copying.copy()
        except TakenOver as error:
            self._is_over = self.is_behind = True
            self._on_note(f"mirror: {error}")
            return False
        except Exception as error:  # whatever a store raises
            self._failed(error)
            return False
        self.is_behind = False
        # Where nothing had changed the store was not asked: that says nothing of whether it works.
        if self._failures and not is_complete:
            self._on_note(f"mirror {self.uri}: works again")
            self._failures = 0
        return is_complete

    def _failed(self, error: Exception) -> None:
        self._failures, self.is_behind = self._failures + 1, True
        if self._failures == 1:
            self._on_note(f"mirror {self.uri}: failed ({brief(error)}); the runs go on, and it is tried again")
