"""The programs of these tests import ``megatron.energon``; pytest must not import them."""

collect_ignore = ["behaviours.py", "behaviours_classes.py"]
