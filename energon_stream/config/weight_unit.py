"""Weights of a mixture that are shares of a cost, such as of tokens, and not of samples."""

from __future__ import annotations

import hashlib
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from energon_stream.errors import ConfigError, CostsError, MissingCostsError
from energon_stream.tables.costs import costs_of
from energon_stream.task import DatasetBlendMode
from energon_stream.task.size_metric import SAMPLES, find_metric

if TYPE_CHECKING:
    from energon_stream.config.dataset_options import DatasetRequest
    from energon_stream.config.mixture import Mixture
    from energon_stream.index.dataset import DatasetIndex

_log = logging.getLogger(__name__)


def weigh_by(unit: str | None, mixture: Mixture, request: DatasetRequest) -> Mixture:
    """Return a mixture whose weights are shares of a size; None for the unit that the metadataset says.

    Costs that were computed are followed exactly. Without them, a method of the encoder measures the samples.
    Raises ConfigError if it is no blend by weights, and CostsError if nothing knows the sizes.
    """
    name = mixture.items[0].unit if unit is None else unit
    if name == SAMPLES:
        return mixture
    if mixture.blend_mode is not DatasetBlendMode.DATASET_WEIGHT:
        raise ConfigError(
            f"weight_unit={name!r}, but this is no blend by weights",
            hint="leave weight_unit out: repetitions, and a single dataset, have no weights",
        )
    indices = [leaf.index for leaf in mixture.leaves]
    metric = find_metric(request.encoder, name)
    try:
        found = request.location.read(
            lambda: [_costs(index, name) for index in indices], forks=request.config.num_workers > 0
        )
    except MissingCostsError as error:
        if metric is not None:
            return replace(mixture, measured=name)
        hint = f'{error.hint or ""}; or mark a method of the encoder with @sample_size_metric("{name}")'
        raise MissingCostsError(error.what, where=error.where, hint=hint.removeprefix("; or ")) from error
    if metric is not None:
        _log.info("weights are shares of the costs %r that were computed; no sample is measured", name)
    digest = hashlib.blake2b(digest_size=8)
    for values in found:
        digest.update(values.tobytes())
    pairs = zip(mixture.plans, found, strict=True)
    plans = tuple(replace(plan, costs=values) for plan, values in pairs)
    return replace(mixture, plans=plans, unit=(name, digest.hexdigest()))


def _costs(index: DatasetIndex, name: str) -> Any:
    values = costs_of(index, name)
    whole = values.astype(np.int64)
    if (whole != values).any() or not whole.any() or whole.max() >= 1 << 31:
        raise CostsError(
            f"the costs {name!r} are not whole numbers below 2³¹, of which some are above 0",
            where=index.name,
            hint="correct the function that counts, and compute them again",
        )
    return whole.astype(np.int32)
