"""Each kernel against a naive reference, which knows no block."""
