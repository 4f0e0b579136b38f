"""Batches: files of requests that are worked off while nobody waits, in OpenAI's shape."""
