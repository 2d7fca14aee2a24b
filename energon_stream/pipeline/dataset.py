"""Datasets that users compose, and the base classes of operators.

A *dataset* is a description, without a position. A *node* runs one stream of it.

To write an operator, derive from :class:`Wrapper` or :class:`MultiInput`, and set ``kind`` and ``node_type``;
``ShuffleBufferDataset`` is a short example. Then run ``testing.operator_suite.assert_exact_resume`` on it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Generic, NoReturn, TypeAlias, TypeVar

from energon_stream.drawing import SHOWN, Drawing
from energon_stream.errors import ConfigError
from energon_stream.index.bad_samples import BadSample
from energon_stream.pipeline.failure_notes import Named
from energon_stream.pipeline.iterables import adopt
from energon_stream.pipeline.node import INNER_STATE, Context, Item, Node, RestoreKey, State, foreign_key
from energon_stream.pipeline.position import Position, is_activated
from energon_stream.pipeline.stream_copies import iterate_parent, restore_own, save_own, stream_inputs
from energon_stream.pipeline.stream_runner import StreamRunner, with_restore_key
from energon_stream.schedule import WeightChange
from energon_stream.schedule.saved import is_count
from energon_stream.worker import WorkerConfig

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

FunctionConfig: TypeAlias = Mapping[str, Any] | Callable[[], Mapping[str, Any]] | None
"""Plain values that describe what a function does, or a function that returns them."""


class SavableDataset(ABC, Generic[T_co]):
    """Base of all datasets that users compose.

    Attributes:
        worker_config: The configuration of the job.
        inputs: The datasets that this one reads from.
        training: False if the dataset was opened for validation, which debug logs tell.

    Example:
        >>> from energon_stream import MapDataset, SavableDataset
        >>> from energon_stream.testing.operator_suite import NumbersDataset
        >>> squares = MapDataset(NumbersDataset(4), lambda number: number**2)
        >>> isinstance(squares, SavableDataset), len(squares), list(squares)
        (True, 4, [0, 1, 4, 9])
    """

    worker_config: WorkerConfig
    inputs: tuple[SavableDataset[Any], ...] = ()
    training: bool = True
    regroups: ClassVar[bool] = False
    """True if an element is made of any number of elements of ``inputs``."""
    counts_samples: bool = False
    """True if :meth:`len_stream` counts those, because nothing tells how many elements they make."""
    _savable_fields: ClassVar[tuple[str, ...]] = ()
    """Attributes that are the state of a class that writes ``__iter__``."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        adopt(cls, SavableDataset)

    def __init__(self, worker_config: WorkerConfig) -> None:
        self.worker_config = worker_config

    def set_config(self, config: WorkerConfig) -> None:
        """Run by another configuration of the same process, with other streams; before anything is read."""
        names = [name for name, value in vars(self).items() if value is self.worker_config]
        vars(self).update(dict.fromkeys(names, config))

    @property
    def pass_length(self) -> int:
        """Elements of one pass of a job whose workers read on into the next, as in virtual epochs; else 0."""
        return 0

    @abstractmethod
    def make_node(self, context: Context, state: State | None) -> Node:
        """Make the node of one stream, at the start or at ``state``."""

    @abstractmethod
    def len_stream(self, stream: int) -> int | None:
        """Return the elements of one pass of a stream; None if it never ends or the length is unknown."""

    @abstractmethod
    def restore_many(self, keys: Sequence[RestoreKey], context: Context) -> list[Item]:
        """Make elements again from their keys. All keys come in one call, so that few requests read them."""

    @abstractmethod
    def config(self) -> dict[str, Any]:
        """Describe the dataset and its inputs in plain values.

        The description is fingerprinted: a state is restored only where it is the same. It contains the
        ``config()`` of each input, in the order of ``inputs``. Where it has both ``"datasets"`` and
        ``"weights"``, the weights may be others when a run continues with ``on_change="continue"``.
        """

    def inner_states(self, state: State) -> list[State]:
        """Return the states of the inner nodes from a node's state, one for each of ``inputs``.

        The default reads :data:`~energon_stream.pipeline.node.INNER_STATE`. An operator whose node keeps them
        elsewhere overrides this and :meth:`with_inner_states`.
        """
        return [state[INNER_STATE]] if self.inputs else []

    def with_inner_states(self, state: State, inner: Sequence[State]) -> State:
        """Return a node's state with other states of the inner nodes; the inverse of :meth:`inner_states`."""
        return {**state, INNER_STATE: inner[0]} if self.inputs else state

    def input_path(self, path: str, number: int) -> str:
        """Return the ``Context.path`` of an input's node; operators on several datasets number them."""
        return path

    def weights_by_batch(self) -> bool:
        """Return True if weights change by the batches of streams, which take any number of references.

        A stream then begins anew at its state, with the first batch that has other weights.
        """
        is_here = self.regroups and all(inner.can_restore_sample() for inner in self.inputs)
        return is_here or any(inner.weights_by_batch() for inner in self.inputs)

    def batches_of_changes(self, stream: int, changes: Sequence[WeightChange]) -> Iterator[int]:
        """Yield the batches of a stream with which weights change; even draws change by references."""
        for inner in self.inputs:
            yield from inner.batches_of_changes(stream, changes)

    def can_restore_sample(self) -> bool:
        """Return True if every function on the way is stateless, so that keys can be turned into elements."""
        return all(dataset.can_restore_sample() for dataset in self.inputs)

    def assert_can_restore(self) -> None:
        """Raise a ConfigError if :meth:`can_restore_sample` is False."""
        if not self.can_restore_sample():
            raise ConfigError(
                f"{type(self).__name__} cannot make samples again from their keys",
                hint="mark the functions of the task encoder with @stateless",
            )

    @property
    def datasets(self) -> tuple[SavableDataset[Any], ...]:
        """The datasets that this one reads from, as ``inputs``. Own classes may set it."""
        found: tuple[SavableDataset[Any], ...] = vars(self).get("datasets", self.inputs)
        return found

    @datasets.setter
    def datasets(self, datasets: Any) -> None:
        vars(self)["datasets"] = datasets

    def restore_sample(self, restore_key: RestoreKey) -> T_co:
        """Make one element again, in this process, from the ``__restore_key__`` that a loader gave it.

        Raises:
            ConfigError: Some function is not stateless, or the key did not come from a loader.
        """
        self.assert_can_restore()
        if not restore_key or restore_key[0] != "Stream":
            raise ConfigError(
                f"{restore_key!r} is not a restore key", hint="pass the __restore_key__ of a batch"
            )
        _, stream, key = restore_key
        with self.worker_config.activate(stream):
            item = self.restore_many([key], Context(self.worker_config, stream))[0]
        made: T_co = with_restore_key(item.value, ("Stream", stream, item.key))
        return made

    def worker_has_samples(self, worker_idx: int = 0) -> bool:
        """Return True if some stream of a worker has an element."""
        return any(self.len_stream(stream) != 0 for stream in self.worker_config.worker_streams(worker_idx))

    def len_worker(self, worker_idx: int = 0) -> int:
        """Return the elements of one pass of all streams of one worker."""
        return self._sum(self.worker_config.worker_streams(worker_idx))

    def len_rank(self) -> int:
        """Return the elements of one pass of this rank."""
        return self._sum(self.worker_config.streams)

    def _sum(self, streams: Sequence[int]) -> int:
        lengths = [self.len_stream(stream) for stream in streams]
        if None in lengths:
            return self.nominal_length()
        return sum(length for length in lengths if length is not None)

    def nominal_length(self) -> int:
        """Return the length to show for a dataset that never ends: one pass over the data that it repeats."""
        return max([dataset.nominal_length() for dataset in self.inputs], default=1)

    def count_readers(self) -> int:
        """Count the reader datasets below; each reads ahead on its own."""
        return max(1, sum(dataset.count_readers() for dataset in self.inputs))

    def places(self, named: Named, path: str, member: int) -> list[BadSample]:
        """Name the samples in the readers below, this dataset being at ``path``; ``member`` is of joins."""
        inner = [(dataset, self.input_path(path, number)) for number, dataset in enumerate(self.inputs)]
        return [place for dataset, at in inner for place in dataset.places(named, at, member)]

    def __len__(self) -> int:
        return self.len_rank()

    def __getitem__(self, index: Any) -> NoReturn:
        """Raise a ConfigError that names the loaders to use; ``torch.utils.data.DataLoader`` would index."""
        raise ConfigError(
            f"{type(self).__name__} is a stream of batches and cannot be indexed (here with {index!r:.40}); "
            "a torch DataLoader would do that",
            hint="use get_loader(dataset) or get_savable_loader(dataset) in place of a torch DataLoader; "
            "WorkerConfig(num_workers=...) and batch_size of the dataset replace its options",
        )

    def __bool__(self) -> bool:
        return True

    def drawing(self) -> Drawing:
        """Return the pipeline as boxes, of which ``repr`` and notebooks make a line, a tree or a drawing."""
        return Drawing(type(self).__name__, inner=self._inner_boxes(), more=max(0, len(self.inputs) - SHOWN))

    def _inner_boxes(self) -> tuple[Drawing, ...]:
        return tuple(drawing_of(dataset) for dataset in self.inputs[:SHOWN])

    def __repr__(self) -> str:
        return self.drawing().text()

    def _repr_html_(self) -> str:
        return drawing_of(self).html()

    def save_state(self) -> State:
        """Return the position of a dataset that the program iterates after ``WorkerConfig.worker_activate``.

        In a class that writes ``__iter__``, ``super().save_state()`` returns the states of the inputs and the
        attributes in ``_savable_fields``. Raises WorkerError if the dataset has no position, as where a
        loader iterates it.
        """
        return Position.of(self).state(self) if stream_inputs(self) is None else save_own(self)

    def restore_state(self, state: State) -> None:
        """Set the position to what :meth:`save_state` returned; the next ``iter(dataset)`` goes on there.

        Raises StateError if it is no state of this dataset.
        """
        restore = Position.restore if stream_inputs(self) is None else restore_own
        restore(self, state)

    def reset_state_own(self) -> None:
        """Set the attributes of a class that writes ``__iter__`` back; by default, nothing happens."""

    def reset_state_deep(self) -> None:
        """Go back to the start."""
        self.reset_state_own()
        Position.reset(self)

    def __iter__(self) -> Iterator[T_co]:
        """Iterate over one pass in this process, without workers.

        Each call begins anew, except after ``WorkerConfig.worker_activate``: there a call goes on after the
        last element, and :meth:`save_state` saves the position.
        """
        if stream_inputs(self) is not None:  # super().__iter__() of a class that writes it
            return iterate_parent(self)
        return Position.of(self).iterate(self) if is_activated() else self._begin_anew()

    def _begin_anew(self) -> Iterator[T_co]:
        runner = StreamRunner(self, list(self.worker_config.streams))
        try:
            while (step := runner.step()) is not None:
                yield step.value
        finally:
            runner.close()


class Operator(SavableDataset[T_co]):
    """Base of operators. An operator names its node type and its options; the rest follows."""

    kind: ClassVar[str]
    """Name of the operator in restore keys."""
    node_type: ClassVar[type[Any]]
    """Class of the nodes, made with the dataset, the context and the state."""
    option_names: ClassVar[tuple[str, ...]] = ()
    """Attributes that decide the elements; a part of ``config()`` and of ``repr``."""
    stateless: bool = True
    """True if the results of the operator's functions depend on their arguments (and the seeds) only."""
    function_config: FunctionConfig = None
    """Describes the operator's function in ``config()``, so that a state of another function is refused."""

    def __init__(
        self,
        datasets: SavableDataset[Any] | Iterable[SavableDataset[Any]],
        *,
        worker_config: WorkerConfig | None = None,
    ) -> None:
        if isinstance(datasets, SavableDataset):
            vars(self)["dataset"] = datasets
            datasets = (datasets,)
        self.inputs: tuple[SavableDataset[Any], ...] = tuple(datasets)
        self.worker_config: WorkerConfig = common_config(self.inputs, worker_config)

    def make_node(self, context: Context, state: State | None) -> Node:
        node: Node = self.node_type(self, context, state)
        return node

    def options(self) -> dict[str, Any]:
        """Return the options in plain values: functions by name, tuples as lists."""
        values = {name: getattr(self, name) for name in self.option_names}
        return {
            name: function_label(value)
            if callable(value)
            else list(value)
            if isinstance(value, tuple)
            else value
            for name, value in values.items()
        }

    def can_restore_sample(self) -> bool:
        return self.stateless and super().can_restore_sample()

    def check_keys(self, keys: Sequence[RestoreKey], *, several: bool = False) -> None:
        """Raise StateMismatchError unless all keys (of one or ``several`` elements) are of this operator."""
        for key in keys:
            if not isinstance(key, (list, tuple)) or len(key) < 2 or key[0] != self.kind:
                raise foreign_key(self, key)
            counters = [key[1], *(entry for entry in key[3:] if entry is not None)]
            has_list = not several or (len(key) > 2 and isinstance(key[2], (list, tuple)))
            if not has_list or not all(map(is_count, counters)):
                raise foreign_key(self, key)

    def drawing(self) -> Drawing:
        options = tuple(f"{name}={value}" for name, value in self.options().items())
        return replace(super().drawing(), details=options)


class Wrapper(Operator[T_co]):
    """Base of operators on one dataset. By default, elements pass one by one, with the keys they have."""

    dataset: SavableDataset[Any]

    def __init__(self, dataset: SavableDataset[Any], *, worker_config: WorkerConfig | None = None) -> None:
        super().__init__(dataset, worker_config=worker_config)

    def len_stream(self, stream: int) -> int | None:
        return self.dataset.len_stream(stream)

    def restore_many(self, keys: Sequence[RestoreKey], context: Context) -> list[Item]:
        return self.dataset.restore_many(keys, context)

    def config(self) -> dict[str, Any]:
        described = self.function_config() if callable(self.function_config) else self.function_config
        of_function = {} if described is None else {"function_config": dict(described)}
        inner = self.dataset.config()
        return {"type": type(self).__name__, **self.options(), **of_function, "dataset": inner}


class MultiInput(Operator[T_co]):
    """Base of operators on several datasets, each element of which comes from one of them.

    A node of it builds inner node ``n`` with ``context.child(n)``, and its state lists all inner states.
    """

    def inner_states(self, state: State) -> list[State]:
        return list(state[INNER_STATE])

    def with_inner_states(self, state: State, inner: Sequence[State]) -> State:
        return {**state, INNER_STATE: list(inner)}

    def input_path(self, path: str, number: int) -> str:
        return f"{path}/{number}"

    def len_stream(self, stream: int) -> int | None:
        lengths = [dataset.len_stream(stream) for dataset in self.inputs]
        return None if None in lengths else sum(length for length in lengths if length is not None)

    def nominal_length(self) -> int:
        return sum(dataset.nominal_length() for dataset in self.inputs)

    def restore_many(self, keys: Sequence[RestoreKey], context: Context) -> list[Item]:
        self.check_keys(keys)
        found: dict[int, Item] = {}
        for number, dataset in enumerate(self.inputs):
            places = [place for place, key in enumerate(keys) if key[1] == number]
            if places:
                items = dataset.restore_many([keys[place][2] for place in places], context.child(number))
                found.update(zip(places, (self.label(number, item) for item in items), strict=True))
        for place, key in enumerate(keys):
            if place not in found:
                raise foreign_key(self, key)
        return [found[place] for place in range(len(keys))]

    def label(self, number: int, item: Item) -> Item:
        """Turn an item of an inner dataset into one of this dataset."""
        return Item(item.value, (self.kind, number, item.key))

    def config(self) -> dict[str, Any]:
        datasets = [dataset.config() for dataset in self.inputs]
        return {"type": type(self).__name__, **self.options(), "datasets": datasets}


def drawing_of(dataset: SavableDataset[Any]) -> Drawing:
    """Return the drawing of a dataset; one with a ``repr`` of its own is a box with this text."""
    own = type(dataset).__repr__ is not SavableDataset.__repr__
    return Drawing(repr(dataset)) if own else dataset.drawing()


def function_name(function: Callable[..., Any]) -> str:
    """Return the qualified name of a function, for messages."""
    return str(getattr(function, "__qualname__", None) or type(function).__qualname__)


def function_label(function: Callable[..., Any]) -> str:
    """Return a function's name without its class, for ``config()``: states survive a renamed class."""
    return function_name(function).rpartition(".")[2]


def is_stateless(function: Callable[..., Any]) -> bool:
    """Return True if a function is marked with ``@stateless``."""
    return bool(getattr(function, "__stateless__", False))


def common_config(datasets: Sequence[SavableDataset[Any]], given: WorkerConfig | None) -> WorkerConfig:
    """Return the one configuration of all datasets; raise ConfigError if theirs differ, or there are none."""
    if not datasets:
        raise ConfigError("an operator needs at least one dataset", hint="pass the datasets to combine")
    found = given or datasets[0].worker_config
    for dataset in datasets:
        if dataset.worker_config != found:
            raise ConfigError(
                f"worker configurations differ: {dataset.worker_config.config()} and {found.config()}",
                hint="build all datasets of one pipeline with the same WorkerConfig",
            )
    return found
