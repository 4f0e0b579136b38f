"""From a constraint on the answer to what says, token by token, which tokens may come next."""
