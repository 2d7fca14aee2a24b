"""The library inside frameworks. Nothing here is imported unless it is asked for."""
