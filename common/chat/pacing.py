"""How fast to ask a server: adaptive concurrency, bounded rates, waits between tries."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from email.utils import parsedate_to_datetime

COOL_DOWN_SECONDS = 15.0
SHRINK = 0.8


class AdaptiveLimit:
    """At most `limit` requests at a time; additive increase, multiplicative decrease.

    Until the server first throttles, every answer raises the limit by one (it doubles within a
    round trip). Then it grows by one after as many answers in a row as it allows at a time, and
    shrinks by a fifth at each throttling; further throttling within the cool-down changes nothing,
    as it comes from requests sent before.

    Args:
        ceiling: the most requests at a time.
        start: how many at the beginning.
        cool_down_seconds: time after a decrease in which there is no other.
    """

    def __init__(
        self, ceiling: int, *, start: int = 8, cool_down_seconds: float = COOL_DOWN_SECONDS
    ) -> None:
        self.limit = float(min(start, ceiling))
        self._ceiling = ceiling
        self._cool_down = cool_down_seconds
        self._running = 0
        self._clean = 0
        self._throttled_yet = False
        self._shrunk_at = -float("inf")
        self._changed = asyncio.Condition()

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """Waits until one more request may run."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._running < int(self.limit))
            self._running += 1
        try:
            yield
        finally:
            async with self._changed:
                self._running -= 1
                self._changed.notify_all()

    def succeeded(self) -> None:
        """Counts an answer."""
        self._clean += 1
        if not self._throttled_yet or self._clean >= int(self.limit):
            self._clean = 0
            self.limit = min(self.limit + 1, self._ceiling)

    def throttled(self) -> None:
        """Counts a refusal for asking too fast."""
        self._clean = 0
        self._throttled_yet = True
        now = time.monotonic()
        if now - self._shrunk_at >= self._cool_down:
            self._shrunk_at = now
            self.limit = max(1.0, self.limit * SHRINK)


class RateLimit:
    """A token bucket: on average `per_minute` units, in bursts of at most a second's worth or one.

    Args:
        per_minute: units (requests or tokens) per minute; None is no limit.
    """

    def __init__(self, per_minute: float | None) -> None:
        if per_minute is not None and not per_minute > 0:
            raise ValueError(f"a rate per minute must be > 0 or None, got {per_minute}")
        self._rate = None if per_minute is None else per_minute / 60
        self._next = 0.0

    async def spend(self, units: float) -> None:
        """Waits until `units` more may be used."""
        if self._rate is None:
            return
        now = time.monotonic()
        self._next = max(self._next, now - 1.0)
        wait = self._next - now
        self._next += units / self._rate
        if wait > 0:
            await asyncio.sleep(wait)


def retry_after_seconds(headers: Mapping[str, str]) -> float | None:
    """What a response asks to wait (`Retry-After` in seconds or as a date, `retry-after-ms`)."""
    milliseconds = headers.get("retry-after-ms")
    given = headers.get("retry-after")
    try:
        if milliseconds is not None:
            return max(0.0, float(milliseconds) / 1000)
        if given is None:
            return None
        return max(0.0, float(given))
    except ValueError:
        pass
    if given is None:
        return None
    try:
        return max(0.0, parsedate_to_datetime(given).timestamp() - time.time())
    except (TypeError, ValueError):
        return None
