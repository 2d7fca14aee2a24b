"""Adapters for training frameworks. Import the one that you use; the library imports none of them."""
