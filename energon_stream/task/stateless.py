"""Marks for hooks: pure functions, seeded randomness, and the number of tolerated failures."""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import wraps
from inspect import isgenerator
from typing import Any, TypeVar, overload

from energon_stream.active_call import active_config
from energon_stream.errors import ConfigError
from energon_stream.pipeline.failures import DEFAULT_TOLERANCE
from energon_stream.random_states import RandomState, restored_states, seed_all
from energon_stream.task.call_rng import seed_of

F = TypeVar("F", bound=Callable[..., Any])


def _call_seed() -> int | None:
    """Return the seed of the current hook call, as Megatron-Energon derives it; None outside of a pipeline.

    Each call computes it anew, because one process may run loaders with different seeds.
    """
    config = active_config()
    if config is None:
        return None
    # Tests of programs put an object of their own in the place of a configuration.
    call = getattr(config, "stream_sample_index", None)
    return seed_of(config.worker_seed(), config.active_worker_sample_index if call is None else call)


def _with_own_timeline(generator: Generator[Any, Any, Any], state: RandomState) -> Generator[Any, None, None]:
    """Run a generator with random states of its own, independent of draws between its elements."""
    try:
        while True:
            with restored_states():
                state.apply()
                try:
                    value = next(generator)
                except StopIteration:
                    return
                state = RandomState.current()
            yield value
    finally:
        generator.close()


def _with_seeds(function: F) -> F:
    @wraps(function)
    def seeded(*args: Any, **kwargs: Any) -> Any:
        seed = _call_seed()
        if seed is None:
            return function(*args, **kwargs)
        with restored_states():
            seed_all(seed)
            result = function(*args, **kwargs)
            if isgenerator(result):
                return _with_own_timeline(result, RandomState.current())
            return result

    return seeded  # type: ignore[return-value]


@overload
def stateless(fn: F) -> F: ...
@overload
def stateless(
    fn: None = None,
    *,
    restore_seeds: bool = False,
    restore_task_encoder_seeds: bool = False,
    failure_tolerance: int | None = None,
    skip_safe: bool | None = None,
) -> Callable[[F], F]: ...
def stateless(
    fn: F | None = None,
    *,
    restore_seeds: bool = False,
    restore_task_encoder_seeds: bool = False,
    failure_tolerance: int | None = None,
    skip_safe: bool | None = None,
) -> F | Callable[[F], F]:
    """Mark a hook as pure: its result depends on its arguments, and with ``restore_seeds`` on the seeds.

    Samples can be made again from their keys only if all hooks are marked. Use ``@stateless`` or
    ``@stateless(…)``.

    Args:
        fn: The function.
        restore_seeds: Seed ``torch``, ``numpy.random`` and ``random`` before each call, from the stream's
            seed and the call's counter (first four bytes of SHA-1 over ``"worker_seed|sample_index"``), and
            restore their states afterwards. A generator keeps random states of its own between its elements.
            Outside of a pipeline there are no seeds, and the function runs as it is.
        restore_task_encoder_seeds: Not needed: each call of a hook finds its own seeds in
            ``TaskEncoder.rng``.
        failure_tolerance: Failures in a row of this function that end the run; 0 tolerates any number.
            Default: the encoder's ``__default_failure_tolerance__``; without either, 100, or the first
            10 calls if they fail by one mistake, as of a typo.
        skip_safe: Not needed: no sample is made to be discarded.

    Example:
        >>> import random
        >>> from energon_stream import DefaultTaskEncoder, stateless
        >>> class Cropped(DefaultTaskEncoder):
        ...     @stateless(restore_seeds=True, failure_tolerance=10)
        ...     def encode_sample(self, sample):
        ...         return sample.text[random.randrange(3) :]
    """

    def mark(function: F) -> F:
        marked: Any = function
        if isinstance(marked, type) or not (callable(marked) or hasattr(marked, "__func__")):
            hint = "write @stateless or @stateless(restore_seeds=True) above each hook"
            raise ConfigError(f"@stateless marks functions, and this is {function!r:.80}", hint=hint)
        marked = _with_seeds(function) if restore_seeds else function
        marked.__stateless__ = True
        if failure_tolerance is not None:
            marked.__failure_tolerance__ = failure_tolerance
        return marked  # type: ignore[no-any-return]

    return mark if fn is None else mark(fn)


def get_stateless(fn: Callable[..., Any]) -> bool:
    """Return True if a function is marked with :func:`stateless`."""
    return bool(getattr(fn, "__stateless__", False))


def get_failure_tolerance(fn: Callable[..., Any], default_failure_tolerance: int = DEFAULT_TOLERANCE) -> int:
    """Return the failure tolerance that a function is marked with, else the default."""
    tolerance: int = getattr(fn, "__failure_tolerance__", default_failure_tolerance)
    return tolerance
