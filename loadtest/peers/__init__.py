"""What Octavo is compared with.

The engines of `loadtest.compare` are programs that take MODEL MAX_NUM_SEQS NUM_THREADS, read jobs on standard input, and write the seconds
of each on standard output; the servers of `loadtest.compare_http` and `loadtest.compare_streams` are in http_servers.py.
"""
