"""A local, read-only web page that shows a dataset: samples, media, search by key, filters and steps."""

from energon_stream.browse.server import Served, serving

__all__ = ["Served", "serving"]
