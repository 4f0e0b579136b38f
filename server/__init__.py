"""The HTTP face: the OpenAI API, chat templates and the command line. It knows text, never tensors."""
