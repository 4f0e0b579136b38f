"""From chat messages to prompt text."""
