"""Sample references to raw samples: look-ahead, fetching, assembling, decoding."""
