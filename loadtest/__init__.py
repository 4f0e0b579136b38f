"""Load generation, benchmarks and comparisons with peers. Each file is a command: `python -m loadtest.NAME --help`."""
