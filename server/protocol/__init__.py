"""What a client may send: the models of the request bodies, and the fate of every parameter."""
