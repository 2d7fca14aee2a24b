"""A function on each element, which returns one element, several (a generator), or none (``SkipSample``)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from types import GeneratorType
from typing import Any, ClassVar, Final, TypedDict, Unpack, overload

from energon_stream.errors import ConfigError
from energon_stream.pipeline.dataset import (
    FunctionConfig,
    SavableDataset,
    T,
    T_co,
    Wrapper,
    function_name,
    is_stateless,
)
from energon_stream.pipeline.failure_notes import Failures, Notes
from energon_stream.pipeline.failures import DEFAULT_TOLERANCE, SKIPPED, FailureGuard
from energon_stream.pipeline.node import (
    Context,
    End,
    Item,
    Node,
    RestoreKey,
    State,
    WrapperNode,
    foreign_key,
    new_item,
    read_state,
)
from energon_stream.schedule.saved import damaged, is_count, shown
from energon_stream.worker import WorkerConfig

_KIND: Final = "Map"
_FIRST_WAVE = 4
_WAVE = 32  # elements that are shown to ``ahead`` at a time: at first, and then


def call_again(
    dataset: SavableDataset[Any],
    function: Callable[[Any], Any],
    value: Any,
    key: RestoreKey,
    context: Context,
) -> Any:
    """Call a user's function with the counters in a restore key; of a generator, return the element it names.

    The key's entries after the third are the place in the generator (None unless the function is one), the
    batch index at the call, and that at the place.
    """
    place, first, last = (*key[3:], None, None, None)[:3]
    call = context.config.activate(context.stream, key[1], first)
    with call:
        made = function(value)
        if place is None:
            return made
        for _ in islice(made, place):
            pass
    call.batch_index = last
    with call:
        for element in made:
            return element
    raise foreign_key(dataset, key)


class RunningGenerator:
    """A generator that a user's function returned, in the middle of its elements.

    The second entry of ``key`` is the counter of the call; each element adds its place and batch indices.
    ``batch`` is the index at the call. ``sample`` is what handlers see if the generator fails.
    """

    def __init__(
        self, generator: Iterator[Any], guard: FailureGuard, key: RestoreKey, batch: int | None, sample: Any
    ) -> None:
        self._generator = generator
        self._guard = guard
        self._sample = sample
        self._of = [Item(sample, key[2])]
        self.key = key
        self.batch = batch
        self.place: int = 0  # number of elements that were returned

    def next(self) -> Item | None:
        """Return the next element; None at the end, or where the generator failed or skipped the rest."""
        made = self._guard.call(
            lambda _: next(self._generator, SKIPPED), self._sample, self.key[1], of=self._of
        )
        if made is SKIPPED:
            return None
        self.place += 1
        return Item(made, (*self.key, self.place - 1, self.batch, self._guard.active.batch_index))

    def skip(self, number: int) -> RunningGenerator:
        """Leave out the elements that were returned before the state was saved; raise StateError if fewer."""
        if not isinstance(self._generator, GeneratorType) or not is_count(number):
            raise damaged(f"element {shown(number)} of {shown(self._generator)}")
        while self.place < number:
            if self.next() is None:
                raise damaged(f"a generator has {self.place} elements, of which {number} were returned")
        return self


class _AheadNode(WrapperNode):
    """Takes elements in waves, shows each wave to a function, and returns them in order.

    The state is that of the inner node after the last element that was returned: a restored node takes the
    others again. A wave stops at the end of a pass, and at an error, which is raised in its turn.
    """

    def __init__(self, inner: Node, show: Callable[[Sequence[Any]], None], failures: Failures) -> None:
        self._inner = inner
        self._show = show
        self._failures = failures  # those of an element are noted when it is returned
        self._taken: deque[tuple[Item | End | Exception, State, Notes]] = deque()
        self._is_stopped = False  # True while an end or an error is among the taken
        self._state: State = inner.state()
        self._wave = _FIRST_WAVE

    def next(self) -> Item | End:
        if len(self._taken) < self._wave and not self._is_stopped:
            self._take()
            self._wave = _WAVE
        taken, self._state, notes = self._taken.popleft()
        self._failures.put(notes)
        if isinstance(taken, Item):
            return taken
        self._is_stopped = False
        if isinstance(taken, Exception):
            raise taken
        return taken

    def state(self) -> State:
        return self._state

    def close(self) -> None:
        self._taken.clear()
        super().close()

    def _take(self) -> None:
        values: list[Any] = []
        before = self._failures.take()
        while len(values) < self._wave and not self._is_stopped:
            try:
                item: Item | End | Exception = self._inner.next()
            except Exception as error:
                item = error
            self._taken.append((item, self._inner.state(), self._failures.take()))
            self._is_stopped = not isinstance(item, Item)
            if isinstance(item, Item):
                values.append(item.value)
        self._failures.put(before)
        if values:
            self._show(values)


class _MapNode(WrapperNode):
    """State: ``in``, ``n`` (calls), ``open`` (key, call, place and batch of a running generator, or None)."""

    def __init__(self, dataset: MapDataset[Any], context: Context, state: State | None) -> None:
        self._fn = dataset.fn
        self._guard = FailureGuard(function_name(dataset.fn), context, dataset.failure_tolerance)
        saved = read_state(state, {"in": None, "n": 0, "open": None}, dataset, context)
        self._calls: int = saved["n"]
        self._running: RunningGenerator | None = None
        if saved["open"] is not None:
            key, call, place, batch = saved["open"]
            inner = dataset.dataset.restore_many([key], context)[0]
            with context.config.activate(context.stream, call, batch):
                made = self._guard.active.run(self._fn, inner.value, call, None)
                self._running = self._start(made, call, batch, inner).skip(place)
        self._inner = dataset.dataset.make_node(context, saved["in"])
        if dataset.ahead is not None:
            self._inner = _AheadNode(self._inner, dataset.ahead, context.failures)

    def _start(self, generator: Iterator[Any], call: int, batch: int | None, inner: Item) -> RunningGenerator:
        key = (_KIND, call, inner.key)
        return RunningGenerator(generator, self._guard, key, batch, inner.value)

    def next(self) -> Item | End:
        while True:
            if self._running is not None:
                made = self._running.next()
                if made is not None:
                    return made
                self._running = None
            item = self._inner.next()
            if isinstance(item, End):
                return item
            call = self._calls
            self._calls = call + 1
            value = self._guard.call(self._fn, item.value, call, of=(item,))
            if isinstance(value, GeneratorType):
                self._running = self._start(value, call, self._guard.active.batch_index, item)
            elif value is not SKIPPED:
                batch = self._guard.active.batch_index
                return new_item((value, (_KIND, call, item.key, None, batch)))

    def state(self) -> State:
        running = self._running
        return {
            "in": self._inner.state(),
            "n": self._calls,
            "open": running and [running.key[2], running.key[1], running.place, running.batch],
        }


class _MapOptions(TypedDict, total=False):
    stateless_map_fn: bool
    map_fn_config: FunctionConfig
    failure_tolerance: int
    ahead: Callable[[Sequence[Any]], None] | None
    worker_config: WorkerConfig | None


class MapDataset(Wrapper[T_co]):
    """Applies a function to each element.

    The function may return a generator, whose elements follow each other, or raise ``SkipSample`` to drop the
    element.

    Args:
        dataset: The inner dataset.
        fn: The function; also accepted by its older name ``map_fn``.
        stateless_map_fn: True if the function's result depends on its argument (and the seeds) only.
        map_fn_config: Describes ``map_fn``: a dict, or a function that returns one. States must match it.
        failure_tolerance: Failures in a row that end the run; 0 tolerates any number. By default the first
            10 calls do, too, if they fail by one mistake, as of a typo.
        ahead: Called with elements some time before ``fn`` is, in order, to begin to fetch what ``fn`` will
            need. It changes no result, and no state.
        worker_config: Must agree with the inner dataset's, if given.

    Example:
        >>> from energon_stream import MapDataset
        >>> from energon_stream.testing.operator_suite import NumbersDataset
        >>> list(MapDataset(NumbersDataset(3), lambda number: number * 10))
        [0, 10, 20]
    """

    kind = _KIND
    node_type = _MapNode
    option_names: ClassVar[tuple[str, ...]] = ("fn",)

    @overload
    def __init__(
        self,
        dataset: SavableDataset[T],
        fn: Callable[[T], Iterator[T_co]],
        **options: Unpack[_MapOptions],
    ) -> None: ...

    @overload
    def __init__(
        self, dataset: SavableDataset[T], fn: Callable[[T], T_co], **options: Unpack[_MapOptions]
    ) -> None: ...

    @overload
    def __init__(
        self, dataset: SavableDataset[T], *, map_fn: Callable[[T], T_co], **options: Unpack[_MapOptions]
    ) -> None: ...

    def __init__(
        self,
        dataset: SavableDataset[Any],
        fn: Callable[[Any], Any] | None = None,
        *,
        map_fn: Callable[[Any], Any] | None = None,
        stateless_map_fn: bool = False,
        map_fn_config: FunctionConfig = None,
        failure_tolerance: int = DEFAULT_TOLERANCE,
        ahead: Callable[[Sequence[Any]], None] | None = None,
        worker_config: WorkerConfig | None = None,
    ) -> None:
        super().__init__(dataset, worker_config=worker_config)
        function = fn if fn is not None else map_fn
        if function is None or (fn is not None and map_fn is not None):
            raise ConfigError("MapDataset needs one function", hint="pass it as the second argument")
        if failure_tolerance < 0:
            raise ConfigError(f"failure_tolerance is {failure_tolerance}", hint="use 0 for no limit")
        self.fn = function
        self.stateless: bool = stateless_map_fn or is_stateless(function)
        self.function_config = map_fn_config
        self.failure_tolerance = failure_tolerance
        self.ahead = ahead

    @property
    def pass_length(self) -> int:
        return self.dataset.pass_length

    def restore_many(self, keys: Sequence[RestoreKey], context: Context) -> list[Item]:
        self.check_keys(keys)
        inner_items = self.dataset.restore_many([key[2] for key in keys], context)
        restored = []
        for key, inner in zip(keys, inner_items, strict=True):
            value = call_again(self, self.fn, inner.value, key, context)
            restored.append(Item(value, (self.kind, key[1], inner.key, *key[3:])))
        return restored
