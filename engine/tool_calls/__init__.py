"""How models of each family write tool calls, and how such text is read as it comes."""
