"""The user's vocabulary: task encoders, cookers, ``stateless``, batching helpers."""
