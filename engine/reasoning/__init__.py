"""What a reasoning model writes to itself before its answer: where it begins and ends."""
