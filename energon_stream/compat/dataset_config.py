"""``load_config``: reads a ``dataset.yaml`` to an object of its dataset class, for programs that check the
file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

from energon_stream.compat import factories
from energon_stream.errors import ConfigError, MetadataError
from energon_stream.index import yaml_io
from energon_stream.recipe.named_code import import_class, is_own_module, nearest, read_class
from energon_stream.recipe.sample_types import resolve_sample_type

if TYPE_CHECKING:
    from energon_stream.compat.epath import EPath


@dataclass(frozen=True)
class JsonParser:
    """A parser of ``dataset.yaml``. It is always strict.

    Raises:
        ConfigError: ``strict`` is False.

    Example:
        >>> JsonParser(strict=True)
        JsonParser(strict=True)
    """

    strict: bool = True

    def __post_init__(self) -> None:
        if not self.strict:
            raise ConfigError("dataset.yaml is always read strictly", hint="leave strict out")


def load_yaml(stream: IO[bytes] | bytes) -> Any:
    """Parse YAML by the rules for dataset files.

    Example:
        >>> load_yaml(b"on: 012")
        {'on': 12}
    """
    return yaml_io.load_yaml(stream if isinstance(stream, bytes) else stream.read(), "YAML")


def load_config(
    path: EPath | Mapping[str, Any],
    *,
    default_type: type,
    default_kwargs: Mapping[str, Any] | None = None,
    parser: JsonParser | None = None,
) -> Any:
    """Create the object that a ``dataset.yaml`` describes. The dataset is not opened.

    Args:
        path: The file, or its parsed content.
        default_type: Class of the object if the file names none.
        default_kwargs: Arguments that the file does not have.
        parser: Ignored; accepted because Megatron-Energon's programs pass it.

    Raises:
        MetadataError: The class does not exist, or does not take the arguments.
        UntrustedCodeError: The class is of another package, and not trusted.

    Example:
        >>> from energon_stream.compat.epath import EPath
        >>> from energon_stream.compat.factories import StandardWebdatasetFactory
        >>> found = load_config(
        ...     EPath("captions/.nv-meta/dataset.yaml"),
        ...     default_type=StandardWebdatasetFactory,
        ...     default_kwargs={"path": "captions"},
        ... )
        >>> found.__sample_type__.__name__, found.field_map
        ('CaptioningSample', {'image': 'jpg', 'caption': 'txt'})
    """
    where = "dataset.yaml" if isinstance(path, Mapping) else str(path)
    document = path if isinstance(path, Mapping) else load_yaml(path.read_bytes())
    keys = {name: value for name, value in document.items() if name not in ("__module__", "__class__")}
    found = default_type
    if len(keys) < len(document):
        found = _class({name: value for name, value in document.items() if name not in keys}, where)
    if isinstance(keys.get("sample_type"), Mapping):
        keys["sample_type"] = resolve_sample_type(keys["sample_type"], trust=None, where=where)
    try:
        return found(**{**(default_kwargs or {}), **keys})
    except TypeError as error:
        raise MetadataError(f"{found.__name__} does not take these keys: {error}", where=where) from error


def _class(document: Mapping[str, Any], where: str) -> Any:
    module, name = read_class(document, where)
    if not is_own_module(module):
        return import_class(module, name, trust=None, where=where, base=factories.BaseCoreDatasetFactory)
    known = {key: getattr(factories, key) for key in factories.__all__}
    if name not in known:
        raise MetadataError(f"there is no dataset class {name!r}", where=where, hint=nearest(name, known))
    return known[name]
