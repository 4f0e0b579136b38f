"""`octavo top`: a running server's requests, blocks and speed, in the terminal."""
