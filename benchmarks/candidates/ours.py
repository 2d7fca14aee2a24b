"""This project's loader, by its public names."""

from candidates import energon_api


def prepare(spec: dict):
    """Import, and return what opens the loader."""
    import energon_stream

    options = {"raw_parts": spec["raw_parts"]} if "raw_parts" in spec else {}
    if "read_options" in spec:
        options["read_options"] = energon_stream.ReadOptions(**spec["read_options"])
    if spec.get("endpoint"):
        import obstore.store  # noqa: F401  (an import, not part of opening)

        options["storage_options"] = {"endpoint_url": spec["endpoint"], "key": "bench", "secret": "bench"}
    return energon_api.opener(energon_stream, spec, options)
