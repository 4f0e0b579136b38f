"""One engine each, as `loadtest.compare` runs them: MODEL MAX_NUM_SEQS NUM_THREADS; jobs on standard input, seconds on standard output."""
