"""Ranks that agree: each tells the others one word, and none goes on before all have.

Words go through the key-value store with which ``torch.distributed`` was initialized, and not through a
collective: this would meet other collectives of the program where only some ranks come, and would wait
without end. The first rank of the data-parallel group reads all words and writes the verdict, once; the
others wait for it. Without a process group of the data-parallel ranks, each rank is alone.

Ranks may come late: ``ENERGON_STREAM_AGREE`` says for how long the others wait, and then raise an error.
Without it they wait 30 s, warn, and go on as if there were no agreement.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import wraps
from typing import Any, ParamSpec, TypeAlias, TypeVar

import energon_stream.errors as known
from energon_stream.errors import ConfigError, EnergonStreamError
from energon_stream.quantities import parse_seconds
from energon_stream.worker import WorkerConfig

P = ParamSpec("P")
T = TypeVar("T")

Range: TypeAlias = tuple[tuple[int, int], tuple[int, int]]  # smallest and largest number, each with its rank

AGREE_VARIABLE = "ENERGON_STREAM_AGREE"
_SECONDS = 30.0
_TO_LEAVE = 5.0  # seconds that the first rank, whose process may have the store, waits for the others to read
_MOST_NAMED = 8

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Occasion:
    """Something that the ranks do together.

    Attributes:
        doing: The verb that names it in errors, after "cannot".
        error: Class of the error where ranks differ, or do not come.
        cure: Advice where ranks differ in something that ``cures`` does not name.
        cures: Advice by the name of what differs.
        key: Tells agreements apart that not all ranks may take part in.
        seconds: Time after which missing ranks are errors. None: as the environment says.
    """

    doing: str
    error: type[EnergonStreamError]
    cure: str
    cures: Mapping[str, str] = field(default_factory=dict)
    key: str = ""
    seconds: float | None = None


def waits() -> tuple[float, bool]:
    """Return the seconds that ranks wait for each other; and whether the program says that all ranks come."""
    text = os.environ.get(AGREE_VARIABLE)
    return (_SECONDS, False) if not text else (parse_seconds(text, AGREE_VARIABLE), True)


def group_of(config: WorkerConfig) -> Any:
    """Return the process group of the data-parallel ranks; None if there is none."""
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized()):
        return None
    given = config.data_parallel_group
    group = given if isinstance(given, dist.ProcessGroup) else dist.group.WORLD
    try:
        return group if group and len(dist.get_process_group_ranks(group)) == config.world_size else None
    except KeyError:  # a group of another library, such as torchft
        return None


def agree(
    occasion: Occasion,
    config: WorkerConfig,
    problem: Exception | None,
    has: Mapping[str, str],
    at: int | None = None,
) -> Range | None:
    """Raise the same error on all ranks if one has a problem, or has something else than the others.

    Args:
        occasion: The call that the ranks make together.
        config: The configuration of this rank, which names the data-parallel group.
        problem: The error of this rank, or None. Where no other rank answers, this rank raises it.
        has: Values that must be equal on all ranks, by their names in errors. ``#`` begins a hash.
        at: A number of this rank, such as that of its next batch in the job, or None.

    Returns:
        The smallest and the largest number, each with its rank; None if no rank gave one.
    """
    seconds, all_come = waits()
    group = group_of(config) if config.world_size > 1 and seconds else None
    verdict: dict[str, Any] = {"error": None, "range": None if at is None else [[at, config.rank]] * 2}
    if group is not None:
        if occasion.seconds is not None:
            seconds, all_come = occasion.seconds, True
        word = {"has": dict(has), "error": problem and _told(problem, occasion), "at": at}
        verdict = _exchange(occasion, config, group, word, seconds, all_come)
    if verdict["error"] is not None:
        kind, what, where, hint = verdict["error"]
        raise getattr(known, kind)(what, where=where, hint=hint) from problem
    if problem is not None:
        raise problem
    return None if verdict["range"] is None else tuple(map(tuple, verdict["range"]))  # type: ignore[return-value]


def agreed_opening(function: Callable[P, T]) -> Callable[P, T]:
    """Let the opening of a dataset fail on all ranks if it fails on one, where the environment asks."""

    @wraps(function)
    def call(*args: P.args, **options: P.kwargs) -> T:
        if not waits()[1]:
            return function(*args, **options)
        problem: Exception | None = None
        try:
            opened = function(*args, **options)
        except Exception as error:
            problem = error
        config: Any = options.get("worker_config") or WorkerConfig.default_worker_config()
        if isinstance(config, WorkerConfig):
            agree(_OPENING, config, problem, {})
        elif problem is not None:
            raise problem
        return opened

    return call


_OPENING = Occasion("open the dataset", ConfigError, "")


def _exchange(
    occasion: Occasion, config: WorkerConfig, group: Any, word: Any, seconds: float, all_come: bool
) -> dict[str, Any]:
    """Return the verdict on the words of all ranks."""
    import torch.distributed as dist
    from torch.distributed.distributed_c10d import PrefixStore, _get_default_store

    of_ranks = hashlib.blake2b(json.dumps(dist.get_process_group_ranks(group)).encode(), digest_size=8)
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", 0)  # torchrun's store outlives the processes
    prefix = f"energon_stream/{attempt}/{of_ranks.hexdigest()}/{occasion.doing}/{occasion.key}"
    whole = PrefixStore(prefix, _get_default_store())
    size, everyone = config.world_size, [str(rank) for rank in range(config.world_size)]
    try:
        # The count is of this process group, so that it begins anew with another one.
        store = PrefixStore(str(whole.add(f"calls/{config.rank}", 1)), whole)
        store.set(everyone[config.rank], json.dumps(word))
        if config.rank:
            verdict: dict[str, Any] = _read(store, occasion, seconds, all_come, size)
            store.add("left", 1)
            return verdict
        silent: list[int] = []
        try:
            store.wait(everyone, timedelta(seconds=seconds))
        except RuntimeError:
            silent = [rank for rank, key in enumerate(everyone) if not store.check([key])]
        present = [rank for rank in range(size) if rank not in silent]
        words = {rank: json.loads(store.get(everyone[rank])) for rank in present}
        verdict = json.loads(
            store.compare_set("all", "", json.dumps(_judge(occasion, words, silent, all_come, size)))
        )
        left, until = 1 + len(silent), time.monotonic() + _TO_LEAVE
        while store.add("left", 0) < size - left and time.monotonic() < until:
            time.sleep(0.005)
        if not silent and store.add("left", 0) == size - 1:
            for key in (*everyone, "all", "left"):
                store.delete_key(key)
    except RuntimeError as error:  # the store is gone, and with it the process that has it
        verdict = _judge(occasion, {}, [0], all_come, size)
        _log.warning("the store of torch.distributed does not answer: %s", error)
    if silent := verdict.get("silent", []):
        _log.warning(
            "%s did not %s within %g s, and the others go on. %s is the time that ranks wait; 0 for no agreement",
            _named(silent, size),
            occasion.doing,
            seconds,
            AGREE_VARIABLE,
        )
    return verdict


def _read(store: Any, occasion: Occasion, seconds: float, all_come: bool, size: int) -> Any:
    """Wait for the verdict, which any rank writes if the first one does not come."""
    try:
        store.wait(["all"], timedelta(seconds=seconds + _TO_LEAVE))
    except RuntimeError:
        return json.loads(store.compare_set("all", "", json.dumps(_judge(occasion, {}, [0], all_come, size))))
    return json.loads(store.get("all"))


def _judge(
    occasion: Occasion, words: Mapping[int, Any], silent: Sequence[int], all_come: bool, size: int
) -> dict[str, Any]:
    """Return the verdict: an error as four texts, numbers, and the ranks that did not come."""
    numbers = [(word["at"], rank) for rank, word in words.items() if word["at"] is not None]
    verdict: dict[str, Any] = {"error": None, "silent": list(silent)}
    verdict["range"] = [min(numbers), max(numbers)] if numbers else None
    failed = {rank: word["error"] for rank, word in words.items() if word["error"] is not None}
    if failed:
        first, *rest = failed.values()
        kind, what, where, hint = first
        if len(failed) < size or any(other != first for other in rest):
            what = f"{_named(list(failed), size)} cannot {occasion.doing}, so no rank does: {what}"
        return {**verdict, "error": [kind, what, where, hint]}
    if silent and all_come:
        what = f"{_named(silent, size)} did not {occasion.doing}, and the others have waited"
        hint = f"see what these ranks logged; {AGREE_VARIABLE} is how long ranks wait, and 0 turns it off"
        return {**verdict, "error": [occasion.error.__name__, what, None, hint]}
    differing: list[tuple[list[int], str, str]] = []  # ranks, what, and advice
    for name in dict.fromkeys(name for word in words.values() for name in word["has"]):
        values = {rank: word["has"][name] for rank, word in words.items() if name in word["has"]}
        usual = Counter(values.values()).most_common(1)[0][0]
        if odd := [rank for rank, value in values.items() if value != usual]:
            told = "" if usual.startswith("#") else f": {values[odd[0]]}, and not {usual}"
            differing.append((odd, f"{name}{told}", occasion.cures.get(name, occasion.cure)))
    if differing:
        odd, _, cure = differing[0]
        names = " and ".join(text for ranks, text, _ in differing if ranks == odd)
        what = f"{_named(odd, size)} {'differ' + 's' * (len(odd) == 1)} from the others in {names}"
        return {**verdict, "error": [occasion.error.__name__, what, None, cure]}
    return verdict


def _named(ranks: Sequence[int], size: int) -> str:
    more = f" and {len(ranks) - _MOST_NAMED} more" if len(ranks) > _MOST_NAMED else ""
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks[:_MOST_NAMED]))}{more} of {size}"


def _told(problem: Exception, occasion: Occasion) -> list[str | None]:
    """Return an error as texts, for processes that may not have its class."""
    if not isinstance(problem, EnergonStreamError):
        return [occasion.error.__name__, f"{type(problem).__name__}: {problem}", None, None]
    kind = next(cls.__name__ for cls in type(problem).__mro__ if cls.__module__ == known.__name__)
    return [kind, problem.what, problem.where, problem.hint]
