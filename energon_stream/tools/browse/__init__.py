"""A local, read-only web page that shows a dataset: samples, media, search by key, filters and steps."""

from energon_stream.tools.browse.serve import Served, serving

__all__ = ["Served", "serving"]
