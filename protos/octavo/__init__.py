"""What both services agree on: generated schema, array encoding, errors, interceptors, log lines."""
