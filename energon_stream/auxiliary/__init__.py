"""Parts of prepared datasets as files, by name: stores for auxiliary data, and a tree to browse."""
