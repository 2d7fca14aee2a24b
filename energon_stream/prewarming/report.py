"""What prewarming found and did."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["PRICE_PER_1000_GET", "PRICE_PER_GB", "PrewarmPlan", "PrewarmResult"]

PRICE_PER_1000_GET = 0.0004
PRICE_PER_GB = 0.0
"""Dollars, by the list prices of AWS S3 Standard in us-east-1 for reads from the same region."""


@dataclass(frozen=True, slots=True)
class PrewarmPlan:
    """What steps will read.

    Attributes:
        samples: Samples of the steps.
        ahead_samples: Samples after these that may be read before the steps are done: by workers that have batches
            ready, and by readers that look ahead.
        objects: Objects (shards, JSONL files) that hold them.
        bytes: Bytes that they need.
        cached_bytes: Bytes of these that were in the cache before.
        requests: GET requests for the others, before the last ones are cut into smaller ones.
        index_requests: GET requests that were made to plan, for metadata and indices.
        index_bytes: Bytes of these.
    """

    samples: int
    ahead_samples: int
    objects: int
    bytes: int
    cached_bytes: int
    requests: int
    index_requests: int
    index_bytes: int

    @property
    def missing_bytes(self) -> int:
        """Bytes that were not in the cache before."""
        return self.bytes - self.cached_bytes

    def cost(
        self, *, price_per_1000_get: float = PRICE_PER_1000_GET, price_per_gb: float = PRICE_PER_GB
    ) -> float:
        """What fetching all of it costs, requests for metadata and indices included, listings not.

        Args:
            price_per_1000_get: Price of 1,000 GET requests.
            price_per_gb: Price of 10⁹ bytes of transfer.
        """
        requests, size = self.requests + self.index_requests, self.missing_bytes + self.index_bytes
        return requests / 1000 * price_per_1000_get + size / 1e9 * price_per_gb


@dataclass(frozen=True, slots=True)
class PrewarmResult:
    """What was done.

    Attributes:
        plan: What was found to be needed; where the cache filled up, as far as was looked.
        steps: Steps that were asked for; None for passes.
        samples: Samples that were asked for.
        warm_steps: Steps from the first one on of which all is in the cache; None for passes.
        warm_samples: Samples from the first one on of which all is in the cache.
        is_complete: Whether all of the plan is in the cache now.
        fetched_bytes: Bytes that were fetched into the cache, without those for planning.
        requests: FetchPlanner for them.
        seconds: How long that took, with planning.
        verified_bytes: Bytes that were read back and had the right hash; None where that was not asked for.
        damaged_bytes: Bytes whose hash was wrong; they were taken out of the cache.
    """

    plan: PrewarmPlan
    steps: int | None
    samples: int
    warm_steps: int | None
    warm_samples: int
    is_complete: bool
    fetched_bytes: int
    requests: int
    seconds: float
    verified_bytes: int | None = None
    damaged_bytes: int = 0
