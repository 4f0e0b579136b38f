"""What is known of requests and of the engine, for operators: records, logs, metrics, traces, timelines."""
