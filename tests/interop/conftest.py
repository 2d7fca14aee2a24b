"""The programs of these tests import ``megatron.energon``; pytest must not import them."""

collect_ignore_glob = ["behaviours*.py"]
