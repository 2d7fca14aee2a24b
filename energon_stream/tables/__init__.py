"""Tables beside the index, read: columns, filters over them, and costs of samples."""
