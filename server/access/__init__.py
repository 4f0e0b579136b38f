"""Who may use the server, and how much: API keys, their holders, limits per minute."""
