"""The fates of the parameters of /v1/batches."""

from __future__ import annotations

from server.protocol.fate import by_name, implemented, refused

BATCHES = by_name(
    (
        implemented("input_file_id", "a file with `purpose: batch`"),
        implemented("endpoint", "`/v1/chat/completions`, `/v1/completions`, `/v1/embeddings` or `/v1/responses`"),
        implemented("completion_window", "`24h`, or another time in s, m, h or d"),
        implemented("metadata", "up to 16 pairs of strings"),
        refused("output_expires_after", "output files stay until they are deleted"),
    )
)
