"""Worker processes, queues, save and restore per rank."""
