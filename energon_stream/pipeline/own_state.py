"""States that objects of users return, as plain values, and back: tuples, sets, arrays and generators too."""

from __future__ import annotations

import random
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from energon_stream.errors import StateError
from energon_stream.imports import LazyModule
from energon_stream.schedule.saved import damaged

if TYPE_CHECKING:
    import torch

    from energon_stream.pipeline.node import State
else:
    torch = LazyModule("torch")

_LARGEST = 1 << 63  # integers beyond are no plain values
_COLLECTIONS: Final[dict[str, type[Any]]] = {
    "tuple": tuple, "set": set, "frozenset": frozenset, "deque": deque,
}  # fmt: skip
_DICTS: Final[dict[str, type[Any]]] = {"dict": dict, "ordered": OrderedDict, "counter": Counter}
_FACTORIES: Final = {str(made): made for made in (None, bool, int, float, str, list, dict, set)}
"""What a ``defaultdict`` makes; a state cannot hold other functions."""


Place: TypeAlias = "tuple[State, bool]"
"""State of an input, and whether its pass is over while that of the object goes on."""


class InputState(dict[str, Any]):
    """State of an input: the result of ``self.dataset.save_state()`` in a class that writes ``__iter__``."""

    def __init__(self, number: int, place: Place) -> None:
        super().__init__(input=number, place=place)


def pack(value: Any, inputs: Sequence[Place], where: str) -> State:
    """Return a value as plain values. The places that the inputs have now, ``inputs``, become references."""
    again = [value]

    def packed(value: Any) -> Any:
        kind = type(value)
        if value is None or kind in (bool, float, str, bytes):
            return value
        if kind is int:
            return value if -_LARGEST <= value < _LARGEST else {"int": str(value)}
        if kind is list:
            return [packed(entry) for entry in value]
        if isinstance(value, InputState):
            number, place = value["input"], value["place"]
            is_now = number < len(inputs) and place == inputs[number]
            return {"input": number} if is_now else {"input": number, "place": list(place)}
        items = value.items() if isinstance(value, dict) else ()
        entries = [[packed(key), packed(entry)] for key, entry in items]
        for name, collection in _DICTS.items():
            if kind is collection or (collection is dict and kind.__name__ == "FlexState"):
                return {name: entries}
        if kind is defaultdict and str(value.default_factory) in _FACTORIES:
            return {"defaultdict": [str(value.default_factory), entries]}
        if kind is random.Random:
            return {"random": packed(value.getstate())}
        if isinstance(value, np.random.Generator):
            return {"generator": packed(value.bit_generator.state)}
        if kind is np.random.RandomState:
            return {"random_state": packed(value.get_state(legacy=False))}
        is_array = kind is np.ndarray or isinstance(value, np.generic)
        if is_array and not value.dtype.hasobject and value.dtype.names is None:
            return {"array": [value.dtype.str, list(value.shape), value.tobytes()]}
        if isinstance(value, torch.Generator):
            return {"torch_generator": value.get_state().numpy().tobytes()}
        if kind is torch.Tensor and value.device.type == "cpu" and value.dtype is not torch.bfloat16:
            return {"tensor": packed(value.detach().numpy())}
        for name, collection in _COLLECTIONS.items():
            if kind is collection:
                return {name: [packed(entry) for entry in value], **_length(value)}
        raise StateError(
            f"the state of {where} holds {value!r:.60}, a {kind.__name__}",
            hint="keep numbers, text, bytes, lists, dicts and arrays; of samples keep __restore_key__, or "
            "hold them in a SavableSampleBuffer; or save no state, and elements are made again",
        )

    return packed(again.pop())


def _length(value: Any) -> dict[str, int]:
    limit = getattr(value, "maxlen", None)
    return {} if limit is None else {"maxlen": limit}


def unpack(plain: State, inputs: Sequence[Place]) -> Any:
    """Return the value that :func:`pack` packed. Raises StateError if the state is damaged."""
    if isinstance(plain, (list, tuple)):
        return [unpack(entry, inputs) for entry in plain]
    if not isinstance(plain, dict):
        return plain
    name = next(iter(plain), None)
    read: Callable[[Any], Any] | None = _READERS.get(str(name))
    if name == "input":
        state, ended = plain.get("place") or inputs[plain["input"]]
        return InputState(plain["input"], (state, ended))
    if read is None:
        raise damaged(f"a value of the unknown kind {name!r:.40}")
    found = read(unpack(plain[name], inputs))
    return deque(found, plain["maxlen"]) if "maxlen" in plain else found


def _defaultdict(parts: Any) -> Any:
    factory, entries = parts
    return defaultdict(_FACTORIES[factory], map(tuple, entries))


def _array(parts: Any) -> Any:
    dtype, shape, data = parts
    found = np.frombuffer(bytearray(data), np.dtype(dtype)).reshape(shape)
    return found if shape else found[()]


def _random(state: Any) -> random.Random:
    made = random.Random()
    made.setstate(state)
    return made


def _generator(state: Any) -> np.random.Generator:
    name = state["bit_generator"]
    if name not in ("PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64"):
        raise damaged(f"a generator of the unknown kind {name!r:.40}")
    made = np.random.Generator(getattr(np.random, name)())
    made.bit_generator.state = state
    return made


def _random_state(state: Any) -> np.random.RandomState:
    made = np.random.RandomState()
    made.set_state(state)
    return made


def _torch_generator(data: Any) -> Any:
    made = torch.Generator()
    made.set_state(torch.frombuffer(bytearray(data), dtype=torch.uint8))
    return made


_READERS: Final[dict[str, Callable[[Any], Any]]] = {
    **_COLLECTIONS,
    **_DICTS,
    "counter": lambda entries: Counter(dict(entries)),
    "defaultdict": _defaultdict,
    "int": int,
    "random": _random,
    "generator": _generator,
    "random_state": _random_state,
    "array": _array,
    "torch_generator": _torch_generator,
    "tensor": lambda array: torch.from_numpy(np.asarray(array)),
}
