"""From engine outputs to the bytes of OpenAI's answers, whole or in chunks."""
