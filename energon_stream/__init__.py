"""Stream Energon/WebDataset training data straight from object storage, with exact resume."""
