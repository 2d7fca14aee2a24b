"""The state of a rank: made, packed, and checked before it is used.

It holds built-in types only (dict, list, tuple, str, int, float, bool, bytes, None): no paths, no class
names, no credentials. It goes through ``torch.save`` and ``torch.load`` with default arguments, or
:func:`dumps` and :func:`loads` (msgpack). :mod:`energon_stream.state.versions` describes the format.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgpack

from energon_stream.errors import StateError, StateMismatchError, StateVersionError
from energon_stream.printable import counted
from energon_stream.schedule import WeightChange, damaged, is_count, reading, shown
from energon_stream.state.digest import not_plain, with_digest
from energon_stream.state.identity import IDENTITIES, unchecked_names
from energon_stream.state.mixture_weights import STEPS, WEIGHTS, read_changes, read_steps, write_changes
from energon_stream.state.rotation import (
    RESUMED,
    check_batches,
    next_of_job,
    read_resumed,
    read_rotation,
    write_rotation,
)
from energon_stream.state.versions import DEALT_VERSION, FORMAT, VERSION, migrate
from energon_stream.worker_fields import STREAMS_VARIABLE

if TYPE_CHECKING:
    from energon_stream.pipeline.stream_runner import Rotation
    from energon_stream.state.description import Description
    from energon_stream.worker import WorkerConfig

_log = logging.getLogger(__name__)

DEALT_TO = "dealt_to"
_TOPOLOGY = ("world_size", "rank", "num_streams", "seed_offset")
_MOST_STREAMS = 1 << 20
_MOST_BITS = 128
_CONTINUE = (
    '. With on_change="continue", datasets that are the same go on wherever they stand now, also with more shards '
    "or other weights, and others begin anew; restore_report tells which"
)


def dumps(state: Any) -> bytes:
    """Pack a state with msgpack.

    Raises:
        StateError: It holds a value that is not of a built-in type.

    Example:
        >>> from energon_stream.state import dumps, loads
        >>> loads(dumps({"step": 3, "cursor": (0, 12)}))
        {'step': 3, 'cursor': [0, 12]}
    """
    try:
        packed = msgpack.packb(state, use_bin_type=True)
    except (TypeError, ValueError, OverflowError) as error:
        raise not_plain(error) from error
    return bytes(packed)


def loads(data: bytes) -> Any:
    """Unpack the bytes that :func:`dumps` returned. Nothing in them is executed.

    Raises StateError if the bytes are not msgpack.
    """
    try:
        return msgpack.unpackb(data, raw=False, strict_map_key=False)
    except (TypeError, ValueError, OverflowError, msgpack.exceptions.UnpackException) as error:
        raise StateError(
            f"these {len(data)} bytes are not a state: {error!s:.200}",
            hint="pass the bytes that state.dumps returned",
        ) from error


def _topology(config: WorkerConfig) -> dict[str, int]:
    return {name: getattr(config, name) for name in _TOPOLOGY}


def make_rank_state(
    description: Description,
    config: WorkerConfig,
    rotation: Rotation,
    streams: Mapping[int, Any],
    changes: Sequence[WeightChange] = (),
    steps: tuple[int, int] | None = None,
    resumed: tuple[int, int] = (0, 0),
) -> dict[str, Any]:
    """Put a rank's state together. Raises StateError if it holds a value that is not of a built-in type."""
    weights = {WEIGHTS: write_changes(changes)} if changes else {}
    counted = {} if steps is None else {STEPS: list(steps)}
    amid = {RESUMED: list(resumed)} if resumed[1] and resumed[0] == rotation.passes else {}
    known = description.identities
    named = {} if config.conventions == "own" else {"conventions": config.conventions}
    return with_digest(
        {
            "format": FORMAT,
            "version": VERSION if config.dealt_to == 1 else DEALT_VERSION,
            "fingerprint": dict(description.prints),
            "options": description.options,
            "leaves": description.leaves,
            **({} if known is None else {IDENTITIES: [each.plain for each in known]}),
            "topology": _topology(config),
            **named,
            **({} if config.dealt_to == 1 else {DEALT_TO: config.dealt_to}),
            **weights,
            **counted,
            **amid,
            "rotation": write_rotation(rotation),
            "streams": {str(stream): state for stream, state in streams.items()},
        }
    )


def read_rank_state(state: Any, streams: Sequence[int] | None = None) -> dict[str, Any]:
    """Check a rank's state, or its msgpack bytes, and convert earlier versions.

    It should have ``streams``; None for those of its rank. Nodes check their own states when they go on.

    Raises:
        StateError: Not a state of this library, or a damaged one.
        StateVersionError: A version that this library does not read.
    """
    found = migrate(loads(bytes(state)) if isinstance(state, (bytes, bytearray)) else state)
    with reading():
        topology = _read_topology(found["topology"])
        rotation = read_rotation(found["rotation"], topology)
        own = range(topology["rank"], topology["num_streams"], topology["world_size"])
        expected = own if streams is None else streams
        saved, prints = found["streams"], found["fingerprint"]
        if not isinstance(saved, dict) or len(saved) != len(expected):
            raise damaged(f"{shown(saved)} for the streams {expected}")
        if saved.keys() != set(map(str, expected)) or not all(stream in own for stream in expected):
            raise damaged(f"the streams are not {list(expected)} of rank {topology['rank']}")
        check_batches(rotation, topology, {int(name): _batches(at, name) for name, at in saved.items()})
        if not isinstance(prints, dict) or not all(map(_is_hash, [*prints, *prints.values()])):
            raise damaged("its fingerprint has no hashes")
        dealt_to = found.get(DEALT_TO, 1)
        is_dealt = found["version"] == DEALT_VERSION
        if not is_count(dealt_to) or (dealt_to > 1) != is_dealt or topology["num_streams"] % max(1, dealt_to):
            raise damaged(f"streams that were dealt to {shown(dealt_to)} ranks")
        read_changes(found)
        read_steps(found)
        read_resumed(found)
    return with_digest({**found, "topology": topology, "rotation": write_rotation(rotation)})


def _read_topology(saved: Any) -> dict[str, int]:
    topology: dict[str, int] = {name: saved[name] for name in _TOPOLOGY}
    world_size, rank, num_streams, seed = topology.values()
    fits = all(map(is_count, (world_size, rank, num_streams))) and type(seed) is int
    if not fits or not rank < world_size <= num_streams <= _MOST_STREAMS or num_streams % world_size:
        raise damaged(f"rank {shown(rank)} of {shown(world_size)} with {shown(num_streams)} streams")
    if seed.bit_length() > _MOST_BITS:
        raise damaged(f"a seed offset of {seed.bit_length()} bits")
    return topology


def _is_hash(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= 64 and value.isalnum() and value.isascii()


def _batches(saved: Any, stream: str) -> int | None:
    """Return the batches that a stream has yielded; None if it had not begun."""
    if saved is None:
        return None
    if (
        not isinstance(saved, dict)
        or saved.keys() - {"counts"} != {"batches", "node"}
        or saved["node"] is None
    ):
        raise damaged(f"{shown(saved)} for its batches and its node", f"stream {stream}")
    if not is_count(saved["batches"]):
        raise damaged(f"{shown(saved['batches'])} batches", f"stream {stream}")
    counts = saved.get("counts", [0, 0, 0])
    if not isinstance(counts, (list, tuple)) or len(counts) not in (3, 4) or not all(map(is_count, counts)):
        raise damaged(f"{shown(counts)} samples that were read, and that failed", f"stream {stream}")
    return int(saved["batches"])


def peek_streams(state: Any) -> tuple[int, int]:
    """Return ``num_streams`` and ``dealt_to`` of a state that is not checked; 0 and 1 by default."""
    found = loads(bytes(state)) if isinstance(state, (bytes, bytearray)) else state
    streams, dealt_to = 0, 1
    if isinstance(found, Mapping):
        topology = found.get("topology")
        streams = topology.get("num_streams", 0) if isinstance(topology, Mapping) else 0
        dealt_to = found.get(DEALT_TO, 1)
    return streams if is_count(streams) and streams <= _MOST_STREAMS else 0, dealt_to if is_count(
        dealt_to
    ) else 1


def world_sizes(num_streams: int) -> list[int]:
    """Return the numbers of ranks that divide the streams: those to which states can be dealt.

    Example:
        >>> from energon_stream.state import world_sizes
        >>> world_sizes(24)
        [1, 2, 3, 4, 6, 8, 12, 24]
    """
    return [size for size in range(1, num_streams + 1) if num_streams % size == 0]


def use_sizes(sizes: Sequence[int]) -> str:
    """Return the hint for a number of ranks that does not divide the streams."""
    return (
        f"possible are {sizes} ranks, with any num_workers; or start without a state, with {STREAMS_VARIABLE}=auto for "
        "a number of streams that many numbers of ranks divide"
    )


def _topology_hint(saved: Mapping[str, int], mine: Mapping[str, int]) -> str:
    sizes = world_sizes(saved["num_streams"])
    if saved["num_streams"] % mine["world_size"]:
        what = f"{saved['num_streams']} streams cannot be dealt to {mine['world_size']} ranks"
        return f"{what}: {use_sizes(sizes)}"
    if any(saved[name] != mine[name] for name in ("num_streams", "seed_offset")):
        return (
            f"set num_streams={saved['num_streams']} (or {STREAMS_VARIABLE}, where nothing names num_streams) and "
            f"seed_offset={saved['seed_offset']} to WorkerConfig: they fix the order. Then {sizes} ranks are "
            "possible, with any num_workers"
        )
    return (
        "this is the state of another rank, or of another number of ranks: pass the states of all ranks to "
        f"restore_state_global; {sizes} ranks are possible"
    )


def _epochs(length: int) -> str:
    return f"virtual epochs of {length} batches over all ranks" if length else "no virtual epochs"


def _length_hint(length: int, config: WorkerConfig) -> str:
    if not length:
        return "leave virtual_epoch_length out"
    if length % config.world_size:
        possible = [size for size in world_sizes(config.num_streams) if length % size == 0]
        return f"{length} batches cannot be dealt to {config.world_size} ranks; possible are {possible} ranks"
    return f"pass virtual_epoch_length={length // config.world_size}: the number of batches of one rank"


def check_rank_state(
    state: Any, description: Description, config: WorkerConfig, pass_length: int = 0
) -> tuple[Rotation, dict[int, Any], tuple[WeightChange, ...], tuple[int, int], int]:
    """Check a rank's state, or its msgpack bytes, against the dataset and the rank to restore.

    Returns the rotation, the state of each stream, the weights that were set for the mixture, the step of
    the state with the batches of the job before it, and the index of the job's next batch in the pass.
    """
    read = read_rank_state(state)
    rotation = check_topology(read, config, pass_length)
    differences = description.differences(read)
    if differences:
        check_packs(read, description)
        is_packed = any(reader.packing is not None for reader in description.readers)
        may_continue = read["fingerprint"].get("pipeline") == description.prints["pipeline"] and not is_packed
        raise StateMismatchError(
            f"the state was saved with another dataset: {'; '.join(differences)}",
            hint="pass the datasets and arguments with which the state was saved, or start without a state"
            + _CONTINUE * may_continue,
        )
    if "content" in description.prints and (unchecked := _unchecked(read, description)):
        _log.warning(
            "it could not be checked that the samples are those with which the state was saved: %s", unchecked
        )
    streams = {int(stream): value for stream, value in read["streams"].items()}
    return rotation, streams, read_changes(read), read_steps(read), next_of_job(read)


def check_packs(read: Mapping[str, Any], description: Description) -> None:
    """Raise StateVersionError for a state that counts packs of an earlier version of planned packing."""
    version = description.earlier_packs.get(read["fingerprint"].get("order"))
    if version is not None:
        raise StateVersionError(
            f"the state counts planned packs of version {version}, and this energon_stream deals packs in another way",
            hint="finish the run with the version of energon_stream that saved the state, or start without a state",
        )


def _unchecked(read: Mapping[str, Any], description: Description) -> str:
    if "content" not in read["fingerprint"]:
        return "it is of an earlier version, which kept names and counts of shards only"
    found = [each.name(at) for each in description.matched(read) or () for at in each.unchecked]
    return "" if not found else unchecked_names(found)


def check_topology(read: Mapping[str, Any], config: WorkerConfig, pass_length: int) -> Rotation:
    """Return the rotation of a state; StateMismatchError unless it is this rank's, of as many ranks."""
    saved, mine = read["topology"], _topology(config)
    if saved != mine:
        changed = ", ".join(
            f"{name} {saved[name]} -> {mine[name]}" for name in mine if saved[name] != mine[name]
        )
        raise StateMismatchError(
            f"the state was saved in another topology: {changed}", hint=_topology_hint(saved, mine)
        )
    rotation = read_rotation(read["rotation"], saved)
    if rotation.pass_length != pass_length:
        raise StateMismatchError(
            f"the state was saved with {_epochs(rotation.pass_length)}, "
            f"this dataset has {_epochs(pass_length)}",
            hint=_length_hint(rotation.pass_length, config),
        )
    followed = read.get("conventions", "own")
    if followed != config.conventions:  # positions mean the same
        _log.warning(
            "the state was saved with conventions=%r and goes on with %r: the form of __key__ changes",
            followed,
            config.conventions,
        )
    return rotation


def summarize(state: Mapping[str, Any]) -> str:
    """Return in two lines which rank's state this is, and where the rank stands.

    Args:
        state: What ``save_state_rank()`` returned.

    Raises:
        StateError: The state is damaged.

    Example:
        >>> from energon_stream import SavableDataLoader
        >>> from energon_stream.state import summarize
        >>> from energon_stream.testing.operator_suite import NumbersDataset
        >>> loader = SavableDataLoader(NumbersDataset(5))
        >>> numbers = iter(loader)
        >>> next(numbers), next(numbers)
        (0, 1)
        >>> print(summarize(loader.save_state_rank()))
        rank 0 of 1, 1 stream, seed offset 0
          2 batches, 2 of them in this pass, 0 passes before it; by stream 0:2
    """
    topology, rotation = state["topology"], read_rotation(state["rotation"], state["topology"])
    batches = {stream: 0 if saved is None else saved["batches"] for stream, saved in state["streams"].items()}
    by_stream = " ".join(f"{stream}:{count}" for stream, count in batches.items())
    ended = f", of which {sorted(rotation.ended)} have ended" if rotation.ended else ""
    return (
        f"rank {topology['rank']} of {topology['world_size']}, {counted(topology['num_streams'], 'stream')}, "
        f"seed offset {topology['seed_offset']}\n"
        f"  {sum(batches.values())} batches, {rotation.consumed} of them in this pass, "
        f"{rotation.passes} passes before it; by stream {by_stream}{ended}"
    )
