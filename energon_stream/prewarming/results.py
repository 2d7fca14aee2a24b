"""Plan and result of prewarming."""

from __future__ import annotations

from dataclasses import dataclass

# Dollars: list prices of AWS S3 Standard in us-east-1, for reads from the same region.
PRICE_PER_1000_GET = 0.0004
PRICE_PER_GB = 0.0


@dataclass(frozen=True, slots=True)
class PrewarmPlan:
    """The bytes that training will read, up to the last that were looked at if a cache fills up.

    Attributes:
        samples: Samples of the steps.
        ahead_samples: Later samples that may be read before the steps are done: for batches that workers
            prefetch, and by readers that look ahead.
        objects: Objects (shards, JSONL files) that contain the samples.
        bytes: Bytes of all these samples.
        cached_bytes: Bytes among these that were in the cache before.
        requests: GET requests for the others, before the last ones are cut into smaller ones.
        index_requests: GET requests for metadata and indices, made to plan.
        index_bytes: Bytes of these.
        excess_bytes: Bytes for which the caches have no room, even if they evict everything else; 0 without a
            cache.

    Example:
        >>> plan = PrewarmPlan(1000, 64, 8, bytes=3_000_000, cached_bytes=1_000_000, requests=2,
        ...                    index_requests=3, index_bytes=9000)
        >>> plan.missing_bytes, plan.fits, f"{plan.cost():.6f} $"
        (2000000, True, '0.000002 $')
    """

    samples: int
    ahead_samples: int
    objects: int
    bytes: int
    cached_bytes: int
    requests: int
    index_requests: int
    index_bytes: int
    excess_bytes: int = 0

    @property
    def missing_bytes(self) -> int:
        """Bytes that were not in the cache before."""
        return self.bytes - self.cached_bytes

    @property
    def fits(self) -> bool:
        """True if the caches are large enough for all of the bytes."""
        return not self.excess_bytes

    def cost(
        self, *, price_per_1000_get: float = PRICE_PER_1000_GET, price_per_gb: float = PRICE_PER_GB
    ) -> float:
        """Return the price of the missing bytes, with requests for metadata and indices, without listings.

        Args:
            price_per_1000_get: Price of 1,000 GET requests; default 0.0004 dollars.
            price_per_gb: Price of 10⁹ bytes of transfer; default 0.
        """
        requests, size = self.requests + self.index_requests, self.missing_bytes + self.index_bytes
        return requests / 1000 * price_per_1000_get + size / 1e9 * price_per_gb


@dataclass(frozen=True, slots=True)
class PrewarmResult:
    """Result of :func:`prewarm`.

    Attributes:
        plan: The bytes that training will read.
        steps: Requested steps; None for passes.
        samples: Requested samples.
        warm_steps: Number of first steps of which the cache has all bytes; None for passes.
        warm_samples: Number of first samples of which the cache has all bytes.
        is_complete: True if the cache has all bytes of the plan, and the plan has all requested samples.
        fetched_bytes: Bytes fetched into the cache, without those for planning.
        requests: Requests for these bytes.
        seconds: Duration, with planning.
        verified_bytes: Bytes read back that had the right hash; None unless ``verify`` was set.
        damaged_bytes: Bytes with a wrong hash, which were removed from the cache.
        expected_bytes: Bytes of all requested samples: the plan's, or an estimate from its samples if
            the cache filled up before all were looked at.

    Example:
        >>> from energon_stream import WorkerConfig, prewarm
        >>> result = prewarm("s3://data/captions", cache="cache", worker_config=WorkerConfig(0, 1, 0))
        >>> result.is_complete, result.samples, result.plan.fits
        (True, 48, True)
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
    expected_bytes: int = 0
