"""Bytes by (path, ranges) from any fsspec URL. Knows nothing of tars or samples."""
