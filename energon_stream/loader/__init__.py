"""Loaders: worker processes, channels to them, and states of ranks."""

from energon_stream.loader.factories import get_loader, get_savable_loader
from energon_stream.loader.loader import BasicDataLoader
from energon_stream.loader.loader_options import LoaderOptions, OnWorkerDeath, OnWorkerHang
from energon_stream.loader.mixture_control import MixtureReport, SourceCount
from energon_stream.loader.observe.stats import JobStats, LoaderStats, Verdict
from energon_stream.loader.observe.trace import Trace
from energon_stream.loader.savable import OnChange, SavableDataLoader
