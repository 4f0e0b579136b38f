"""What a model's text means as a chat message: content, reasoning, tool calls. Pure text, for the server and for LLM.chat alike."""
