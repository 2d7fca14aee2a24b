"""Statistics of a running loader, and a verdict in words on what limits it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from energon_stream.cache import CacheSnapshot
from energon_stream.loader.observe.pack_balance import Balance, PackStep, balance_of, in_words
from energon_stream.loader.observe.profile import (
    CAUSES,
    CHANNEL,
    COLLATE,
    CONSUMER,
    DECODE,
    ENCODE,
    LOADER,
    STORE,
    Profile,
)
from energon_stream.printable import counted
from energon_stream.storage import CounterSnapshot

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

_LATE = 0.1  # share of the time that a training loop must wait for batches to be called data-bound
_LATE_ALONE = 0.25  # the same without workers, where the loop waits while its own process makes each batch
_REFUSED = 0.05  # share of requests that must fail to be called throttled
_SLOW = 2.0  # a rank is slow if it waits this many times as long as half of all ranks
# Of the whole iteration: no difference.
_KEPT = ("rank", "num_workers", "first_batch_seconds", "waits", "pack_steps", "pack_costs")

_SHOWN = 8  # ranks that are printed

_TIMES = ("samples_per_second", "first_batch_seconds", "seconds", "wait_seconds", "waiting")


@dataclass(frozen=True, slots=True)
class ProcessReport:
    """Counters and profile of one process that makes batches. Add those of several."""

    io: CounterSnapshot = field(default_factory=CounterSnapshot)
    cache: CacheSnapshot = field(default_factory=CacheSnapshot)
    profile: Profile = field(default_factory=Profile)

    def __add__(self, other: ProcessReport) -> ProcessReport:
        return ProcessReport(self.io + other.io, self.cache + other.cache, self.profile + other.profile)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The limit of a loader.

    Attributes:
        cause: ``consumer`` (the training loop), ``store latency``, ``store rate``, ``throttling``,
            ``cold cache``, ``decode``, ``encode``, ``collate``, ``channel``, ``loader``, ``slow rank``, or
            ``unknown``.
        text: One sentence, with the remedy.

    Example:
        >>> from energon_stream import Verdict
        >>> print(Verdict("consumer", "the loader keeps up"))
        the loader keeps up
    """

    cause: str
    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class LoaderStats:
    """Statistics of a loader of one rank, since its iteration began. Seconds and rates are of wall time.

    Attributes:
        rank: The rank.
        num_workers: Its worker processes.
        batches: Batches that the loop received.
        samples: Samples in them, by their keys; a batch without keys counts as one.
        first_batch_seconds: Time until the first batch; all other times begin there.
        seconds: Time from the first batch to the last.
        wait_seconds: Part of it in which the loop waited for batches.
        waits: The 50th, 90th and 99th percentile of the last 1,000 waits, in seconds.
        io: Requests and bytes of all of the loader's processes.
        cache: Reads of the disk cache.
        profile: What the processes that make batches did.
        restarts: Workers that took the place of others.
        first_samples: Samples of the first batch, with which the time begins.
        emptied_packs: Planned packs of which no sample could be used, since the start of the run. The next
            pack lends each a sample, so that the streams stay in step.
        pack_steps: Loads of planned packs in the last 64 global steps, by number.
        pack_costs: Names of the costs that these loads are of.

    Example:
        >>> from energon_stream import LoaderStats, WorkerConfig, get_loader, get_val_dataset
        >>> dataset = get_val_dataset("captions", batch_size=4, worker_config=WorkerConfig(0, 1, 0))
        >>> with get_loader(dataset) as loader:
        ...     stats = [loader.stats() for batch in loader][-1]
        >>> isinstance(stats, LoaderStats), stats.batches, stats.samples
        (True, 2, 8)
    """

    rank: int
    num_workers: int
    batches: int
    samples: int
    first_batch_seconds: float
    seconds: float
    wait_seconds: float
    waits: Mapping[int, float]
    io: CounterSnapshot
    cache: CacheSnapshot
    profile: Profile
    restarts: int
    first_samples: int = 0
    emptied_packs: int = 0
    pack_steps: Mapping[int, PackStep] = field(default_factory=dict)
    pack_costs: tuple[str, ...] = ()

    @property
    def balance(self) -> dict[str, Balance]:
        """The balance of planned packs by the names of costs; ``"load"`` for a cost without a name."""
        return balance_of([self.pack_steps], self.pack_costs)

    @property
    def samples_per_second(self) -> float:
        """Samples a second between the first batch and the last."""
        return (self.samples - self.first_samples) / self.seconds if self.seconds else 0.0

    @property
    def waiting(self) -> float:
        """Share of the time in which the training loop waited for batches, 0 to 1."""
        return self.wait_seconds / self.seconds if self.seconds else 0.0

    @property
    def shares(self) -> dict[str, float]:
        """Share of each cause in the time in which batches were made. They sum to 1, without ``consumer``."""
        return {cause: self.profile.share(cause) for cause in CAUSES if cause != CONSUMER}

    @property
    def verdict(self) -> Verdict:
        """The limit of the loader, and what would help."""
        return judge(self)

    def since(self, earlier: LoaderStats) -> LoaderStats:
        """Return what happened after earlier statistics of the same loader, with the rates since then.

        ``waits`` and ``first_batch_seconds`` stay those of the whole iteration.
        """
        growing = [entry.name for entry in fields(self) if entry.name not in _KEPT]
        return replace(self, **{name: getattr(self, name) - getattr(earlier, name) for name in growing})

    def as_json(self) -> dict[str, Any]:
        """Return plain values for ``json.dumps``."""
        io, cache = self.io, self.cache
        return {
            **{name: getattr(self, name) for name in ("rank", "num_workers", "batches", "samples", *_TIMES)},
            "waits": {f"p{number}": seconds for number, seconds in self.waits.items()},
            "shares": self.shares,
            "functions": dict(self.profile.functions),
            "requests": dict(io.requests),
            "reasons": dict(io.reasons),
            "bytes": io.bytes_received,
            "retries": io.retries,
            "hedges": io.hedges,
            "errors": dict(io.errors),
            "latency": io.latency,
            "max_in_flight": io.max_in_flight,
            "cache": {"hits": cache.hits, "hit_bytes": cache.hit_bytes, "missed_bytes": cache.missed_bytes},
            "restarts": self.restarts,
            "emptied_packs": self.emptied_packs,
            "balance": {name: asdict(each) for name, each in self.balance.items()},
            "packs": {
                "costs": list(self.pack_costs),
                "steps": {str(number): list(step) for number, step in self.pack_steps.items()},
            },
            "verdict": asdict(self.verdict),
        }

    def scalars(self) -> dict[str, float]:
        """Return rates, shares and counts as numbers by name, for a tracker of experiments.

        Example:
            >>> from energon_stream import WorkerConfig, get_loader, get_val_dataset
            >>> dataset = get_val_dataset("captions", batch_size=4, worker_config=WorkerConfig(0, 1, 0))
            >>> loader = get_loader(dataset)
            >>> batches = list(loader)
            >>> values = loader.stats().scalars()
            >>> values["energon_stream/retries"], "energon_stream/share/decode" in values
            (0.0, True)
        """
        io, cache, seconds = self.io, self.cache, self.seconds
        cached = cache.hit_bytes + cache.missed_bytes
        values = {
            "samples_per_second": self.samples_per_second,
            "waiting": self.waiting,
            "idle": self.profile.idle,
            "requests_per_second": io.total_requests / seconds if seconds else 0.0,
            "bytes_per_second": io.bytes_received / seconds if seconds else 0.0,
            "request_latency": io.latency,
            "retries": io.retries,
            "hedges": io.hedges,
            "errors": sum(io.errors.values()),
            "cache_hits": cache.hit_bytes / cached if cached else 0.0,
            "restarts": self.restarts,
            "emptied_packs": self.emptied_packs,
            **{f"wait_p{number}": value for number, value in self.waits.items()},
            **{f"share/{cause}": share for cause, share in self.shares.items()},
        }
        return {f"energon_stream/{name}": float(value) for name, value in values.items()}

    def gather(self, group: ProcessGroup | None = None) -> JobStats:
        """Collect the statistics of all ranks; each of them must call this.

        Args:
            group: Process group of ``torch.distributed``; None for the default one. Without an initialized
                group, the result has this rank alone.
        """
        from torch import distributed

        if not (distributed.is_available() and distributed.is_initialized()):
            return JobStats((self,))
        found: list[Any] = [None] * distributed.get_world_size(group)
        distributed.all_gather_object(found, self, group=group)
        return JobStats(tuple(found))

    def __str__(self) -> str:
        shares = ", ".join(f"{cause} {share:.0%}" for cause, share in self.shares.items() if share >= 0.01)
        io, balance = self.io, in_words(self.balance, "this rank's")
        return (
            f"rank {self.rank}: {counted(self.samples, 'sample')} in {self.batches:,} {'batch' if self.batches == 1 else 'batches'}, "
            f"{self.samples_per_second:,.0f} samples/s; waiting {self.waiting:.0%} of the time\n"
            f"  making batches: {shares or 'not observed'}; idle {self.profile.idle:.0%} of the time\n"
            f"  {counted(io.total_requests, 'request')}, {io.bytes_received / 1e6:,.1f} MB, {io.retries:,} retries, "
            f"{io.hedges:,} hedges\n"
            f"{balance}  {self.verdict}"
        )


@dataclass(frozen=True, slots=True)
class JobStats:
    """Statistics of all ranks of a job.

    Attributes:
        ranks: Those of each rank.

    Example:
        >>> from energon_stream import JobStats, WorkerConfig, get_loader, get_val_dataset
        >>> dataset = get_val_dataset("captions", batch_size=4, worker_config=WorkerConfig(0, 1, 0))
        >>> with get_loader(dataset) as loader:
        ...     for batch in loader:
        ...         job = loader.stats().gather()
        >>> isinstance(job, JobStats), len(job.ranks), job.slowest.rank
        (True, 1, 0)
    """

    ranks: tuple[LoaderStats, ...]

    @property
    def samples_per_second(self) -> float:
        """Samples a second of all ranks together."""
        return sum(rank.samples_per_second for rank in self.ranks)

    @property
    def balance(self) -> dict[str, Balance]:
        """The balance of planned packs over the ranks, by the names of costs."""
        costs = self.ranks[0].pack_costs if self.ranks else ()
        return balance_of([rank.pack_steps for rank in self.ranks], costs)

    @property
    def slowest(self) -> LoaderStats:
        """The rank whose training loop waited longest; the others wait for it."""
        return max(self.ranks, key=lambda rank: rank.waiting)

    @property
    def verdict(self) -> Verdict:
        """The limit of the job: one slow rank, or the limit of the slowest one."""
        slowest = self.slowest
        waits = sorted(rank.waiting for rank in self.ranks)
        usual = waits[(len(waits) - 1) // 2]
        if len(waits) > 1 and slowest.waiting >= max(_LATE, _SLOW * usual):
            text = f"rank {slowest.rank} is slow, and the others wait for it: {slowest.verdict}"
            return Verdict("slow rank", text)
        return slowest.verdict

    def as_json(self) -> dict[str, Any]:
        """Return plain values for ``json.dumps``."""
        return {
            "samples_per_second": self.samples_per_second,
            "slowest": self.slowest.rank,
            "verdict": asdict(self.verdict),
            "balance": {name: asdict(each) for name, each in self.balance.items()},
            "ranks": [rank.as_json() for rank in self.ranks],
        }

    def __str__(self) -> str:
        lines = [
            f"{counted(len(self.ranks), 'rank')}: {self.samples_per_second:,.0f} samples/s; {self.verdict}"
        ]
        lines += in_words(self.balance).splitlines()
        for rank in sorted(self.ranks, key=lambda rank: -rank.waiting)[:_SHOWN]:
            about = f"{rank.samples_per_second:,.0f} samples/s, waiting {rank.waiting:.0%}"
            lines.append(f"  rank {rank.rank}: {about}, limit: {rank.verdict.cause}")
        if (more := len(self.ranks) - _SHOWN) > 0:
            lines.append(f"  and {counted(more, 'rank')} that wait less")
        return "\n".join(lines)


def judge(stats: LoaderStats) -> Verdict:
    """Return the verdict on one rank."""
    if not stats.seconds:
        return Verdict("unknown", "unknown: fewer than two batches were read")
    if stats.waiting < _LATE:
        return Verdict(
            "consumer",
            f"the loader keeps up: the training loop waits {stats.waiting:.0%} of the time, and works the rest",
        )
    if not stats.num_workers and stats.waiting < _LATE_ALONE:
        return Verdict(
            "consumer",
            f"the training loop works {1 - stats.waiting:.0%} of the time, and batches are made in the rest; use "
            "workers (num_workers) to make them meanwhile",
        )
    late = f"data-bound, waiting {stats.waiting:.0%} of the time"
    shares = stats.shares
    cause = max(shares, key=lambda name: shares[name])
    share = shares[cause]
    if not share:
        return Verdict("unknown", f"{late}: no cause was observed; read for some seconds")
    if cause == STORE:
        return _judge_store(stats, late, share)
    time_of = "workers' time" if stats.num_workers else "time of loading"
    part = f"{share:.0%} of the {time_of}"
    functions = stats.profile.functions
    busiest = max(functions, key=lambda name: functions[name], default="your functions")
    more = "add workers" if stats.num_workers else "use workers (num_workers)"
    texts = {
        DECODE: f"{late}: decoding, {part}; {more}, or decode less: image_backend, image_min_size, part_filter",
        ENCODE: f"{late}: {busiest}, {part}; {more}, or make it faster",
        COLLATE: f"{late}: making batches of samples, {part}; {more}, or stack fewer bytes",
        CHANNEL: f"{late}: moving batches to the main process, {part}; return tensors, and fewer bytes",
        LOADER: f"{late}: the loader's own work, {part}; {more}, or use larger samples",
    }
    return Verdict(cause, texts[cause])


def _judge_store(stats: LoaderStats, late: str, share: float) -> Verdict:
    io, cache = stats.io, stats.cache
    refused = io.retries / io.total_requests if io.total_requests else 0.0
    if refused >= _REFUSED:
        return Verdict(
            "throttling",
            f"{late}: the store refuses {refused:.0%} of the requests; spread the data over more prefixes, make "
            "fewer requests (larger samples or max_gap), or fill a cache",
        )
    if cache.missed_bytes > cache.hit_bytes:
        whole = cache.missed_bytes + cache.hit_bytes
        return Verdict(
            "cold cache",
            f"{late}: only {cache.hit_bytes / whole:.0%} of the bytes were in the cache; prewarm it, or wait for the "
            "second pass",
        )
    fixed = io.latency * io.reads / io.read_seconds if io.read_seconds else 0.0
    waits = f"{share:.0%} of the time goes to waiting for the store"
    if fixed >= 0.5:
        return Verdict(
            "store latency",
            f"{late}: the store's latency, {io.latency * 1000:.0f} ms a request; {waits}; raise max_in_flight and "
            "byte_budget, or add workers",
        )
    begin = stats.first_batch_seconds if stats.first_samples else 0.0
    rate = io.bytes_received / (begin + stats.seconds) / 1e6
    return Verdict(
        "store rate",
        f"{late}: the store's rate, {rate:,.1f} MB/s; {waits}; use a cache, a faster network, or fewer bytes: parts, "
        "smaller images",
    )
