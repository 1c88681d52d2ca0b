"""A clock beside the analysis: tells a progress function how far it has come."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Protocol

    class Counting(Protocol):
        """Bytes read so far, and in all."""

        @property
        def bytes(self) -> int: ...  # noqa: D102
        @property
        def total(self) -> int: ...  # noqa: D102


#: Seconds between two calls of a progress function.
_PROGRESS_SECONDS = 0.1


class Ticker:
    """Calls the progress function from a thread of its own while the analysis runs."""

    def __init__(self, counters: Counting, call: Callable[[int, int], None]) -> None:
        """Nothing runs yet."""
        self._counters = counters
        self._call = call
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ovf-progress", daemon=True)

    def __enter__(self) -> None:
        """Start."""
        self._thread.start()

    def _run(self) -> None:
        while not self._done.wait(_PROGRESS_SECONDS):
            self._tell()

    def _tell(self) -> None:
        self._call(self._counters.bytes, self._counters.total)

    def __exit__(self, *_: object) -> None:
        """Call once more, with the last numbers."""
        self._done.set()
        self._thread.join()
        self._tell()
