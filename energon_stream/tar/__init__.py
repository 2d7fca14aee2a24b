"""Tars: headers and members, samples found without reading payloads, and bytes copied as they are."""
