"""Requests of other APIs, made into chat completions: what chat can do, they can."""
