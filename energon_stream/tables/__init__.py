"""Tables beside the index: columns, filters over them, and costs of samples."""
