"""The live pool page: the KV pool as a map of blocks, drawn in a browser while it works.

Owns what a browser is told and how; knows no scheduling rule. Invariant: while nobody watches, nothing here
runs, and what is told holds no prompt and no token.
"""
