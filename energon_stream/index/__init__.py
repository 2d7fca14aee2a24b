"""What is inside the objects: tar indices and dataset metadata, read and written. Knows no order."""
