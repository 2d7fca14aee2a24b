"""User-composable operators on elements. Each has a frozen spec and a node with plain state."""
