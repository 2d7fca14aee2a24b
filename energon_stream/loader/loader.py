"""The loader that a training loop iterates."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import is_dataclass, replace
from typing import Any, ClassVar, NoReturn, Self, TypeVar

import torch

from energon_stream.drawing import Drawing
from energon_stream.errors import (
    ConfigError,
    StateInUseError,
    TooManyBadSamplesError,
    WeightsError,
    WorkerError,
)
from energon_stream.fork import interrupts_deferred
from energon_stream.index.bad_samples import BadList, BadSample
from energon_stream.loader.loader_options import LoaderOptions, OnWorkerDeath, OnWorkerHang
from energon_stream.loader.loader_position import LoaderPosition, check_streams, with_inputs
from energon_stream.loader.mixture_control import MixtureReport, changed, mixture_of
from energon_stream.loader.observe.observed import ObservedLoader
from energon_stream.loader.session import InProcess
from energon_stream.loader.worker_threads import WorkerThreads
from energon_stream.loader.workers import Workers
from energon_stream.media import CachePool
from energon_stream.pipeline.dataset import SavableDataset, drawing_of
from energon_stream.pipeline.failures import check_pass, shorten
from energon_stream.pipeline.node import RestoreKey
from energon_stream.pipeline.stream_runner import BAD_SAMPLES, Step
from energon_stream.plugins import debug_log
from energon_stream.samples.tensors import map_tensors
from energon_stream.storage.obstore_use import run_forkable
from energon_stream.worker import WorkerConfig

T = TypeVar("T")

_log = logging.getLogger(__name__)

_LEAST_FAILURES = 10
"""Failures from which ``max_bad`` ends a run: fewer say little about a share."""


class BasicDataLoader(ObservedLoader[T]):
    """Iterates a dataset in this process or in workers.

    The streams of the rank come in rotation, so the order of the batches does not depend on timing. A ``for``
    loop ends with the pass, and the next loop begins the next pass. A loop that was left early goes on in the
    next loop.

    Args:
        dataset: The dataset to iterate.
        gc_collect_every_n_steps: Not needed: workers make no reference cycles per batch.
        gc_freeze_at_start: Not needed, for the same reason.
        prefetch_factor: As for :func:`get_loader`, like the rest.

    Example:
        >>> from energon_stream import BasicDataLoader
        >>> from energon_stream.testing.operator_suite import NumbersDataset
        >>> loader = BasicDataLoader(NumbersDataset(3))
        >>> list(loader), len(loader)
        ([0, 1, 2], 3)
        >>> loader
        BasicDataLoader(NumbersDataset(size=3), rank=0, world_size=1, num_workers=0, passes=1, position=0)
    """

    _log_names = ("BasicDataLoader", "BasicDataLoader")

    def __init__(
        self,
        dataset: SavableDataset[T],
        gc_collect_every_n_steps: int = 10,
        gc_freeze_at_start: bool = True,
        prefetch_factor: int = 2,
        cache_pool: CachePool | None = None,
        watchdog_timeout_seconds: float | None = 60,
        watchdog_initial_timeout_seconds: float | None = None,
        fail_on_timeout: bool = False,
        *,
        on_worker_death: OnWorkerDeath = "raise",
        on_worker_hang: OnWorkerHang = "warn",
        pin_memory: bool | str | None = None,
        start_method: str | None = None,
        worker_type: Any = "fork",
        decode_threads: int = 0,
        max_bad: float | None = None,
    ) -> None:
        super().__init__()
        given: Any = dataset
        if not isinstance(given, SavableDataset):
            hint = "pass what get_train_dataset or get_val_dataset returned"
            raise ConfigError(f"a loader is for a dataset, and this is a {type(dataset).__name__}", hint=hint)
        self.dataset = dataset
        self.worker_config: WorkerConfig = dataset.worker_config
        self._options = LoaderOptions(
            prefetch_factor=prefetch_factor,
            worker_type=getattr(worker_type, "worker_type", worker_type),
            start_method=start_method,
            watchdog_timeout_seconds=watchdog_timeout_seconds,
            watchdog_initial_timeout_seconds=watchdog_initial_timeout_seconds,
            fail_on_timeout=fail_on_timeout,
            on_worker_death=on_worker_death,
            on_worker_hang=on_worker_hang,
            cache_pool=cache_pool,
            decode_threads=decode_threads,
        )
        self._options.check_threads(self.worker_config)
        if isinstance(pin_memory, str) and pin_memory != "automatic":
            raise ConfigError(f"pin_memory is {pin_memory!r}", hint="use True, False or 'automatic'")
        if max_bad is not None and not (isinstance(max_bad, (int, float)) and 0 < max_bad < 1):
            raise ConfigError(
                f"max_bad is {max_bad!r}",
                hint="use a share between 0 and 1, or end at the first bad sample with "
                "WorkerConfig(global_error_handler=reraise_exception)",
            )
        self._max_bad = max_bad
        self._bad = BadList()
        self._unlisted = 0  # samples that failed before a restore, and are not in the list
        self._told = 0  # failures that the last summary in the log had
        self._pin = torch.cuda.is_available() if pin_memory in (None, "automatic") else bool(pin_memory)
        self._session: InProcess | Workers | None = None
        self._stepping = threading.Lock()  # held while a batch is made
        self._position = LoaderPosition.start(dataset)
        log = debug_log(self.worker_config.worker_log_level)
        self._log = None if log is None else log.LoaderLines(dataset, *self._log_names)

    def __iter__(self) -> Iterator[T]:
        """Iterate to the end of the pass."""
        if self._log is None:
            return self._batches(None)
        return self._logged(self._log)

    def _logged(self, log: Any) -> Iterator[T]:
        log.begin()
        try:
            yield from self._batches(log)
        finally:
            log.end()

    def _batches(self, log: Any) -> Iterator[T]:
        meter = self._meter
        if self._session is None:
            self.start()
        while True:
            with self._stepping:
                try:
                    session, stream = self._opened(), self._position.next_stream()
                    asked = meter.ask()
                    step = session.step(stream)
                    if not step.ended:
                        meter.received(asked, step.value, step.loads)
                    batch = [] if step.ended else [self._pinned(step.value)]
                    if log is not None and batch:
                        log.batch(stream, step.state["batches"] - 1, step.value)
                    position = self._position.after(step)
                    if step.bad:
                        self._bad.add(step.bad)
                        self._check_bad(position)
                    self._record(position, step)
                    if position.begins_pass:
                        kinds = f": {self._bad.kinds()}" if self._bad.samples else ""
                        check_pass(position.states.values(), self.worker_config.world_size, kinds)
                except BaseException as error:
                    self._bad.add(getattr(error, BAD_SAMPLES, ()))
                    self.close()
                    shorten(error)
                    raise
                del step, session
                # One assignment: a signal handler that saves, or raises, finds the position before or after
                # the batch.
                self._position = position
            if batch:
                yield batch.pop()  # so that nothing here keeps it alive while the next one is read
            elif position.begins_pass:
                self._tell_bad()
                return

    def start(self) -> None:
        """Start the workers now, and not with the first batch.

        Raises:
            StateInUseError: They run.

        Example:
            >>> from energon_stream import get_savable_loader, get_train_dataset
            >>> loader = get_savable_loader(get_train_dataset("captions", batch_size=4))
            >>> loader.start()
            >>> batch = next(iter(loader))
            >>> loader.shutdown()
        """
        if self._session is not None:
            hint = "call start() once, before the first batch, and again after shutdown()"
            raise StateInUseError("the loader runs", hint=hint)
        datasets = with_inputs(self.dataset)  # another pipeline may have some of them
        for dataset in datasets:
            check_streams(self.worker_config, dataset.worker_config)
        self.worker_config = self.dataset.worker_config
        for dataset in datasets:
            vars(dataset)["is_in_use"] = True
        self._meter.ask()
        self._begin_session()
        self._publish()
        try:
            self._prepare()
        except BaseException:
            self.close()
            raise

    def _check_bad(self, position: LoaderPosition) -> None:
        """Raise TooManyBadSamplesError for a share above ``max_bad``; tell of failures now and then."""
        read, bad, failures, _ = counts_of(position)
        if failures >= 10 * max(1, self._told):
            self._tell_bad(position)
        if self._max_bad is None or failures < _LEAST_FAILURES or bad <= self._max_bad * read:
            return
        raise TooManyBadSamplesError(
            f"{bad:,} of {read:,} samples failed on rank {self.worker_config.rank}, which is more than "
            f"max_bad={self._max_bad:g}: {self._kinds()}",
            hint="write them with write_bad_samples(path, loader.bad_samples()), and leave them out with "
            "exclude=path; or raise max_bad",
        )

    def _tell_bad(self, position: LoaderPosition | None = None) -> None:
        """Log a summary of the bad samples, if there are others than in the one before."""
        read, bad, failures, _ = counts_of(position or self._position)
        if failures > self._told:
            self._told = failures
            rank, kinds = self.worker_config.rank, self._kinds()
            _log.warning("rank %d: %s of %s samples failed: %s", rank, f"{bad:,}", f"{read:,}", kinds)

    def _emptied_packs(self) -> int:
        return counts_of(self._position)[3]

    def _kinds(self) -> str:
        before = f"{self._unlisted:,} before the restore, where the list begins" if self._unlisted else ""
        return "; and ".join(filter(None, (self._bad.kinds(), before)))

    def bad_samples(self) -> list[BadSample]:
        """Return the samples of this rank that failed, each once, in the order in which they failed first.

        With ``run=``, the list has what the run's folder has of this rank as well; without, it begins at the
        restore. What the program drops, by ``SkipSample`` or a filter, is not in it.

        Example:
            >>> from energon_stream import DefaultTaskEncoder, WorkerConfig, get_loader, get_val_dataset
            >>> class Picky(DefaultTaskEncoder):
            ...     def encode_sample(self, sample):
            ...         if sample.__key__.endswith("50"):
            ...             raise ValueError("no use for it")
            ...         return sample
            >>> config = WorkerConfig(rank=0, world_size=1, num_workers=0)
            >>> options = {"worker_config": config, "task_encoder": Picky()}
            >>> dataset = get_val_dataset("captions", batch_size=7, **options)
            >>> with get_loader(dataset) as loader:
            ...     batches = list(loader)
            >>> [(sample.key, sample.message) for sample in loader.bad_samples()]
            [('00000050', 'no use for it')]
        """
        return self._bad.samples

    def _opened(self) -> InProcess | Workers:
        if self._session is None:
            hint = "iterate the loader again to go on after the last batch"
            raise WorkerError("the loader was closed", hint=hint)
        return self._session

    def _begin_session(self) -> None:
        with interrupts_deferred():  # or workers would stay of which nobody knows
            self._session = self._open()

    def _open(self) -> InProcess | Workers:
        """Start workers, or this process's readers, at the present position."""
        options = replace(self._options, is_traced=self._trace is not None and self._trace.is_running)
        kind: type[InProcess | Workers] = InProcess
        if self.worker_config.num_workers and options.worker_type != "main":
            kind = Workers if options.worker_type == "fork" else WorkerThreads
        return kind(self.dataset, self._position, options)

    def set_weights(self, weights: Mapping[str, float], *, at_step: int | None = None) -> None:
        """Mix with other weights from a step on, which may be any that no rank has begun.

        Call this on all ranks after the same step, with the same arguments. Where ``torch.distributed`` is
        initialized, all ranks compare what they have set, and all raise if it differs. The weights are a part
        of saved states. What workers have made ahead is made anew, which takes as long as a restore.

        Args:
            weights: The weight of every source, by the names in :meth:`mixture` or by URL. 0 leaves a source
                out. They need not sum to one.
            at_step: First step that they hold for. A step is one batch of every rank, counted from 0 at the
                start of the training. None for the first step possible, which is the next one unless samples
                of later steps are chosen. Weights that were planned for this step and later ones, in the
                metadataset too, are replaced.

        Raises:
            WeightsError: A batch is being made, a source is unknown or missing, a number is negative or not
                finite, all are 0, other ranks have others, or the pipeline is no blend by weights.
            StepPassedError: The step is over, or its samples are chosen already. The hint has the first step
                that is possible.

        Example:
            >>> from energon_stream import WorkerConfig, get_loader, get_train_dataset
            >>> config = WorkerConfig(rank=0, world_size=1, num_workers=0)
            >>> dataset = get_train_dataset("mix.yaml", batch_size=None, worker_config=config)
            >>> loader = get_loader(dataset)
            >>> loader.set_weights({"captions": 0, "texts": 1}, at_step=5)
            >>> [type(sample).__name__ for step, sample in zip(range(8), loader)][5:]
            ['TextSample', 'TextSample', 'TextSample']
        """
        if not self._stepping.acquire(blocking=False):
            hint = "call set_weights between two batches, on the thread that iterates"
            raise WeightsError("a batch is being made", hint=hint)
        try:
            changes = changed(self.dataset, self._position, weights, at_step)
            self._position = self._position._replace(changes=changes)
            if self._session is not None:
                self._end_session()
                self._begin_session()
        finally:
            self._stepping.release()

    def mixture(self) -> MixtureReport:
        """Return what each source has given to this rank since the start of the training.

        Raises:
            WeightsError: The pipeline reads no dataset.
        """
        return mixture_of(self.dataset, self._position)

    def drawing(self) -> Drawing:
        """Return the loader and its pipeline as boxes, of which ``repr`` and notebooks make a drawing."""
        config, rotation = self.worker_config, self._position.rotation
        place = {"rank": config.rank, "world_size": config.world_size, "num_workers": config.num_workers}
        place |= {"passes": rotation.passes, "position": rotation.consumed}
        details = tuple(f"{name}={value}" for name, value in place.items())
        return Drawing(type(self).__name__, details, (drawing_of(self.dataset),))

    def __repr__(self) -> str:
        return self.drawing().text()

    def _repr_html_(self) -> str:
        return self.drawing().html()

    def _prepare(self) -> None:
        """Do work that is needed later, while workers make the first batch."""

    def _record(self, position: LoaderPosition, step: Step) -> None:
        """Record a step, after which the loader is at ``position``."""

    def _pinned(self, value: Any) -> Any:
        if not self._pin:
            return value
        from torch.utils.data._utils.pin_memory import pin_memory

        if is_dataclass(value) and not hasattr(value, "pin_memory"):  # torch would leave it as it is
            return map_tensors(lambda tensor: tensor.pin_memory(), value)
        return pin_memory(value)  # type: ignore[no-untyped-call]

    def __len__(self) -> int:
        """Return the batches of this rank in one pass; for an endless dataset, in one pass over the data."""
        return max(1, self.dataset.len_rank())

    __getitem__: ClassVar[Callable[..., NoReturn]] = SavableDataset.__getitem__  # raises; torch's would index

    def __bool__(self) -> bool:
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        session = getattr(self, "_session", None)
        if session is not None and not sys.is_finalizing():
            session.close()

    def close(self) -> None:
        """End the workers. Iterating again starts new ones, after the last batch that was returned."""
        self._unpublish()
        if self._session is not None:
            self._tell_bad()
        self._end_session()

    def shutdown(self, in_del: bool = False) -> None:
        """End the workers, as :meth:`close` does. ``in_del`` changes nothing."""
        self.close()

    def _end_session(self) -> None:
        with interrupts_deferred():
            with self._lock:
                session, self._session = self._session, None
                if session is not None:
                    self._count(session)
            if session is not None:
                if self._trace is not None:
                    self._trace.closing(session)
                session.close()

    def config(self) -> dict[str, Any]:
        """Return the pipeline and the topology as plain values."""
        return {"dataset": self.dataset.config(), "worker_config": self.worker_config.config()}

    def can_restore_sample(self) -> bool:
        """Return True if :meth:`restore_sample` works: all functions are stateless."""
        return self.dataset.can_restore_sample()

    def restore_sample(self, restore_key: RestoreKey) -> T:
        """Make one element again from its ``__restore_key__``.

        Raises:
            ConfigError: Some function is not stateless, or the key did not come from a loader.
        """
        self.dataset.assert_can_restore()
        if self.worker_config.num_workers > 0 and self._session is None:
            # Before it forks workers, this process must not open a client of its own.
            return run_forkable(self.dataset.restore_sample, restore_key)
        return self.dataset.restore_sample(restore_key)


def counts_of(position: LoaderPosition) -> tuple[int, int, int, int]:
    """Return samples that were read, that failed, calls that failed, and emptied packs, since the start."""
    counts = [state.get("counts", (0, 0, 0)) for state in position.states.values() if state is not None]
    read, bad, failures, emptied = (sum(sum(each[at : at + 1]) for each in counts) for at in range(4))
    return read, bad, failures, emptied
