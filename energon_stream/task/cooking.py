"""Cookers: functions that convert crude samples into samples of a type."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from inspect import signature
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar, overload

from energon_stream.errors import ConfigError
from energon_stream.media import AuxStores, PrimaryFileStore, active_pool, key_in_shard
from energon_stream.samples import METADATA_FIELDS, CrudeSample, SourceInfo

if TYPE_CHECKING:
    from energon_stream.media.av import Clips
    from energon_stream.pipeline.leaf import Leaf

T_co = TypeVar("T_co", covariant=True)
F = TypeVar("F", bound=Callable[..., Any])
ClipsOf: TypeAlias = "Callable[[CrudeSample], Mapping[str, Mapping[str, Clips]]]"
"""Returns the clips that a cooker will decode, by store and name."""


@dataclass(frozen=True, slots=True)
class Cooker(Generic[T_co]):
    """A function for crude samples, and the subflavors of the datasets that it is for.

    Attributes:
        cook: Called with a ``CrudeSample``, and with the auxiliary stores of its dataset (``aux:`` in the
            metadataset) as keyword arguments. Each part is decoded when the function first looks at it.
        has_subflavors: Subflavors that a dataset must have; None matches every dataset.
        has_tags: Newer name of ``has_subflavors``, as ``tags`` is of ``subflavors``.
        need_cache: Whether the function is called with the loader's cache pool.
        need_primary: Whether the function is called with the sample's own dataset.

    Example:
        >>> from energon_stream import CaptioningSample, Cooker, DefaultTaskEncoder
        >>> from energon_stream import basic_sample_keys, get_val_dataset
        >>> def cook(crude):
        ...     caption = crude["json"]["caption"]
        ...     return CaptioningSample(**basic_sample_keys(crude), image=crude["jpg"], caption=caption)
        >>> class Task(DefaultTaskEncoder):
        ...     cookers = [Cooker(cook)]
        >>> dataset = get_val_dataset("crude", batch_size=2, task_encoder=Task())
        >>> next(iter(dataset)).image.shape
        torch.Size([2, 3, 48, 64])
    """

    cook: Callable[..., T_co]
    has_subflavors: Mapping[str, Any] | None = None
    has_tags: Mapping[str, Any] | None = field(default=None, repr=False, compare=False)
    need_cache: bool = field(init=False, repr=False, compare=False)
    need_primary: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if None not in (self.has_tags, self.has_subflavors) and self.has_tags != self.has_subflavors:
            raise ConfigError(
                "has_tags and has_subflavors are both given", hint="use has_tags, the newer name"
            )
        for name, other in (("has_tags", self.has_subflavors), ("has_subflavors", self.has_tags)):
            if getattr(self, name) is None:
                object.__setattr__(self, name, other)
        for name in ("cache", "primary"):
            object.__setattr__(self, f"need_{name}", _needs(self.cook, name))

    def is_match(self, subflavors: Mapping[str, Any] | None) -> bool:
        """Return True if samples with these subflavors are for this cooker."""
        if not self.has_subflavors:
            return True
        given = subflavors or {}
        return all(name in given and given[name] == value for name, value in self.has_subflavors.items())


@overload
def cooker(
    fn: None = None,
    *,
    need_cache: bool = False,
    need_primary: bool = False,
    parts: Collection[str] | None = None,
    clips: ClipsOf | None = None,
) -> Callable[[F], F]: ...


@overload
def cooker(
    fn: F,
    *,
    need_cache: bool = False,
    need_primary: bool = False,
    parts: Collection[str] | None = None,
    clips: ClipsOf | None = None,
) -> F: ...


def cooker(
    fn: F | None = None,
    *,
    need_cache: bool = False,
    need_primary: bool = False,
    parts: Collection[str] | None = None,
    clips: ClipsOf | None = None,
) -> F | Callable[[F], F]:
    """Mark a cooker function with its further keyword arguments, and with the parts that it reads.

    Args:
        fn: The function, where the decorator stands without parentheses. None returns a decorator.
        need_cache: Pass the loader's cache pool as ``cache``.
        need_primary: Pass the sample's own dataset as ``primary``, a file store. A name that begins with a
            dot is one of the sample's own parts.
        parts: The sample's parts that the function reads; others are not fetched where that saves bytes. None
            for all.
        clips: Returns the clips of video and audio that the function will decode, for a crude sample: by
            store (``"primary"``, or the name of an auxiliary one), then by name in it. They are fetched while
            earlier samples are cooked. It is called ahead of the function, so give it small parts alone
            (``parts``); its errors count as those of the function.

    Example:
        >>> from energon_stream import cooker
        >>> @cooker(parts=["json"])
        ... def caption(crude):
        ...     return crude["json"]["caption"]

        >>> from energon_stream.media.av import Clips
        >>> def begin(crude):
        ...     return {"videos": {crude["json"]["file"]: Clips(video=[(crude["json"]["begin"], 2.0)])}}
        >>> @cooker(parts=["json"], clips=begin)
        ... def clip(crude, videos):
        ...     line = crude["json"]
        ...     return videos.get(line["file"], crude).get_video_clips([(line["begin"], 2.0)])[0]
    """

    def mark(function: F) -> F:
        marked: Any = function
        marked.__cooker_need_cache__ = need_cache
        marked.__cooker_need_primary__ = need_primary
        marked.__cooker_parts__ = None if parts is None else frozenset(parts)
        marked.__cooker_clips__ = clips
        return function

    return mark if fn is None else mark(fn)


def select_cooker(cookers: Sequence[Cooker[Any]], subflavors: Mapping[str, Any] | None) -> Cooker[Any]:
    """Return the first cooker that matches. Raises ConfigError if no cooker matches."""
    for candidate in cookers:
        if not candidate.has_subflavors or candidate.is_match(subflavors):
            return candidate
    raise ConfigError(
        f"no cooker matches a dataset with the subflavors {dict(subflavors or {})}",
        where=f"has_subflavors of the cookers: {[c.has_subflavors for c in cookers]}",
        hint="add a Cooker for it, or one without has_subflavors at the end of `cookers`",
    )


def cooker_parts(
    cookers: Sequence[Cooker[Any]], subflavors: Mapping[str, Any] | None
) -> frozenset[str] | None:
    """Return the parts that the cooker for these subflavors reads; None if it may read any."""
    chosen = next((candidate for candidate in cookers if candidate.is_match(subflavors)), None)
    return None if chosen is None else getattr(chosen.cook, "__cooker_parts__", None)


def check_cookers(cookers: Sequence[Cooker[Any]], leaves: Iterable[Leaf]) -> None:
    """Raise ConfigError if a leaf has no cooker, or one whose parameters differ from the leaf's stores."""
    for leaf in leaves:
        where = leaf.index.name
        if cookers and (leaf.is_crude or leaf.stores.aux):
            cook = select_cooker(cookers, leaf.subflavors).cook
            if _needs(cook, "primary") and leaf.stores.primary is None:
                raise _no_primary(cook, where)
            names = [*leaf.stores.aux, *(need for need in ("primary", "cache") if _needs(cook, need))]
            check_parameters(cook, frozenset(names), where)
        elif leaf.stores.aux:
            raise ConfigError(
                f"no cooker asks for {', '.join(leaf.stores.aux)}",
                where=where,
                hint="remove it from aux: in the metadataset, or give the task encoder cookers",
            )


def cooker_arguments(chosen: Cooker[Any], sample: CrudeSample) -> dict[str, Any]:
    """Return the keyword arguments of a cooker: stores by name, and what :func:`cooker` asks for.

    Raises ConfigError if the sample has no ``primary`` that the cooker needs, and the error of its ``clips``.
    """
    stores: AuxStores = sample.stores or AuxStores()
    if stores.problem is not None:
        raise stores.problem
    arguments: dict[str, Any] = dict(stores.aux)
    if chosen.need_primary:
        if stores.primary is None:
            raise _no_primary(chosen.cook, sample["__key__"])
        arguments["primary"] = PrimaryFileStore(stores.primary, key_in_shard(sample))
    if chosen.need_cache:
        arguments["cache"] = active_pool()
    return arguments


def check_parameters(cook: Callable[..., Any], given: frozenset[str], where: str) -> None:
    """Raise ConfigError if the names of a cooker's keyword parameters and of its future arguments differ."""
    problem = parameter_problem(cook, given)
    if problem is not None:
        raise ConfigError(problem[0], where=where, hint=problem[1])


@cache
def parameter_problem(cook: Callable[..., Any], given: frozenset[str]) -> tuple[str, str] | None:
    """Return what is wrong with a cooker's keyword parameters, and a hint; None if they are ``given``."""
    try:
        parameters = list(signature(cook).parameters.values())[1:]
    except ValueError:  # a built-in type without a signature
        return None
    named = {p.name: p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    unasked = sorted(given - named.keys())
    if unasked and all(p.kind is not p.VAR_KEYWORD for p in parameters):
        return (
            f"no cooker asks for {', '.join(unasked)}",
            f"add the parameter to {_name(cook)}, or remove it from aux: in the metadataset",
        )
    missing = sorted(name for name, p in named.items() if p.default is p.empty and name not in given)
    if missing:
        return (
            f"the cooker {_name(cook)} asks for {', '.join(missing)}, which the dataset does not have",
            "name it under aux: in the metadataset; cache and primary come with "
            "@cooker(need_cache=True, need_primary=True)",
        )
    return None


def _no_primary(cook: Callable[..., Any], where: str) -> ConfigError:
    return ConfigError(
        f"the cooker {_name(cook)} needs 'primary', which only prepared folders of tars have",
        where=where,
        hint="prepare the dataset, or remove need_primary=True",
    )


def _needs(cook: Callable[..., Any], need: str) -> bool:
    return bool(getattr(cook, f"__cooker_need_{need}__", False))


def _name(cook: Callable[..., Any]) -> str:
    return getattr(cook, "__qualname__", repr(cook))


def basic_sample_keys(
    crude_sample: Mapping[str, Any], additional_source_info: Sequence[SourceInfo] = ()
) -> dict[str, Any]:
    """Return the metadata of a crude sample, to pass on: ``MySample(**basic_sample_keys(crude), …)``.

    Metadata that the sample does not have is left out.

    Args:
        crude_sample: The sample.
        additional_source_info: Further sources of the sample's data.

    Example:
        >>> from energon_stream import TextSample, basic_sample_keys
        >>> crude = {"__key__": "a.tar/7", "__restore_key__": (), "__subflavors__": {}, "__sources__": ()}
        >>> TextSample(**basic_sample_keys(crude), text="hi").__key__
        'a.tar/7'
    """
    keys = {name: crude_sample[name] for name in METADATA_FIELDS if name in crude_sample}
    if isinstance(crude_sample, dict) and dict.__contains__(crude_sample, "__tags__"):
        keys["__subflavors__"] = crude_sample["__tags__"]
    if additional_source_info:
        keys["__sources__"] = (*(keys.get("__sources__") or ()), *additional_source_info)
    return keys
